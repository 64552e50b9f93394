"""The benchmark at real size, at a tiny one. Nothing here asserts a duration."""

import json

import pytest

from benchmarks import machine, other_tables, real_size, report, shapes, unformed


@pytest.mark.thorough
def test_notebook_runs_on_a_checkpoint_written_for_it(tmp_path):
    out, config = tmp_path / "new" / "real_size.json", shapes.small_llama(blocks=3)
    words = "--shape small --blocks 3 --precision bfloat16 --threads 1 --size 256 --out"
    real_size.main([*words.split(), str(out)])
    record = json.loads(out.read_text(encoding="utf-8"))
    d, inner, heads, groups = 256, 896, 8, 2
    assert record["model"]["d"] == config.hidden_size == d and record["model"]["L"] == 3
    assert record["formed"] is True and record["parameters"] == {"precision": "bfloat16"}
    assert record["model"]["bytes"] > 2 * 3 * d * inner * 3
    assert record["peak_resident"] > record["peak_own"] > 10**8 and record["seconds"] > 0
    assert record["fraction_of_peak"] == pytest.approx(record["flop"] / record["seconds"] / record["matrix_peak"])
    weights = 2 * d * d + 2 * d * d * groups // heads + 3 * d * inner
    assert record["flop"] == 2 * 3 * 2 * d * weights


@pytest.mark.thorough
def test_a_notebook_that_fails_says_why():
    with pytest.raises(RuntimeError, match="papermill ended with 1.*precision"):
        real_size.run(shapes.small_llama(blocks=2), {"precision": "none"}, 1, 64)


def test_the_book_shows_the_record_or_the_command(tmp_path):
    record = {
        "machine": machine.facts(),
        "model": {"d": 4096, "L": 32, "weights": "random, bfloat16", "bytes": 16_060_000_000},
        "parameters": {"precision": "nf4"}, "formed": True,
        "seconds": 750.0, "peak_resident": 9_870_000_000, "peak_own": 6_010_000_000,
        "flop": 4.35e13, "matrix_peak": 1.14e11, "fraction_of_peak": 0.513,
    }  # fmt: skip
    unformed = record | {"formed": False}

    def page(*records):
        (tmp_path / "latest_real_size.json").write_text(json.dumps(records), encoding="utf-8")
        return report.page(tmp_path)

    memory = "6.0 GB of its own; 9.9 GB with mapped files"
    row = f"| d = 4096, L = 32, 16.1 GB on disk | nf4 | 12.5\xa0min | {memory} | 58 of 114 GFLOP/s |"
    missing = "In float32 it was not measured here; `python -m benchmarks.real_size --precision float32` does it."
    alone = page(record)
    assert row in alone and missing in alone and "In nf4 it was" not in alone and "did not form them" not in alone
    assert "The run in nf4 multiplied with Jacobians" in page(record, unformed)
    case = {"d": 4096, "k": 10, "L": 32, "seconds": {"formed": 7.5, "products": 3.75}}
    text = other_tables.of_products([unformed], {"cases": [case]})
    assert text.endswith("takes 4 minutes longer for both networks.\n")


def test_products_and_forming_are_compared_in_one_run(tmp_path):
    unformed.main(["--quick", "--rounds", "1", "--out", str(tmp_path / "new" / "unformed.json")])
    record = json.loads((tmp_path / "new" / "unformed.json").read_text(encoding="utf-8"))
    (case,) = record["cases"]
    seconds = case["seconds"]
    assert (case["shape"], case["d"], case["L"], case["k"], case["prefers"]) == ("small", 256, 6, 4, False)
    assert case["ratio"] == seconds["products"] / seconds["formed"] > 0
    assert case["ratio_apart"] == seconds["products"] / seconds["apart"] > 0 and 0 < case["difference"] < 1e-4
    assert len(case["columns"]) == 2 and all(4 <= columns <= 256 for columns in case["columns"])
    seconds = {"apart": 18.0, "formed": 12.0, "products": 5.4}
    case |= {"columns": [128, 192], "seconds": seconds, "ratio": 0.45, "ratio_apart": 0.3, "difference": 2e-5}
    page = "\n".join(other_tables.unformed_tables(record))
    assert "| small | 256 | 4 | 12\xa0s | 5.4\xa0s | 0.45 | forming | 128 to 192 | 2\xa0×\xa010⁻⁵ |" in page
    assert "figure | goal" not in page
    case |= {"shape": "llama3-8b", "k": 10}
    page = "\n".join(other_tables.unformed_tables(record))
    assert "| products over forming, d = 4096, K = 10 | at most 0.3 | 0.45 | not reached |" in page
    assert "as when the goal was set | at most 0.3 | 0.3 | reached |" in page
