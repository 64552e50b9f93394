"""Rules of differentiation against autograd: rows read off, activations' kept slopes, layers of a gated MLP merged."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

import coupling_lib as cl
from coupling_lib.blocks import rules
from coupling_lib.blocks.rules import all_rules, linearised, picking_rows

pytestmark = pytest.mark.usefixtures("small_layers_count_as_large")
each_layer = pytest.mark.parametrize("made", [lambda: nn.Linear(6, 5), lambda: Conv1D(5, 6)], ids=["Linear", "Conv1D"])
UNITS = torch.eye(5)
COTANGENTS = {
    "unit vectors in order": UNITS,
    "some of them": UNITS[1:4],
    "in another order": UNITS[[3, 0, 4]],
    "scaled": UNITS * torch.tensor([2.0, -1.0, 0.5, 1.0, 3.0])[:, None],
    "one of them zero": UNITS * torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])[:, None],
    "all zero": torch.zeros(3, 5),
    "full": torch.randn(4, 5, generator=torch.Generator().manual_seed(0)),
    "the last full": torch.cat([UNITS, torch.ones(1, 5)]),
}


def evaluated(module: nn.Module, x: Tensor, rule=all_rules) -> tuple[Tensor, Tensor]:
    """Evaluate a module under a rule, which changes no value."""
    point = x.clone().requires_grad_(True)
    with rule(module):
        y = module(point * 1.0)  # what counts operations does not take a leaf
    assert torch.equal(y, module(point * 1.0))
    return point, y


def pulled(point: Tensor, y: Tensor, cotangents: Tensor) -> Tensor:
    return torch.vmap(lambda u: torch.autograd.grad(y, point, u, retain_graph=True)[0])(cotangents)


def jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """The Jacobian in plain autograd, of all outputs with respect to all inputs."""
    return torch.autograd.functional.jacobian(module, x).reshape(-1, x.numel())


def flops(call, *given) -> int:
    with FlopCounterMode(display=False) as counter:
        call(*given)
    return counter.get_total_flops()


@each_layer
@pytest.mark.parametrize("cotangents", COTANGENTS.values(), ids=COTANGENTS)
def test_picked_rows_are_the_product_with_weights(made, cotangents):
    layer, x = made().requires_grad_(False), torch.ones(6)
    found = pulled(*evaluated(layer, x, picking_rows), cotangents)
    torch.testing.assert_close(found, cotangents @ jacobian(layer, x), rtol=0, atol=1e-6)


@each_layer
def test_nothing_is_multiplied_for_unit_vectors(made):
    point, y = evaluated(made().requires_grad_(False), torch.ones(6), picking_rows)
    assert flops(pulled, point, y, UNITS) == 0
    assert flops(pulled, point, y, COTANGENTS["full"]) == 2 * 4 * 5 * 6


@pytest.mark.parametrize("columns", [2048, 2112, 2050])  # slabs of 256, of 64, and none
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 16, 60, 400])
def test_product_with_large_weights_matches_float64(columns, turned, count):
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(2100, columns, generator=generator)
    W = W.mT.contiguous().mT if turned else W
    rows = torch.randn(count, 2100, generator=generator)
    assert W.numel() >= rules._LARGE and W.is_contiguous() is not turned
    wanted = (rows.double() @ W.double()).float()
    torch.testing.assert_close(rules._multiply(rows, W), wanted, rtol=0, atol=2100**0.5 * 1e-5)


def test_rules_keep_weights_and_add_gradients_that_meet():
    first, second = (nn.Linear(4, 4).requires_grad_(False) for _ in range(2))
    before = first.weight.clone(), second.weight.clone()
    x = torch.ones(4, requires_grad=True)
    with picking_rows(block := nn.ModuleList([first, second])):
        y = block[0](x) + block[1](x)
    torch.testing.assert_close(pulled(x, y, torch.eye(4)), before[0] + before[1])
    assert torch.equal(first.weight, before[0]) and torch.equal(second.weight, before[1])


def test_slopes_are_kept_rather_than_computed_again():
    point, y = evaluated(nn.Sequential(nn.Linear(4, 4), ACT2FN["gelu_new"]), torch.randn(4), linearised)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(y, point, torch.ones(4))
    names = [event.name for event in profile.events()]
    assert names.count("aten::mul") == 2 and "aten::tanh_backward" not in names  # one is that of `evaluated`


class Adapted(nn.Linear):
    """Computes something else."""


def test_rules_apply_to_large_known_layers_only(monkeypatch):
    for rule, block, hooks in [
        (picking_rows, nn.Sequential(Adapted(3, 3), nn.Linear(3, 3), nn.LayerNorm(3)), [0, 1, 0]),
        (linearised, nn.Sequential(nn.PReLU(), nn.SiLU()), [0, 1]),
    ]:
        with rule(block):
            assert [len(module._forward_hooks) for module in block] == hooks
        assert not any(module._forward_hooks for module in block)
    monkeypatch.undo()
    with picking_rows(block := nn.Sequential(nn.Linear(511, 512), nn.Linear(512, 512))):
        assert [len(module._forward_hooks) for module in block] == [0, 1]
    torch.manual_seed(0)
    d, n, head = 384, 9, 64
    config = GPT2Config(n_embd=d, n_layer=1, n_head=6, vocab_size=64, n_positions=32)
    trace = cl.trace(cl.wrap_model(GPT2LMHeadModel(config)), torch.arange(n)[None])
    weights = 12 * d**2
    evaluation = weights + 2 * n * d + n * d * head
    # A cotangent meets two matrices of a head's width, for the queries and for the token's own keys.
    products = (weights - 4 * d**2 + 2 * d * head) * d
    assert flops(cl.block_jacobians, trace, 0, [(8, 8)]) == 2 * evaluation + 2 * products


@pytest.mark.parametrize(
    "name", ["gelu", "gelu_new", "quick_gelu", "silu", "relu", "relu2", "tanh", "gelu_pytorch_tanh"]
)
def test_cotangents_are_pulled_back_as_by_autograd(name):
    block = nn.Sequential(nn.Linear(5, 7), ACT2FN[name], nn.Linear(7, 5)).double()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    units = torch.eye(15, dtype=torch.float64).view(15, 3, 5)
    found = pulled(*evaluated(block, x, linearised), units)
    torch.testing.assert_close(found.view(15, 15), jacobian(block, x), rtol=0, atol=1e-14)


D, WIDTH = 6, 9


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


def activated(self: Gated, a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return self.act(a) * b


# Layers of a token, and the products with weights that their Jacobian takes: one if they are merged.
MEETINGS = {
    "an activation of the library": (1, activated),
    "an activation of its own": (1, lambda self, a, b, x: silu(a * 0.7).clamp(max=0.4) * (b + 1)),
    "three meetings": (1, lambda self, a, b, x: (a + b).tanh() * a + torch.arange(WIDTH)),
    "one layer alone": (1, lambda self, a, b, x: self.act(a)),
    "entries that meet others": (2, lambda self, a, b, x: a.softmax(-1) * b),
    "entries in another place": (2, lambda self, a, b, x: a * b.flip(-1)),
    "another way from the input": (2, lambda self, a, b, x: self.act(a) * b * x.sum()),
    "another input": (2, activated, torch.sin),
}


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 1, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("products", "gated"), [(n, given) for n, *given in MEETINGS.values()], ids=MEETINGS)
def test_only_gated_layers_of_one_input_are_merged(x, products, gated):
    module, units = Gated(*gated), torch.eye(D, dtype=x.dtype).view(D, 1, 1, D)
    point, y = evaluated(module, x)
    torch.testing.assert_close(pulled(point, y, units).view(D, D), jacobian(module, x), rtol=0, atol=1e-14)
    # Rows of `down` are taken as they are.
    assert flops(pulled, point, y, units) == products * 2 * D * WIDTH * D


def test_overflowing_gates_and_several_tokens_are_not_merged(x):
    module = Gated(activated)
    with all_rules(module):
        assert not module((1e200 * x).requires_grad_(True) * 1.0).isfinite().all()
    both = torch.cat([x, 2 * x], dim=1)
    units = torch.eye(2 * D, dtype=x.dtype).view(2 * D, 1, 2, D)
    found = pulled(*evaluated(module, both), units)
    torch.testing.assert_close(found.view(2 * D, 2 * D), jacobian(module, both), rtol=0, atol=1e-14)


@pytest.mark.parametrize("module", [Gated(activated), nn.Linear(D, D).double().requires_grad_(False)])
def test_rules_allow_second_derivatives(x, module):
    point, y = evaluated(module, x)
    u, v = torch.zeros_like(y, requires_grad=True), torch.arange(D, dtype=torch.float64)
    (g,) = torch.autograd.grad(y, point, u, create_graph=True)
    (found,) = torch.autograd.grad(g, u, v.view_as(g))
    torch.testing.assert_close(found.flatten(), jacobian(module, x) @ v)
    with torch.no_grad(), all_rules(module):
        y = module(x)
    assert torch.equal(y, module(x)) and not any(part._forward_pre_hooks for part in module.modules())


def test_merging_saves_one_product_in_a_llama(monkeypatch):
    monkeypatch.undo()
    torch.manual_seed(0)
    d, width = 512, 1024
    sizes = dict(hidden_size=d, intermediate_size=width, num_hidden_layers=1, vocab_size=64)
    config = LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=4)
    trace = cl.trace(cl.wrap_model(LlamaForCausalLM(config)), torch.arange(9)[None])
    merged = flops(lambda: trace.jacobian(0, 8).dense())
    monkeypatch.setattr(rules, "_merged", lambda h, made: None)
    assert flops(lambda: trace.jacobian(0, 8).dense()) - merged == 2 * d * width * d
