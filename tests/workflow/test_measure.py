"""Shards of a job: receipts, journals, and what a merge finds out from them."""

import json
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import tiny
from refusals import refused

import coupling_lib as cl
from coupling_lib import paths, store
from coupling_lib.errors import CouplingError
from workflow import measure as measuring
from workflow import merge, records
from workflow import plan as planning
from workflow.settings import plan
from workflow.until import FEWEST


class Job:
    """A plan of one job with six prompts in two shards, on a random model."""

    def __init__(self, model: Path, **changes) -> None:
        asked = {"models": [str(model)], "measures": {"depth": {"ks": [4]}}, "prompts": 6, "shards": 2} | changes
        self.plan = plan(asked, "trial")
        (self.name,) = self.plan["jobs"]

    def measure(self, shard: str, **changes: str) -> dict:
        return records.read(measuring.measure(self.plan | changes, self.name, shard))

    def merged(self) -> dict:
        return records.read(merge.merge(self.plan, self.name))

    def file(self, *place: str) -> Path:
        return Path(self.plan["root"], *place)


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    tiny.save_llama(tmp_path / "tiny")
    return Job(tmp_path / "tiny")


def each(key: str, receipt: dict) -> list:
    return [record[key] for record in receipt["files"]]


def test_shards_merge_into_one_stable_record(job):
    receipts = {shard: job.measure(shard) for shard in ("2/2", "1/2")}
    assert [each("place", receipt) for receipt in receipts.values()] == [[1, 3, 5], [0, 2, 4]]
    record = job.merged()
    assert each("place", record) == list(range(6)) == list(range(record["of"]))
    assert sorted(each("file", record)) == sorted(Path(path).name for path in store.listing().path)
    target = job.file("measured", f"{job.name}.json")
    written, before = target.read_bytes(), {p: p.stat().st_mtime_ns for p in paths.RESULTS.rglob("*.safetensors")}
    assert {shard: job.measure(shard) for shard in receipts} == receipts and job.merged() == record
    assert target.read_bytes() == written and {path: path.stat().st_mtime_ns for path in before} == before
    makers = merge.makers(job.file(), job.name)
    assert sorted(makers) == sorted(each("file", record)) and {len(lines) for lines in makers.values()} == {1}


def test_a_shard_of_nothing_is_merged_too(job):
    places = [each("place", job.measure(f"{number}/7")) for number in range(1, 8)]
    assert places == [[0], [1], [2], [3], [4], [5], []]
    job.plan["jobs"][job.name]["shards"] = 7
    assert job.merged()["prompts"] == 6
    planning.estimate(job.plan)
    assert job.plan["jobs"][job.name]["shards"] == 6


def test_shard_measured_twice_is_refused(job, tmp_path):
    job.measure("1/2"), job.measure("2/2")
    # Another machine, with a store and a folder of its own, measured the second shard too.
    job.measure("2/2", store=str(tmp_path / "other"), root=str(tmp_path / "other" / "sweep"))
    journal = tmp_path / "other" / "sweep" / "journals" / job.name / "2-of-2.jsonl"
    shutil.copy(journal, job.file("journals", job.name, "2-of-2-elsewhere.jsonl"))
    refused(CouplingError, r"3 prompts were measured twice, the first \(depth-.*\) by .* and .* at", job.merged)


def test_damaged_or_removed_files_are_measured_again(job):
    receipt, _ = job.measure("1/2"), job.measure("2/2")
    damaged, removed, _ = [next(paths.RESULTS.rglob(file)) for file in each("file", receipt)]
    damaged.write_bytes(damaged.read_bytes()[:100])
    removed.unlink()
    refused(CouplingError, "of prompt 1 is not|is not what its shard wrote", job.merged)
    with pytest.warns(store.StoreWarning, match="is damaged"):
        job.measure("1/2")
    job.merged()
    lines = records.lines(job.file("journals", job.name, "1-of-2.jsonl"))
    assert [line["again"] for line in lines] == ["", "", "", "damaged", "removed"]


def test_what_is_missing_is_named(job):
    first, second = job.measure("1/2"), job.file("measured", job.name, "2-of-2.json")
    refused(CouplingError, r"2-of-2\.json' cannot be read .*; run make sweep again", job.merged)
    content = job.measure("2/2")
    for changes, message in (
        ({"files": content["files"][:1]}, "prompt 4 of 6 is in no shard; measure it again"),
        ({"files": content["files"] + first["files"][:1]}, "prompt 1 of 6 is in several shards"),
        ({"job": "another"}, "the receipt 2-of-2.json is of 'another'; measure that shard"),
    ):
        records.write(second, content | changes)
        refused(CouplingError, message, job.merged)
    second.write_text("[1")
    refused(CouplingError, "cannot be read", job.merged)


def test_truncated_journal_lines_are_skipped(job):
    job.measure("1/2")
    journal = job.file("journals", job.name, "1-of-2.jsonl")
    journal.write_bytes(journal.read_bytes()[:-20])
    records.note(journal, {"file": "x"})
    first, second, last = records.lines(journal)
    assert first["file"] != second["file"] and last == {"file": "x"}


def test_early_stop_is_noted_in_the_record(job, tmp_path):
    early = Job(tmp_path / "tiny", prompts=12, shards=1, until=0.9)
    receipt = early.measure("1/1")
    assert len(receipt["files"]) == FEWEST and receipt["half_width"] < 0.9
    record = early.merged()
    assert (record["prompts"], record["of"]) == (FEWEST, 12)
    assert record["stopped"].startswith(f"after {FEWEST} of 12 prompts: half width")


def test_unknown_job_version_or_unwritable_store_is_refused(job, tmp_path, monkeypatch):
    refused(CouplingError, f"the plan has no job 'x'; it has {job.name}", measuring.measure, job.plan, "x", "1/1")
    refused(CouplingError, "it must be a text i/n", job.measure, "3/2")
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(store.StoreWarning), pytest.raises(CouplingError, match="could not be written, so that prompt 1"):
        job.measure("1/2", store=str(tmp_path / "file" / "below"))
    monkeypatch.setattr(cl.measure_depth, "version", 99)
    refused(CouplingError, "was planned with version .*, and the library has 99 now", job.measure, "1/2")


def test_commands_end_in_one_line(job, tmp_path, capsys):
    file = records.write(tmp_path / "plan.json", job.plan)
    run = partial(records.run_command, merge._run, "merge", [str(file), job.name], plan=None, job=None)
    assert run() == 1
    assert capsys.readouterr().err.startswith("error: the record ")
    job.measure("1/2"), job.measure("2/2")
    assert run() == 0
    assert capsys.readouterr().out == f"{job.name}: 6 of 6 prompts, none measured twice\n"
    assert json.loads(file.read_text()) == job.plan


def test_interrupted_or_failed_command_is_one_line(capsys):
    for error, code, message in (
        (KeyboardInterrupt(), 130, "error: interrupted; what was finished is kept"),
        (OSError(28, "No space left on device", "results"), 1, "error: results: No space left on device\n"),
    ):
        assert records.run_command(Mock(side_effect=error), "x", []) == code
        line = capsys.readouterr().err
        assert line.startswith(message) and line.count("\n") == 1
