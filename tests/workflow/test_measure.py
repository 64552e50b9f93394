"""Shards of a job: receipts, journals, and what a merge finds out from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny

import coupling_lib as cl
from coupling_lib import paths, store
from coupling_lib.errors import CouplingError
from workflow import measure as measuring
from workflow import merge, records
from workflow import plan as planning
from workflow.settings import plan
from workflow.until import FEWEST


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A plan of one job with six prompts in two shards, on a random model."""
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    tiny.save_llama(tmp_path / "tiny")
    asked = {"models": [str(tmp_path / "tiny")], "measures": {"depth": {"ks": [4]}}, "prompts": 6, "shards": 2}
    return plan(asked, "trial")


def names(files: list[dict]) -> list[str]:
    return [record["file"] for record in files]


def test_shards_merge_into_one_stable_record(made):
    (name,) = made["jobs"]
    receipts = [records.read(measuring.measure(made, name, f"{number}/2")) for number in (2, 1)]
    assert [[record["place"] for record in receipt["files"]] for receipt in receipts] == [[1, 3, 5], [0, 2, 4]]
    target = merge.merge(made, name)
    record, written = records.read(target), target.read_bytes()
    assert [one["place"] for one in record["files"]] == list(range(6)) == list(range(record["of"]))
    assert sorted(names(record["files"])) == sorted(Path(path).name for path in store.listing().path)
    before = {path: path.stat().st_mtime_ns for path in paths.RESULTS.rglob("*.safetensors")}
    for number in (1, 2):
        again = records.read(measuring.measure(made, name, f"{number}/2"))
        assert again == receipts[2 - number]
    assert merge.merge(made, name).read_bytes() == written
    assert {path: path.stat().st_mtime_ns for path in before} == before
    makers = merge.makers(Path(made["root"]), name)
    assert sorted(makers) == sorted(names(record["files"])) and {len(lines) for lines in makers.values()} == {1}


def test_a_shard_of_nothing_is_merged_too(made):
    (name,) = made["jobs"]
    places = [[record["place"] for record in records.read(measuring.measure(made, name, f"{number}/7"))["files"]]
              for number in range(1, 8)]  # fmt: skip
    assert places == [[0], [1], [2], [3], [4], [5], []]
    made["jobs"][name]["shards"] = 7
    assert records.read(merge.merge(made, name))["prompts"] == 6
    planning.estimate(made)
    assert made["jobs"][name]["shards"] == 6


def test_shard_measured_twice_is_refused(made, tmp_path):
    (name,) = made["jobs"]
    measuring.measure(made, name, "1/2")
    measuring.measure(made, name, "2/2")
    # Another machine, with a store and a folder of its own, measured the second shard too.
    other = {**made, "store": str(tmp_path / "other"), "root": str(tmp_path / "other" / "sweep")}
    measuring.measure(other, name, "2/2")
    journal = Path(other["root"], "journals", name, "2-of-2.jsonl")
    shutil.copy(journal, Path(made["root"], "journals", name, "2-of-2-elsewhere.jsonl"))
    with pytest.raises(CouplingError, match=r"3 prompts were measured twice, the first \(depth-.*\) by .* and .* at"):
        merge.merge(made, name)


def test_damaged_or_removed_files_are_measured_again(made):
    (name,) = made["jobs"]
    receipt = records.read(measuring.measure(made, name, "1/2"))
    measuring.measure(made, name, "2/2")
    damaged, removed, _ = [next(paths.RESULTS.rglob(file)) for file in names(receipt["files"])]
    damaged.write_bytes(damaged.read_bytes()[:100])
    removed.unlink()
    with pytest.raises(CouplingError, match="of prompt 1 is not|is not what its shard wrote"):
        merge.merge(made, name)
    with pytest.warns(store.StoreWarning, match="is damaged"):
        measuring.measure(made, name, "1/2")
    merge.merge(made, name)
    journal = Path(made["root"], "journals", name, "1-of-2.jsonl")
    assert [line["again"] for line in records.lines(journal)] == ["", "", "", "damaged", "removed"]


