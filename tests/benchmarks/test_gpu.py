"""The GPU benchmark's arithmetics, on the CPU: the split is exact to float32, and no GPU figure is claimed."""

from __future__ import annotations

import json

import pytest
import torch

import coupling_lib as cl
from benchmarks import gpu, report, shapes, split


@pytest.fixture(scope="module")
def model():
    return shapes.model_from(shapes.small_llama(blocks=3), "small", dtype=torch.bfloat16)


def test_three_pieces_sum_to_the_float32_number():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 1000)
    error = (split.pieces(x).double().sum(0) - x.double()).abs() / x.double().abs()
    assert split.pieces(x).dtype == torch.bfloat16
    assert error.max() < 2**-23


def test_split_product_is_as_accurate_as_float32():
    generator = torch.Generator().manual_seed(0)
    x, W = torch.randn(5, 7, 300, generator=generator), torch.randn(300, 200, generator=generator).bfloat16()
    exact = x.double() @ W.double()
    assert (split.product(x, W) - exact).norm() / exact.norm() < 1e-6


def test_split_jacobian_equals_that_of_float64_weights(model):
    ids = shapes.prompt_ids(model, 9)
    trace = cl.trace(model, ids)
    for block in (0, 2):
        found = split.split_jacobian(trace.calls[block], model.blocks.modules[block], 8)
        exact = split.double_jacobian(trace.calls[block], model.blocks.modules[block], 8)
        ours = trace.jacobian(block).dense()
        assert (found - exact).norm() / exact.norm() < 2e-6
        assert (ours - exact).norm() / exact.norm() < 2e-6


def test_split_copy_shares_weights_without_changing_the_block(model):
    block = model.blocks.modules[0]
    duplicate = split.split_copy(block)
    linear = block.mlp.down_proj
    assert duplicate.mlp.down_proj.matrix.data_ptr() == linear.weight.data_ptr()
    assert linear.weight.dtype == torch.bfloat16


@pytest.mark.thorough
def test_rehearsal_on_the_cpu_claims_no_gpu_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "latest_gpu.json"
    gpu.main(["--rounds", "1", "--out", str(out)])
    run = json.loads(out.read_text(encoding="utf-8"))
    assert run["gpu_measured"] is False
    assert [p["arithmetic"] for p in run["prompts"]] == ["float32", "three bfloat16 products"]
    assert all(p["metric_difference_from_float32"] < 1e-4 for p in run["prompts"])
    assert [p["arithmetic"] for p in run["nf4"]["prompts"]] == ["float32"]
    assert all(p["jacobian_error"] < 1e-5 for p in run["prompts"] + run["nf4"]["prompts"])
    assert {p["dtype"] for p in run["released"]} == {"bfloat16", "float32"}
    assert "no GPU figure was measured" in capsys.readouterr().out
    assert "GPU figures are still to be measured" in report.page(tmp_path)
