"""The GPU benchmark's arithmetics, on the CPU: the split is exact to float32, and no GPU figure is claimed."""

import json

import pytest
import torch

import coupling_lib as cl
from benchmarks import gpu, report, shapes, split


def test_three_pieces_sum_to_the_float32_number():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 1000)
    pieces = split.pieces(x)
    assert pieces.dtype == torch.bfloat16
    assert ((pieces.double().sum(0) - x.double()) / x.double()).abs().max() < 2**-23


def test_split_product_is_as_accurate_as_float32():
    generator = torch.Generator().manual_seed(0)
    x, W = torch.randn(5, 7, 300, generator=generator), torch.randn(300, 200, generator=generator).bfloat16()
    exact = x.double() @ W.double()
    assert (split.product(x, W) - exact).norm() / exact.norm() < 1e-6


def test_split_jacobian_equals_that_of_float64_weights():
    model = shapes.model_from(shapes.small_llama(blocks=3), "small", dtype=torch.bfloat16)
    trace, blocks = cl.trace(model, shapes.prompt_ids(model, 9)), model.blocks.modules
    for block in (0, 2):
        exact = split.double_jacobian(trace.calls[block], blocks[block], 8)
        for found in (split.split_jacobian(trace.calls[block], blocks[block], 8), trace.jacobian(block).dense()):
            assert (found - exact).norm() / exact.norm() < 2e-6
    # The copy shares its weights with the block, which stays as it was.
    weight = blocks[0].mlp.down_proj.weight
    assert split.split_copy(blocks[0]).mlp.down_proj.matrix.data_ptr() == weight.data_ptr()
    assert weight is blocks[0].mlp.down_proj.weight and weight.dtype == torch.bfloat16


@pytest.mark.thorough
def test_rehearsal_on_the_cpu_claims_no_gpu_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main(["--rounds", "1", "--out", str(tmp_path / "latest_gpu.json")])
    run = json.loads((tmp_path / "latest_gpu.json").read_text(encoding="utf-8"))
    prompts, low_bit = run["prompts"], run["nf4"]["prompts"]
    assert run["gpu_measured"] is False and {p["dtype"] for p in run["released"]} == {"bfloat16", "float32"}
    used = [[p["arithmetic"] for p in some] for some in (prompts, low_bit)]
    assert used == [["float32", "three bfloat16 products"], ["float32"]]
    assert all(p["metric_difference_from_float32"] < 1e-4 for p in prompts)
    assert all(p["jacobian_error"] < 1e-5 for p in prompts + low_bit)
    assert "no GPU figure was measured" in capsys.readouterr().out
    assert "GPU figures are still to be measured" in report.page(tmp_path)
