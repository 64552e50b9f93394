"""Fetching: one writer a model, locks that nobody holds are cleared, and the first page of a sweep's book."""

import fcntl
import multiprocessing
import time

import pytest
import tiny
import yaml
from refusals import refused

from coupling_lib import paths
from coupling_lib.errors import CouplingError
from workflow import fetch, pages, records, settings


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    tiny.save_llama(tmp_path / "m")
    return settings.plan({"models": [str(tmp_path / "m"), "nano-vit"], "measures": {"depth": None}}, "trial")


def test_files_that_are_at_hand_are_written_down(made, tmp_path):
    folder, embedded = made["weights"]
    record = records.read(fetch.fetch(made, folder))
    file = tmp_path / "m" / "model.safetensors"
    assert record["source"] == str(tmp_path / "m") and record["bytes"] == {file.name: file.stat().st_size}
    assert records.read(fetch.fetch(made, embedded))["source"] == "embedded:nano-vit"
    refused(CouplingError, "the plan has no model 'x'; it has", fetch.fetch, made, "x")
    file.unlink()
    refused(CouplingError, "safetensors", fetch.fetch, made, folder)


def test_only_stale_locks_are_removed(tmp_path):
    stale, held, other = (tmp_path / "models--a--b" / name for name in ("stale.lock", "held.lock", "kept.json"))
    stale.parent.mkdir()
    for path in (stale, held, other):
        path.touch()
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert fetch.clear_stale_locks(tmp_path) == [stale]
        assert held.exists() and other.exists() and not stale.exists()
    assert fetch.clear_stale_locks(tmp_path) == [held]
    assert fetch.clear_stale_locks(tmp_path / "absent") == []


def _write_alone(lock, log) -> None:
    with fetch.alone(lock):
        for word in ("begins", "ends"):
            with log.open("a") as file:
                print(word, file=file)
            time.sleep(0.05)


def test_one_writes_while_the_others_wait(tmp_path):
    lock, log = tmp_path / "locks" / "x.lock", tmp_path / "log"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_alone, args=(lock, log)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert log.read_text().split() == ["begins", "ends"] * 4


def test_the_book_shows_names_as_they_are(made):
    for name, job in made["jobs"].items():
        record = {**job, "prompts": 3, "of": 12, "stopped": "after 3 | <b>x</b>\n`y` $z$ [a](b)"}
        records.write(settings.paths.RESULTS / "sweeps" / "trial" / "measured" / f"{name}.json", record)
    page = pages.front(made)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(made["jobs"]) and {row.count("|") for row in rows} == {9}
    assert [mark for mark in ("<b>", "`", "$", "](") if mark in page] == [] and "&lt;b" in page


def test_sweep_commands_quote_all_but_plain_fields():
    """Only names made of letters and digits, and quoted paths, stand in the commands of the workflow."""
    text = (settings.ROOT / "workflow" / "Snakefile").read_text(encoding="utf-8")
    commands = [part.split("\n\n")[0] for part in text.split("shell:\n")[1:]]
    used = {field.partition("}")[0] for command in commands for field in command.split("{")[1:]}
    plain = {f"wildcards.{name}" for name in ("weights", "job", "part", "shards")} | {"threads", "PYTHON"}
    plain |= {"params.given"}  # joined by shlex.join
    assert {word for word in used if not word.endswith(":q")} == plain
    for profile in ("local", "slurm"):
        file = settings.ROOT / "workflow" / "profiles" / profile / "config.yaml"
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert options["rerun-incomplete"] and options["keep-going"] and options["retries"] >= 1
    assert "HF_HUB_OFFLINE=1" in text and text.count("HERE + ") == 1 and text.count("OFFLINE + ") == 4
