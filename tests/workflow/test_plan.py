"""What a sweep will take: operations, hours, memory and disk from the registry, and what is there already."""

import math
from functools import partial
from pathlib import Path

import pytest
import scale
import tiny
from refusals import refused

import coupling_lib as cl
from coupling_lib import paths
from coupling_lib.errors import CouplingError
from coupling_lib.models.registry import lookup
from workflow import plan as planning
from workflow import settings, sweep


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    planning._listing.cache_clear()


def sweep_of(model: str | dict, **changes) -> dict:
    asked = {"models": [model], "measures": {"depth": {"ks": [10]}}, "prompts": 4, "shards": 2, "flops": 1e12}
    return settings.plan(asked | changes, "trial")


UNFORMED = {"depth": {"ks": [10], "formed": False}}


def job_of(model: str, **changes) -> dict:
    (job,) = sweep_of(model, **changes)["jobs"].values()
    return job


def test_operations_follow_from_depth_width_and_parameters():
    job = job_of("llama3-8b")
    L, d, block = planning.shape(job)
    assert (L, d, block) == (32, 4096, 8e9 / 32)
    # 1.79 TFLOP a block were counted for this model with d cotangents; the embeddings make it a little more here.
    assert 1.79e12 < 2 * block * d < 2.2e12
    assert planning.operations(job, 0) == L * 2 * block * d + L * L * 2 * d * d * 10
    forward = planning.operations(job | {"measure": "trajectories"}, 16)
    assert forward == 2 * 8e9 * 16 == planning.operations(job, 16) - planning.operations(job, 0)


def test_unformed_jacobians_cost_products_and_no_memory():
    job = job_of("llama3-8b", measures=UNFORMED)
    # 32 blocks with 8e9 weights; K = 10, and Krylov bases of 180 columns: as the page on the paper's scale counts them.
    assert planning.operations(job, 0) == pytest.approx(2 * (2 * 180 + 32 * 10) * 8e9)
    assert 1200 * planning.operations(job, 0) == pytest.approx(scale.cost(lookup("llama3-8b")).products)
    formed, usual = job | {"settings": {"ks": [10], "formed": True}}, job_of("llama3-8b")
    assert planning.memory(formed) - planning.memory(job) == 4 * 32 * 4096 * (4096 - 2 * 10)
    tokens = job | {"measure": "tokens", "settings": {"k": 10}}
    assert planning.operations(tokens, 0) == planning.operations(formed, 0)
    assert planning.operations(usual, 7) == planning.operations(formed, 7)
    assert planning.memory(usual) == planning.memory(formed)


def test_memory_and_disk_follow_from_weights_and_precision():
    need = [planning.memory(job_of("llama3-8b", precisions=[one])) for one in ("float32", "bfloat16", "nf4")]
    assert need[0] - need[1] == 2 * 8e9 and need[1] > need[2]
    assert planning.memory(job_of("llama3-8b", memory="3GB")) == 1.5e9 + 3e9 + 4 * 8e9 / 32 + 4 * 32 * 4096**2
    assert [planning.weights_bytes({"model": name}) for name in ("llama3-8b", "nano-neox")] == [16e9, 0]


def test_hours_are_work_over_rate_with_scheduler_margin():
    made = sweep_of("llama3-8b", measures=UNFORMED)
    rows = planning.estimate(made)
    assert rows["prompts"].tolist() == [2, 2] and rows["stored"].tolist() == [0, 0]
    # Of few columns at once each takes as long as three of many.
    longer = (2 * 3 * 180 + 32 * 10) / (2 * 180 + 32 * 10)
    assert rows["hours"].tolist() == pytest.approx((longer * rows["flop"] / 1e12 / 3600).tolist(), rel=0.02)
    formed = planning.estimate(sweep_of("llama3-8b"))
    assert formed["hours"].tolist() == pytest.approx((formed["flop"] / 1e12 / 3600).tolist())
    planning.for_the_scheduler(made, rows)
    (job,) = made["jobs"].values()
    assert job["minutes"] == math.ceil(15 + 4 * 60 * rows["hours"].max())
    assert job["mem_mb"] == math.ceil(1.3 * rows["memory"].max() / 1e6)
    text = planning.table(made, rows)
    assert "at 1,000 GFLOP/s (as configured)" in text and "fetch    llama3-8b: 16.0 GB of weights" in text
    assert "in all 4 prompts to measure" in text
    assert 1e9 < planning.measured_rate() < 1e14


