"""What a sweep will take: operations, hours, memory and disk from the registry, and what is there already."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import scale
import tiny

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
    return tmp_path / "results"


def sweep_of(model: str, **changes) -> dict:
    asked = {"models": [model], "measures": {"depth": {"ks": [10]}}, "prompts": 4, "shards": 2, "flops": 1e12}
    return settings.plan(asked | changes, "trial")


def test_operations_follow_from_depth_width_and_parameters():
    (job,) = sweep_of("llama3-8b")["jobs"].values()
    L, d, block = planning.shape(job)
    assert (L, d, block) == (32, 4096, 8e9 / 32)
    # 1.79 TFLOP a block were counted for this model with d cotangents; the embeddings make it a little more here.
    jacobians = L * 2 * block * d
    assert 1.79e12 < jacobians / L < 2.2e12
    assert planning.operations(job, 0) == jacobians + L * L * 2 * d * d * 10
    forward = {**job, "measure": "trajectories"}
    assert (
        planning.operations(forward, 16) == 2 * 8e9 * 16 == planning.operations(job, 16) - planning.operations(job, 0)
    )


def test_products_alone_are_counted_when_asked_for():
    (job,) = sweep_of("llama3-8b", measures={"depth": {"ks": [10], "formed": False}})["jobs"].values()
    # 32 blocks with 8e9 weights; K = 10, and Krylov bases of 180 columns: as the page on the paper's scale counts them.
    assert planning.operations(job, 0) == pytest.approx(2 * (2 * 180 + 32 * 10) * 8e9)
    assert 1200 * planning.operations(job, 0) == pytest.approx(scale.cost(lookup("llama3-8b")).products)
    formed = {**job, "settings": {"ks": [10], "formed": True}}
    assert planning.memory(formed) - planning.memory(job) == 4 * 32 * 4096 * (4096 - 2 * 10)
    tokens = {**job, "measure": "tokens", "settings": {"k": 10}}
    assert planning.operations(tokens, 0) == planning.operations(formed, 0)
    (usual,) = sweep_of("llama3-8b")["jobs"].values()
    assert planning.operations(usual, 7) == planning.operations(formed, 7)
    assert planning.memory(usual) == planning.memory(formed)


def test_memory_and_disk_follow_from_weights_and_precision():
    need = {}
    for precision in ("float32", "bfloat16", "nf4"):
        (job,) = sweep_of("llama3-8b", precisions=[precision])["jobs"].values()
        need[precision] = planning.memory(job)
    assert need["float32"] - need["bfloat16"] == 2 * 8e9 and need["bfloat16"] > need["nf4"]
    (job,) = sweep_of("llama3-8b", memory="3GB")["jobs"].values()
    assert planning.memory(job) == 1.5e9 + 3e9 + 4 * 8e9 / 32 + 4 * 32 * 4096**2
    assert (
        planning.weights_bytes({"model": "llama3-8b"}) == 16e9 and planning.weights_bytes({"model": "nano-neox"}) == 0
    )


def test_hours_are_work_over_rate_with_scheduler_margin():
    made = sweep_of("llama3-8b", measures={"depth": {"ks": [10], "formed": False}})
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
    (job,) = made["jobs"].values()
    assert (job["mem_mb"], job["minutes"]) == (None, None)
    text = planning.table(made, rows)
    assert "0 stored; unknown time; an unknown amount of memory, an unknown amount of disk" in text
    assert "in all 4 prompts to measure: unknown time (a model's size is not known)" in text


def test_a_job_has_no_more_shards_than_prompts():
    def shards(model: str, **changes) -> list[str]:
        made = sweep_of(model, shards=5, **changes)
        rows = planning.estimate(made)
        (job,) = made["jobs"].values()
        assert rows["shard"].tolist() == [f"{number}/{job['shards']}" for number in range(1, job["shards"] + 1)]
        return rows["prompts"].tolist()

    assert shards("nano-neox", prompts=7) == [2, 2, 1, 1, 1]
    assert shards("nano-neox") == shards("llama3-8b") == [1, 1, 1, 1]
    assert shards("somebody/some-model") == [1, 1, 1, 1]  # whose size is not known


def test_what_is_stored_is_not_measured_again(tmp_path):
    tiny.save_llama(tmp_path / "m")
    folder = str(tmp_path / "m")
    model, prompts = cl.load_model(folder), cl.load_prompts(n=4)
    made = sweep_of(folder, measures={"depth": {"ks": [4]}})
    cl.sweep(cl.measure_depth, model, prompts[:3], ks=(4,))
    cl.sweep(cl.measure_depth, model, prompts, ks=(3,))
    rows = planning.estimate(made)
    assert rows["stored"].tolist() == [2, 1] and rows["flop"].tolist()[0] == 0 < rows["flop"].tolist()[1]
    files = [path.stat().st_size for path in Path(paths.RESULTS).rglob("*.safetensors")]
    assert 0 < rows["disk"].tolist()[1] < 2 * max(files)
    text = planning.table(made, rows)
    assert "1/2: 2 prompts, 2 stored; nothing to do" in text and "in all 1 prompts to measure" in text


def test_other_settings_count_as_missing(tmp_path):
    tiny.save_llama(tmp_path / "m")
    folder, prompts = str(tmp_path / "m"), cl.load_prompts(n=4)

    def there(measures: dict) -> int:
        planning._listing.cache_clear()
        return planning.estimate(sweep_of(folder, measures=measures))["stored"].sum()

    cl.sweep(cl.measure_trajectories, cl.load_model(folder), prompts, window=3)
    assert there({"trajectories": {}}) == 0 and there({"trajectories": {"window": 3}}) == 4
    cl.sweep(cl.measure_depth, cl.load_model(folder), prompts[:1])  # by default K is at most the width, 32
    assert there({"depth": {}}) == 1


def test_other_revisions_and_seeds_count_as_missing():
    for changes in ({"revision": "step100"}, {"untrained": True, "seed": 1}):
        cl.sweep(cl.measure_depth, cl.load_model("nano-neox", **changes), cl.load_prompts("paris"), ks=(10,))

    def there(model: str | dict = "nano-neox", **changes) -> int:
        return planning.estimate(sweep_of(model, prompts="paris", **changes))["stored"].sum()

    assert there() == 0 and there({"model": "nano-neox", "revision": "step100"}) == 1
    assert there(untrained=[True]) == 0 and there(untrained=[True], seed=1) == 1


def test_sweep_command_locks_and_names_its_profile(tmp_path, capsys):
    file = tmp_path / "own.yaml"
    file.write_text("models: [nano-neox]\nmeasures: {depth: {ks: [4]}}\nflops: 1.0e+12\n")
    words = sweep.command(str(file), "local", "--cores 1 --config 'a=b c'")
    root = paths.RESULTS / "sweeps" / "own"
    assert words[1:7] == ["--snakefile", str(settings.ROOT / "workflow" / "Snakefile"), "--directory", str(root),
                          "--profile", str(settings.ROOT / "workflow" / "profiles" / "local")]  # fmt: skip
    assert words[7:11] == ["--cores", "1", "--config", "a=b c"] and f'plan="{root / "plan.json"}"' in words
    assert "sweep own: 1 models, 1 jobs in 1 shards, 0 figures" in capsys.readouterr().out
    with pytest.raises(CouplingError, match="the sweep 'own' is running already"):
        sweep.command(str(file), "local")
    with pytest.raises(CouplingError, match=r"there is no profile '\.\./x'; choose from local, slurm"):
        sweep.command(str(file), "../x")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (45, "45 s"), (89, "89 s"), (376, "6 min"), (5399, "90 min"), (9000, "2.5 h")]
)
def test_times_are_written_for_readers(seconds, text):
    assert planning.duration(seconds) == text