def test_what_is_missing_is_named(made):
    (name,) = made["jobs"]
    first = measuring.measure(made, name, "1/2")
    with pytest.raises(CouplingError, match=r"2-of-2\.json' cannot be read .*; run make sweep again"):
        merge.merge(made, name)
    second = measuring.measure(made, name, "2/2")
    content = records.read(second)
    records.write(second, content | {"files": content["files"][:1]})
    with pytest.raises(CouplingError, match="prompt 4 of 6 is in no shard; measure it again"):
        merge.merge(made, name)
    records.write(second, content | {"files": content["files"] + records.read(first)["files"][:1]})
    with pytest.raises(CouplingError, match="prompt 1 of 6 is in several shards"):
        merge.merge(made, name)
    records.write(second, content | {"job": "another"})
    with pytest.raises(CouplingError, match="the receipt 2-of-2.json is of 'another'; measure that shard"):
        merge.merge(made, name)
    second.write_text("[1")
    with pytest.raises(CouplingError, match="cannot be read"):
        merge.merge(made, name)


def test_truncated_journal_lines_are_skipped(made):
    (name,) = made["jobs"]
    measuring.measure(made, name, "1/2")
    journal = Path(made["root"], "journals", name, "1-of-2.jsonl")
    journal.write_bytes(journal.read_bytes()[:-20])
    records.note(journal, {"file": "x"})
    assert [line["file"] for line in records.lines(journal)][2:] == ["x"]
    assert len(list(records.lines(journal))) == 3


def test_early_stop_is_noted_in_the_record(made, tmp_path):
    changed = {"models": [str(tmp_path / "tiny")], "measures": {"depth": {"ks": [4]}}, "prompts": 12, "until": 0.9}
    early = plan(changed, "early")
    (name,) = early["jobs"]
    receipt = records.read(measuring.measure(early, name, "1/1"))
    assert len(receipt["files"]) == FEWEST and receipt["half_width"] < 0.9
    record = records.read(merge.merge(early, name))
    assert (record["prompts"], record["of"]) == (FEWEST, 12)
    assert record["stopped"].startswith(f"after {FEWEST} of 12 prompts: half width")


def test_unknown_job_version_or_unwritable_store_is_refused(made, tmp_path, monkeypatch):
    (name,) = made["jobs"]
    with pytest.raises(CouplingError, match=f"the plan has no job 'x'; it has {name}"):
        measuring.measure(made, "x", "1/1")
    with pytest.raises(CouplingError, match="it must be a text i/n"):
        measuring.measure(made, name, "3/2")
    with monkeypatch.context() as changed:
        changed.setattr(cl.measure_depth, "version", 99)
        with pytest.raises(CouplingError, match="was planned with version .*, and the library has 99 now"):
            measuring.measure(made, name, "1/2")
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(store.StoreWarning), pytest.raises(CouplingError, match="could not be written, so that prompt 1"):
        measuring.measure(made | {"store": str(tmp_path / "file" / "below")}, name, "1/2")


def test_commands_end_in_one_line(made, tmp_path, capsys):
    (name,) = made["jobs"]
    file = records.write(tmp_path / "plan.json", made)

    def run() -> int:
        return records.run_command(merge._run, "merge", [str(file), name], plan=None, job=None)

    assert run() == 1
    assert capsys.readouterr().err.startswith("error: the record ")
    for number in (1, 2):
        measuring.measure(made, name, f"{number}/2")
    assert run() == 0
    assert capsys.readouterr().out == f"{name}: 6 of 6 prompts, none measured twice\n"

    def interrupted() -> str:
        raise KeyboardInterrupt

    def full() -> str:
        raise OSError(28, "No space left on device", "results")

    assert records.run_command(interrupted, "x", []) == 130
    assert records.run_command(full, "x", []) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: interrupted; what was finished is kept") and len(lines) == 2
    assert lines[1] == "error: results: No space left on device"
    assert json.loads(file.read_text()) == made
