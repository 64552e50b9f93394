"""A lens is compared with passes backwards in one run, counted and timed."""

import json

import pytest

from benchmarks import lens, other_tables
from companion.tables.lenses import operations
from coupling_lib.models.load import load_model


def test_lens_and_backward_pass_are_counted_and_timed(tmp_path):
    lens.main(["--quick", "--rounds", "1", "--out", str(tmp_path / "lens.json")])
    record = json.loads((tmp_path / "lens.json").read_text(encoding="utf-8"))
    (case,) = record["cases"]
    counted = operations(load_model("nano-neox"), 9)
    assert (case["shape"], case["d"], case["L"], case["n"]) == ("nano-neox", 96, 12, 9)
    assert case["flop"] == {way: counted[f"operations-{way}"] for way in ("own", "fit")}
    assert case["ratio"]["flop"] == pytest.approx(case["flop"]["fit"] / case["flop"]["own"])
    assert case["ratio"]["seconds"] == case["seconds"]["fit"] / case["seconds"]["own"] > 0
    case |= {"flop": {"own": 147e9, "fit": 17e12}, "seconds": {"own": 1.6, "fit": 125.0}}
    case["ratio"] = {"flop": 115.9, "seconds": 78.1}
    page = "\n".join(other_tables.lens_table(record))
    assert "| nano-neox | 96 | 9 | 0.15 | 17 | 116× | 1.6\xa0s | 125\xa0s | 78× |" in page