def test_unknown_sizes_are_reported_as_unknown():
    made = sweep_of("somebody/some-model")
    rows = planning.estimate(made)
    planning.for_the_scheduler(made, rows)
    assert [(job["mem_mb"], job["minutes"]) for job in made["jobs"].values()] == [(None, None)]
    text = planning.table(made, rows)
    assert "0 stored; unknown time; an unknown amount of memory, an unknown amount of disk" in text
    assert "in all 4 prompts to measure: unknown time (a model's size is not known)" in text


@pytest.mark.parametrize(
    ("model", "prompts", "expected"),
    [("nano-neox", 7, [2, 2, 1, 1, 1]), *((m, 4, [1] * 4) for m in ("nano-neox", "llama3-8b", "somebody/some-model"))],
)
def test_a_job_has_no_more_shards_than_prompts(model, prompts, expected):
    made = sweep_of(model, shards=5, prompts=prompts)
    rows, n = planning.estimate(made), len(expected)
    assert rows["prompts"].tolist() == expected and [job["shards"] for job in made["jobs"].values()] == [n]
    assert rows["shard"].tolist() == [f"{number}/{n}" for number in range(1, n + 1)]


@pytest.fixture
def folder(tmp_path) -> str:
    tiny.save_llama(tmp_path / "m")
    return str(tmp_path / "m")


def stored(model: str | dict, **changes) -> int:
    planning._listing.cache_clear()
    return planning.estimate(sweep_of(model, **changes))["stored"].sum()


def test_what_is_stored_is_not_measured_again(folder):
    model, prompts = cl.load_model(folder), cl.load_prompts(n=4)
    cl.sweep(cl.measure_depth, model, prompts[:3], ks=(4,))
    cl.sweep(cl.measure_depth, model, prompts, ks=(3,))
    made = sweep_of(folder, measures={"depth": {"ks": [4]}})
    rows = planning.estimate(made)
    assert rows["stored"].tolist() == [2, 1] and rows["flop"].tolist()[0] == 0 < rows["flop"].tolist()[1]
    files = [path.stat().st_size for path in Path(paths.RESULTS).rglob("*.safetensors")]
    assert 0 < rows["disk"].tolist()[1] < 2 * max(files)
    text = planning.table(made, rows)
    assert "1/2: 2 prompts, 2 stored; nothing to do" in text and "in all 1 prompts to measure" in text


def test_other_settings_count_as_missing(folder):
    model, prompts = cl.load_model(folder), cl.load_prompts(n=4)
    cl.sweep(cl.measure_trajectories, model, prompts, window=3)
    assert stored(folder, measures={"trajectories": {}}) == 0
    assert stored(folder, measures={"trajectories": {"window": 3}}) == 4
    cl.sweep(cl.measure_depth, model, prompts[:1])  # by default K is at most the width, 32
    assert stored(folder, measures={"depth": {}}) == 1


def test_other_revisions_and_seeds_count_as_missing():
    for changes in ({"revision": "step100"}, {"untrained": True, "seed": 1}):
        cl.sweep(cl.measure_depth, cl.load_model("nano-neox", **changes), cl.load_prompts("paris"), ks=(10,))
    there = partial(stored, prompts="paris")
    assert there("nano-neox") == 0 and there({"model": "nano-neox", "revision": "step100"}) == 1
    assert there("nano-neox", untrained=[True]) == 0 and there("nano-neox", untrained=[True], seed=1) == 1


def test_sweep_command_locks_and_names_its_profile(tmp_path, capsys):
    file = tmp_path / "own.yaml"
    file.write_text("models: [nano-neox]\nmeasures: {depth: {ks: [4]}}\nflops: 1.0e+12\n")
    words = sweep.command(str(file), "local", "--cores 1 --config 'a=b c'")
    root, home = paths.RESULTS / "sweeps" / "own", settings.ROOT / "workflow"
    options = ["--snakefile", home / "Snakefile", "--directory", root, "--profile", home / "profiles" / "local"]
    assert words[1:11] == [*map(str, options), "--cores", "1", "--config", "a=b c"]
    assert f'plan="{root / "plan.json"}"' in words
    assert "sweep own: 1 models, 1 jobs in 1 shards, 0 figures" in capsys.readouterr().out
    refused(CouplingError, "the sweep 'own' is running already", sweep.command, str(file), "local")
    refused(CouplingError, r"there is no profile '\.\./x'; choose from local, slurm", sweep.command, str(file), "../x")


def test_times_are_written_for_readers():
    texts = {0.2: "1 s", 45: "45 s", 89: "89 s", 376: "6 min", 5399: "90 min", 9000: "2.5 h"}
    assert {seconds: planning.duration(seconds) for seconds in texts} == texts
