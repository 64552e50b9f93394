"""Jacobians written down are those that the library pulls back, and the page says what the rule makes of both."""

import json

import pytest
import torch

import coupling_lib as cl
from benchmarks import closed_form, other_tables
from benchmarks.shapes import model_from, prompt_ids
from benchmarks.stages import in_float64


@pytest.mark.parametrize(("shape", "within"), [("tiny gpt2", 1e-14), ("small", 1e-6)])  # Llama's angles are float32
def test_closed_form_jacobians_match_autograd_in_float64(shape, within):
    model = in_float64(model_from(closed_form.SHAPES[shape](), shape))
    traced = cl.trace(model, prompt_ids(model, 11))
    wanted = torch.stack([traced.jacobian(block).dense() for block in range(model.n_blocks)])
    found = closed_form.jacobians(traced)
    assert found.shape == (model.n_blocks, model.d_model, model.d_model)
    assert float((found - wanted).norm() / wanted.norm()) < within


def test_closed_form_is_timed_and_judged_by_rule(tmp_path):
    closed_form.main(["--shapes", "tiny gpt2", "--rounds", "1", "--out", str(tmp_path / "closed_form.json")])
    record = json.loads((tmp_path / "closed_form.json").read_text(encoding="utf-8"))
    (case,) = record["cases"]
    # Attention's last layer, the MLP's last one, and the product of both.
    assert case["flop"]["written"] == 2 * 96 * 96 * (96 + 4 * 96 + 96) < case["flop"]["pulled"]
    assert case["gain"]["total"] == case["seconds"]["pulled"]["total"] / case["seconds"]["written"]["total"] > 0
    assert 0 < case["difference"] < 1e-5
    case |= {"gain": {"jacobians": 1.4, "total": 1.15}, "difference": 2e-7}
    page = "\n".join(other_tables.closed_form_table(record))
    assert "| 1.40× | 1.15× | 2\xa0×\xa010⁻⁷ |" in page and "It is not taken." in page
    case["gain"]["total"] = 1.25
    assert "widths. It is taken." in "\n".join(other_tables.closed_form_table(record))
