"""The command lines of training."""

from pathlib import Path

import pytest

from companion.training import language, vit_grid
from companion.training.__main__ import EXPERIMENTS, main

NO_TEXT = "no text at '{none}'; give a text file or a folder of .txt files"
# Commands, without the folder of their run, and how the line begins in which they are refused.
REFUSED = {
    "language nano-neox {none}": NO_TEXT,
    "suite --only neox-w32-d4": "there is no text; give a text file or a folder of .txt files, as the first argument",
    "suite --only huge": "the model 'huge' is not in 'suite'; choose from tiny-neox",
    "quality {none}": NO_TEXT,
    "regularised {none}": NO_TEXT,
    "vit one digits --data {none}": "data is '{none}'; it must be 'digits', 'cifar10', a folder with CIFAR-10's",
    "vit one digits --epochs 0": "--epochs is 0; it must be a whole number from 1",
    "vit one digits --seed 2147483648": "--seed is 2147483648; it must be a whole number from 0 to 2147483647",
    "vit one digits --weight-decay -1": "--weight-decay is -1.0; it must be a number from 0",
    "vit one digits --threads -1": "--threads is -1; it must be a whole number from 1",
    "vit grid digits --images -5": "--images is -5; it must be a whole number from 2 to",
    "vit pairs digits --data nowhere": "there are no pairs of 'digits'; take cifar10-small",
    "suite {none} --table README.md": "'README.md' is no table",
    "suite {none} --table data/edits.csv": "the table has no column 'step'; give one that was written here",
}


@pytest.mark.parametrize(("command", "expected"), REFUSED.items(), ids=REFUSED)
def test_command_that_cannot_run_ends_in_one_line(command, expected, tmp_path, capsys):
    name, *given = command.format(none=tmp_path / "none").split()
    table = ["--table", str(tmp_path / "table.csv")] if name in EXPERIMENTS and "--table" not in given else []
    with pytest.raises(SystemExit) as stop:
        main([name, *given, "--run", str(tmp_path / "run"), *table])
    out, err = capsys.readouterr()
    assert (stop.value.code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith(f"error: {expected.format(none=tmp_path / 'none')}")


def test_another_seed_trains_in_its_own_folder(monkeypatch):
    seen = []
    monkeypatch.setattr(language, "train", lambda *arguments: seen.append(arguments))
    for more in ([], ["--seed", "3"]):
        main(["language", "nano-llama", "text.txt", *more])
    (first, _, run), (other, _, other_run) = seen
    assert (first.seed, other.seed, other.width) == (0, 3, first.width)
    assert (run, other_run) == (Path("runs/nano-llama"), Path("runs/nano-llama-seed3"))


def test_the_grid_takes_the_arguments_of_the_makefile(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(vit_grid, "run_grid", lambda *arguments: seen.append(arguments))
    main(["vit", "grid", "digits", "--table", str(tmp_path / "grid.csv"), "--epochs", "2", "--images", "3"])
    ((recipes, data, *more),) = seen
    assert (len(recipes), {recipe.epochs for recipe in recipes}, data.name) == (80, {2}, "digits")
    assert more == [Path("runs/vit"), tmp_path / "grid.csv", 3]
