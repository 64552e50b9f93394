"""The benchmark at real size, at a tiny one. Nothing here asserts a duration."""

from __future__ import annotations

import json

import pytest

from benchmarks import real_size, shapes


def test_the_notebook_runs_on_a_checkpoint_that_was_written_for_it(tmp_path):
    out = tmp_path / "new" / "real_size.json"
    words = ["--shape", "small", "--blocks", "3", "--precision", "bfloat16", "--threads", "1", "--size", "256"]
    real_size.main([*words, "--out", str(out)])
    record = json.loads(out.read_text(encoding="utf-8"))
    config = shapes.small_llama(blocks=3)
    assert record["model"]["d"] == config.hidden_size == 256 and record["model"]["L"] == 3
    assert record["parameters"] == {"precision": "bfloat16"} and record["model"]["bytes"] > 2 * 3 * 256 * 896 * 3
    assert record["peak_resident"] > 10**8 and record["seconds"] > 0
    assert record["fraction_of_peak"] == pytest.approx(record["flop"] / record["seconds"] / record["matrix_peak"])
    d, inner, heads, groups = 256, 896, 8, 2
    weights = 2 * d * d + 2 * d * d * groups // heads + 3 * d * inner
    assert record["flop"] == 2 * 3 * 2 * d * weights


def test_a_notebook_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="papermill ended with 1.*precision"):
        real_size.run(shapes.small_llama(blocks=2), {"precision": "none"}, 1, 64)
