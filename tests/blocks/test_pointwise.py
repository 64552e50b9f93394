"""Activations whose derivative is kept: against autograd in float64, batched, and only where they are meant."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from coupling_lib.blocks.pointwise import linearised


@pytest.mark.parametrize(
    "name", ["gelu", "gelu_new", "quick_gelu", "silu", "relu", "relu2", "tanh", "gelu_pytorch_tanh"]
)
def test_cotangents_are_pulled_back_as_by_autograd(name):
    block = nn.Sequential(nn.Linear(5, 7), ACT2FN[name], nn.Linear(7, 5)).double()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda x: block(x).sum(0), x)

    def rows(cotangents: torch.Tensor) -> torch.Tensor:
        point = x.clone().requires_grad_(True)
        with linearised(block):
            y = block(point)
        assert torch.equal(y, block(point))
        pull = torch.vmap(lambda u: torch.autograd.grad(y, point, u, retain_graph=True)[0])
        return pull(cotangents)

    found = rows(torch.eye(5, dtype=torch.float64)[:, None].expand(5, 3, 5))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_an_activation_takes_one_product_per_cotangent():
    block = nn.Sequential(nn.Linear(4, 4), ACT2FN["gelu_new"])
    point = torch.randn(4, requires_grad=True)
    with linearised(block):
        y = block(point)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(y, point, torch.ones(4))
    names = [event.name for event in profile.events()]
    assert names.count("aten::mul") == 1 and "aten::tanh_backward" not in names


def test_modules_are_as_before_outside_and_parameters_are_left_alone():
    block = nn.Sequential(nn.PReLU(), nn.SiLU())
    with linearised(block):
        assert [len(module._forward_hooks) for module in block] == [0, 1]
    assert not block[1]._forward_hooks
