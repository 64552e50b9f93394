"""The benchmark runs, and what it writes is complete. Nothing here asserts a duration."""

from __future__ import annotations

import json
import os
import re
import subprocess

import forked
import pytest

from benchmarks import child, report, shapes, speed, stages, tables
from benchmarks.machine import MemoryPeak
from coupling_lib import paths


def in_a_fork(module, *words, memory_kept=False):
    """What `child.record` gives, without a fresh Python for each record: here no figure counts."""
    code = f"import runpy, sys; sys.argv = {[module, *map(str, words)]}\n"
    code += f"runpy.run_module('benchmarks.{module}', run_name='__main__')"
    ended = forked.run(code, os.environ, cwd=paths.ROOT)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[pytest.param("quick", marks=pytest.mark.thorough)])
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("speed") / "new" / "speed.json"
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(child, "record", in_a_fork)
        speed.main(["--quick", "--out", str(out)])
    return json.loads(out.read_text(encoding="utf-8"))


def test_quick_run_times_and_compares_every_stage(run):
    (case,) = run["cases"]
    stage_names = {*stages.STAGES, "total"}
    assert case["seconds"].keys() == {"released", "ours"}
    assert case["seconds"]["ours"].keys() == case["seconds"]["released"].keys() == case["ratio"].keys() == stage_names
    for stage in stage_names:
        wanted = case["seconds"]["released"][stage] / case["seconds"]["ours"][stage]
        assert case["ratio"][stage] == pytest.approx(wanted)


def test_quick_run_compares_values_and_counts_operations(run):
    (case,) = run["cases"]
    assert (case["d"], case["L"], case["n"], case["basis"]) == (96, 4, 16, "all 4 blocks")
    d, n, head = 96, 16, 32
    weights = 12 * d**2
    # Evaluated once, with attention's derivative, and pulled back d times. Layers of this width do not look out for
    # unit vectors.
    assert case["flop_per_block"] == 2 * (weights + 2 * n * d + n * d * head) + 2 * (weights + 2 * d * head) * d
    assert case["fraction_of_peak"] == pytest.approx(case["jacobian_flop_per_second"] / case["matrix_peak"])
    assert case["agreement"]["pairs"] == 6 and case["agreement"]["metric_relative"] < 1e-5


def test_quick_run_repeats_with_memory_kept(run):
    (case,) = run["cases"]
    kept = case["memory_kept"]
    assert kept["basis"] == "scaled from 3 of 4 blocks"
    totals = [kept["seconds"][method]["total"] for method in ("released", "ours")]
    assert kept["ratio"]["total"] == pytest.approx(totals[0] / totals[1])
    (table,) = (part for part in report.speed_page(run).split("### ") if part.startswith("Whole prompt, with memory"))
    row = [cell.strip() for cell in table.splitlines()[-2].split("|")[1:-1]]
    assert row[3] == tables.seconds(totals[0]) and row[5] == tables.seconds(totals[1])
    assert row[6:] == [f"{case['ratio']['total']:.1f}×", f"{kept['ratio']['total']:.1f}×"]


def test_child_takes_memory_settings_and_raises_on_failure(tmp_path, monkeypatch):
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    lines = ("import json, os", "print('said on the way')", "print(json.dumps(dict(os.environ)))")
    (package / "environment.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(child.paths, "ROOT", tmp_path)
    assert child.MEMORY_KEPT.items() <= child.record("environment", memory_kept=True).items()
    assert not child.MEMORY_KEPT.keys() & child.record("environment").keys()
    (package / "failing.py").write_text("print('{}')\nraise SystemExit(1)", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        child.record("failing")


def test_quick_run_records_machine_memory_growth_and_prompt(run):
    assert run["quick"] is True
    assert {"cpu", "cores", "threads", "versions", "date", "load_average"} <= run["machine"].keys()
    assert {(m["shape"], m["method"]) for m in run["memory"]} == {("tiny", "ours"), ("tiny", "released")}
    assert all(m["peak"] >= 0 for m in run["memory"])
    assert {curve["variable"] for curve in run["growth"]} == {"n", "T", "d", "L", "K"}
    prompt = run["embedded_prompt"]
    assert (prompt["shape"], prompt["rounds"]) == ("nano-neox", 3)
    assert 0 < prompt["fastest"] <= prompt["seconds"] <= prompt["slowest"]


def test_page_shows_the_run_date_and_hardware(run, tmp_path):
    (tmp_path / "latest.json").write_text(json.dumps(run), encoding="utf-8")
    page = report.page(tmp_path)
    assert run["machine"]["date"] in page and run["machine"]["cpu"] in page
    assert re.search(r"\| tiny \| 96 \| 4 \|", page) and "Not measured yet" not in page


def test_ceiling_is_released_time_over_peak_time(run):
    (case,) = run["cases"]
    floor = case["flop_per_block"] * case["L"] / case["matrix_peak"]
    *_, ceiling, ratio, part = report._roofline_row(case)
    assert float(ceiling.rstrip("×")) == pytest.approx(case["seconds"]["released"]["total"] / floor, rel=0.02, abs=0.06)
    assert float(ratio.rstrip("×")) == pytest.approx(case["ratio"]["total"], rel=0.02, abs=0.06)
    assert floor < case["seconds"]["ours"]["jacobians"]
    # Every cotangent of the released method passes every weight at every token.
    done = 4 * 96 * 16 * 2 * (12 * 96**2) / case["seconds"]["released"]["jacobians"]
    assert float(part.rstrip("%")) / 100 == pytest.approx(done / case["matrix_peak"], abs=0.006)


@pytest.mark.parametrize(("value", "text"), [(0.0123, "12.3 ms"), (0.9996, "1 s"), (74.36, "74.4 s"), (575.2, "575 s")])
def test_durations_have_three_digits_and_no_break(value, text):
    assert tables.seconds(value) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_page_without_a_run_names_the_command(tmp_path):
    page = report.page(tmp_path)
    assert "Not measured yet. `make bench`" in page
    assert "GPU figures are still to be measured" in page
    assert "still to be made, on a quiet machine: `python -m benchmarks.real_size`" in page


def test_memory_peak_sees_momentary_allocations():
    with MemoryPeak() as peak:
        block = bytearray(b"x") * 80_000_000
        del block
    assert peak.above > 6e7


@pytest.mark.parametrize(("name", "d", "L"), [("gpt2-small", 768, 12), ("pythia-410m", 1024, 24)])
def test_shapes_are_the_real_ones(name, d, L):
    config = shapes.SHAPES[name].config()
    assert (config.hidden_size, config.num_hidden_layers) == (d, L)


def test_llama_shape_is_that_of_llama_3_8b():
    config = shapes.llama3_8b()
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (4096, 32, 14336)
    assert (config.num_attention_heads, config.num_key_value_heads, config.vocab_size) == (32, 8, 128256)


def test_number_columns_align_right_and_words_left():
    rows = [("a-1", tables.seconds(0.02), "-0.02", "at most 3", "1: 2 s, 4: 8 s"), ("b", "", "1e3", "not", "")]
    assert tables.table("v | w | x | y | z", rows).splitlines()[1] == "| --- | ---: | ---: | --- | --- |"


def test_small_numbers_use_unbroken_powers_of_ten():
    assert tables.power(1e-5).replace(tables.NB, " ") == "1 × 10⁻⁵"
    assert tables.power(2.0834e-12, 3).replace(tables.NB, " ") == "2.08 × 10⁻¹²"
    assert tables.power(0) == "0" and " " not in tables.power(3e-7)
