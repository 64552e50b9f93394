"""The command lines of training."""

from __future__ import annotations

import pytest

from companion.training.__main__ import EXPERIMENTS, main


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The output of a command that failed: one line, and nothing else."""
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    return err.strip()


NO_TEXT = "no text at '{none}'; give a text file or a folder of .txt files"
# Commands, without the folder of their run, and how the line begins in which they are refused.
REFUSED = {
    "language nano-neox {none}": NO_TEXT,
    "suite --only neox-w32-d4": "there is no text; give a text file or a folder of .txt files, as the first argument",
    "quality {none}": NO_TEXT,
    "regularised {none}": NO_TEXT,
    "vit one digits --data {none}": "data is '{none}'; it must be 'digits', 'cifar10', a folder with CIFAR-10's",
    "vit one digits --epochs 0": "--epochs is 0; it must be a whole number from 1",
    "vit one digits --seed 2147483648": "--seed is 2147483648; it must be a whole number from 0 to 2147483647",
    "vit one digits --weight-decay -1": "--weight-decay is -1.0; it must be a number from 0",
    "vit one digits --threads -1": "--threads is -1; it must be a whole number from 1",
    "vit grid digits --images -5": "--images is -5; it must be a whole number from 2 to",
    "suite {none} --table README.md": "'README.md' is no table",
    "suite {none} --table data/edits.csv": "the table has no column 'step'; give one that was written here",
}


@pytest.mark.parametrize(("command", "expected"), REFUSED.items(), ids=REFUSED)
def test_command_that_cannot_run_ends_in_one_line(command, expected, tmp_path, capsys):
    name, *given = command.format(none=tmp_path / "none").split()
    table = ["--table", str(tmp_path / "table.csv")] if name in EXPERIMENTS and "--table" not in given else []
    with pytest.raises(SystemExit) as stop:
        main([name, *given, "--run", str(tmp_path / "run"), *table])
    line = f"error: {expected.format(none=tmp_path / 'none')}"
    assert stop.value.code == 1 and error_line(capsys).startswith(line)


def test_another_seed_trains_in_its_own_folder(monkeypatch):
    from companion.training import language

    seen = []
    monkeypatch.setattr(language, "train", lambda *arguments: seen.append(arguments))
    main(["language", "nano-llama", "text.txt"])
    main(["language", "nano-llama", "text.txt", "--seed", "3"])
    (first, _, run), (other, _, other_run) = seen
    assert (first.seed, other.seed, other.width) == (0, 3, first.width)
    assert (str(run), str(other_run)) == ("runs/nano-llama", "runs/nano-llama-seed3")


def test_the_grid_takes_the_arguments_of_the_makefile(monkeypatch, tmp_path):
    from companion.training import vit_grid

    seen = []
    monkeypatch.setattr(vit_grid, "run_grid", lambda *arguments: seen.append(arguments))
    main(["vit", "grid", "digits", "--table", str(tmp_path / "grid.csv"), "--epochs", "2", "--images", "3"])
    ((recipes, data, run, table, images),) = seen
    assert (len(recipes), {recipe.epochs for recipe in recipes}, data.name) == (80, {2}, "digits")
    assert (str(run), table, images) == ("runs/vit", tmp_path / "grid.csv", 3)
