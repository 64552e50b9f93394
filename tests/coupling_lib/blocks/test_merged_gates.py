"""Layers of a gated MLP that are one layer for a token: what is merged, what is left, and what it saves."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.activations import ACT2FN

import coupling_lib as cl
from coupling_lib.blocks import rules
from coupling_lib.blocks.rules import linearised, merging_gates, picking_rows

D, WIDTH = 6, 9


pytestmark = pytest.mark.usefixtures("small_layers_count_as_large")


class Gated(nn.Module):
    """down(meet(gate(x), up(x'), x)), where x' is x unless `before` changes it."""

    def __init__(self, meet, before=None):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up, self.down = nn.Linear(D, WIDTH), nn.Linear(D, WIDTH), nn.Linear(WIDTH, D)
        self.meet, self.before, self.act = meet, before or (lambda x: x), ACT2FN["gelu_new"]
        self.double().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.meet(self, self.gate(x), self.up(self.before(x)), x))


MERGED = {
    "an activation of the library": lambda self, a, b, x: self.act(a) * b,
    "an activation of its own": lambda self, a, b, x: silu(a * 0.7).clamp(max=0.4) * (b + 1),
    "three meetings": lambda self, a, b, x: (a + b).tanh() * a + torch.arange(WIDTH),
}
LEFT = {
    "entries that meet others": lambda self, a, b, x: a.softmax(-1) * b,
    "entries in another place": lambda self, a, b, x: a * b.flip(-1),
    "another way from the input": lambda self, a, b, x: self.act(a) * b * x.sum(),
    "one layer alone": lambda self, a, b, x: self.act(a),
}


def evaluated(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    point = x.clone().requires_grad_(True)
    with linearised(module), picking_rows(module), merging_gates(module):
        y = module(point * 1.0)
    assert torch.equal(y, module(point * 1.0))
    return point, y


def products(module: nn.Module, x: Tensor) -> int:
    """Form the Jacobian of a module of one token, compare it with autograd's, and count its products with weights."""
    point, y = evaluated(module, x)
    with FlopCounterMode(display=False) as counter:
        units = torch.eye(D, dtype=x.dtype).view(D, *y.shape)
        J = torch.vmap(lambda u: torch.autograd.grad(y, point, u, retain_graph=True)[0])(units)
    wanted = torch.autograd.functional.jacobian(module, x)
    torch.testing.assert_close(J.reshape(D, D), wanted.reshape(D, D), rtol=0, atol=1e-14)
    # Rows of `down` are taken as they are.
    whole, part = divmod(counter.get_total_flops(), 2 * D * WIDTH * D)
    assert part == 0
    return whole


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 1, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("kind", MERGED | LEFT)
def test_only_gated_layers_are_merged_into_one(x, kind):
    one = kind in MERGED or kind == "one layer alone"
    assert products(Gated((MERGED | LEFT)[kind]), x) == (1 if one else 2)


def test_overflowing_gates_are_not_merged(x):
    module = Gated(MERGED["an activation of the library"])
    with linearised(module), picking_rows(module), merging_gates(module):
        assert not module((1e200 * x).requires_grad_(True) * 1.0).isfinite().all()


def test_layers_with_different_inputs_are_not_merged(x):
    assert products(Gated(MERGED["an activation of the library"], before=torch.sin), x) == 2
    module = Gated(MERGED["an activation of the library"])
    both = torch.cat([x, 2 * x], dim=1)
    point, y = evaluated(module, both)
    found = torch.stack([torch.autograd.grad(y[0, 1, i], point, retain_graph=True)[0][0] for i in range(D)])
    for token, wanted in ((0, torch.zeros(D, D)), (1, torch.autograd.functional.jacobian(module, both)[0, 1, :, 0, 1])):
        torch.testing.assert_close(found[:, token], wanted.to(found), rtol=0, atol=1e-14)


def test_merged_layer_supports_second_derivatives(x):
    module = Gated(MERGED["an activation of the library"])
    point, y = evaluated(module, x)
    u, v = torch.zeros_like(y, requires_grad=True), torch.arange(D, dtype=torch.float64).view_as(x)
    (g,) = torch.autograd.grad(y, point, u, create_graph=True)
    wanted = torch.autograd.functional.jacobian(module, x).reshape(D, D) @ v.flatten()
    torch.testing.assert_close(torch.autograd.grad(g, u, v)[0].flatten(), wanted)
    with torch.no_grad(), linearised(module), picking_rows(module), merging_gates(module):
        y = module(x)
    assert torch.equal(y, module(x)) and not any(part._forward_pre_hooks for part in module.modules())


def test_merging_saves_one_product_in_a_llama(monkeypatch):
    monkeypatch.undo()
    d, width, heads, n = 512, 1024, 8, 9
    config = LlamaConfig(
        hidden_size=d, intermediate_size=width, num_attention_heads=heads, num_key_value_heads=heads // 2,
        num_hidden_layers=1, vocab_size=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = cl.wrap_model(LlamaForCausalLM(config), name="wide")
    trace = cl.trace(model, torch.arange(n)[None])

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            trace.jacobian(0, n - 1).dense()
        return counter.get_total_flops()

    merged = flops()
    monkeypatch.setattr(rules, "_merged", lambda h, made: None)
    assert flops() - merged == 2 * d * width * d
