"""The benchmark runs, and what it writes is complete. Nothing here asserts a duration."""

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
    return json.loads(forked.run(code, os.environ, cwd=paths.ROOT).stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[pytest.param("quick", marks=pytest.mark.thorough)])
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("speed") / "new" / "speed.json"
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(child, "record", in_a_fork)
        speed.main(["--quick", "--out", str(out)])
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.fixture
def case(run):
    (case,) = run["cases"]
    return case


def test_quick_run_compares_times_values_and_operations(case):
    theirs, ours = case["seconds"]["released"], case["seconds"]["ours"]
    assert case["seconds"].keys() == {"released", "ours"} and ours.keys() == {*stages.STAGES, "total"}
    assert case["ratio"] == pytest.approx({stage: theirs[stage] / ours[stage] for stage in ours})
    assert theirs.keys() == ours.keys() == case["ratio"].keys()
    assert (case["d"], case["L"], case["n"], case["basis"]) == (96, 4, 16, "all 4 blocks")
    d, n, head, weights = 96, 16, 32, 12 * 96**2
    # Evaluated once, with attention's derivative, and pulled back d times. Layers of this width do not look out for
    # unit vectors.
    assert case["flop_per_block"] == 2 * (weights + 2 * n * d + n * d * head) + 2 * (weights + 2 * d * head) * d
    assert case["fraction_of_peak"] == pytest.approx(case["jacobian_flop_per_second"] / case["matrix_peak"])
    assert case["agreement"]["pairs"] == 6 and case["agreement"]["metric_relative"] < 1e-5


def test_quick_run_repeats_with_memory_kept(run, case):
    kept = case["memory_kept"]
    totals = [kept["seconds"][method]["total"] for method in ("released", "ours")]
    assert kept["basis"] == "scaled from 3 of 4 blocks" and kept["ratio"]["total"] == pytest.approx(
        totals[0] / totals[1]
    )
    (table,) = (part for part in report.speed_page(run).split("### ") if part.startswith("Whole prompt, with memory"))
    row = [cell.strip() for cell in table.splitlines()[-2].split("|")[1:-1]]
    assert [row[3], row[5]] == [tables.seconds(total) for total in totals]
    assert row[6:] == [f"{case['ratio']['total']:.1f}×", f"{kept['ratio']['total']:.1f}×"]


def test_child_takes_memory_settings_and_raises_on_failure(tmp_path, monkeypatch):
    package = tmp_path / "benchmarks"
    package.mkdir()
    programs = {
        "__init__": "", "failing": "print('{}')\nraise SystemExit(1)",
        "environment": "import json, os\nprint('said on the way')\nprint(json.dumps(dict(os.environ)))",
    }  # fmt: skip
    for name, program in programs.items():
        (package / f"{name}.py").write_text(program, encoding="utf-8")
    monkeypatch.setattr(child.paths, "ROOT", tmp_path)
    assert child.MEMORY_KEPT.items() <= child.record("environment", memory_kept=True).items()
    assert not child.MEMORY_KEPT.keys() & child.record("environment").keys()
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


def test_page_without_a_run_names_the_command(tmp_path):
    page = report.page(tmp_path)
    assert "Not measured yet. `make bench`" in page and "GPU figures are still to be measured" in page
    assert "still to be made, on a quiet machine: `python -m benchmarks.real_size`" in page


def test_page_shows_the_run_date_and_hardware(run, tmp_path):
    (tmp_path / "latest.json").write_text(json.dumps(run), encoding="utf-8")
    page = report.page(tmp_path)
    assert run["machine"]["date"] in page and run["machine"]["cpu"] in page
    assert re.search(r"\| tiny \| 96 \| 4 \|", page) and "Not measured yet" not in page


def test_ceiling_is_released_time_over_peak_time(case):
    released, peak = case["seconds"]["released"], case["matrix_peak"]
    floor = case["flop_per_block"] * case["L"] / peak
    *_, ceiling, ratio, part = report._roofline_row(case)
    for text, wanted in ((ceiling, released["total"] / floor), (ratio, case["ratio"]["total"])):
        assert float(text.rstrip("×")) == pytest.approx(wanted, rel=0.02, abs=0.06)
    assert floor < case["seconds"]["ours"]["jacobians"]
    # Every cotangent of the released method passes every weight at every token.
    done = 4 * 96 * 16 * 2 * (12 * 96**2) / released["jacobians"]
    assert float(part.rstrip("%")) / 100 == pytest.approx(done / peak, abs=0.006)


def test_numbers_are_short_unbroken_and_aligned_right():
    durations = [tables.seconds(value) for value in (0.0123, 0.9996, 74.36, 575.2)]
    powers = [tables.power(1e-5), tables.power(2.0834e-12, 3), tables.power(3e-7), tables.power(0)]
    assert durations == ["12.3\xa0ms", "1\xa0s", "74.4\xa0s", "575\xa0s"]
    assert powers == ["1\xa0×\xa010⁻⁵", "2.08\xa0×\xa010⁻¹²", "3\xa0×\xa010⁻⁷", "0"]
    rows = [("a-1", tables.seconds(0.02), "-0.02", "at most 3", "1: 2 s, 4: 8 s"), ("b", "", "1e3", "not", "")]
    assert tables.table("v | w | x | y | z", rows).splitlines()[1] == "| --- | ---: | ---: | --- | --- |"


def test_memory_peak_sees_momentary_allocations():
    with MemoryPeak() as peak:
        block = bytearray(b"x") * 80_000_000
        del block
    assert peak.above > 6e7


def test_shapes_are_the_real_ones():
    shown = ("hidden_size", "num_hidden_layers")
    for name, sizes in {"gpt2-small": (768, 12), "pythia-410m": (1024, 24)}.items():
        assert tuple(getattr(shapes.SHAPES[name].config(), size) for size in shown) == sizes
    llama = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336}
    llama |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    assert {size: getattr(shapes.llama3_8b(), size) for size in llama} == llama
