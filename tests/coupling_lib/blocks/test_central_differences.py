"""A derivative that autograd has, and the forward does not, is refused; every plain model agrees."""

import types
import warnings

import pytest
import tiny
import torch
from families import Family, each_family, named
from reference import central_difference, relative_error
from refusals import refused
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as of_torch

import coupling_lib as cl
from coupling_lib.blocks import central_differences
from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.validate import _Probe
from coupling_lib.errors import UnsupportedModelError, UntrustworthyResultError

IDS = torch.arange(3, 12)[None]
OTHER = "autograd's derivative is not the derivative of what it computes"


class Doubled(torch.autograd.Function):
    """The identity, pulled back twice as large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def straight_through(x: Tensor) -> Tensor:
    return x + ((x * 64).round() / 64 - x).detach()


class Act(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(functional.silu(x))


class OtherSiLU(Act, nn.SiLU):
    """Passes for SiLU by its class."""


def acting(act: nn.Module, *blocks: int):
    def change(hf) -> None:
        for block in blocks or range(3):
            hf.model.layers[block].mlp.act_fn = act

    return change


def with_forward(made):
    """Replace an MLP's forward by what is made of the MLP and of its forward."""

    def change(hf) -> None:
        mlp = hf.model.layers[1].mlp
        mlp.forward = made(mlp, mlp.forward)

    return change


def hooked(name: str):
    def doubled_gradient(module, args, output):
        if output.requires_grad:
            output.register_hook(lambda g: 2 * g)

    return lambda hf: hf.model.get_submodule(name).register_forward_hook(doubled_gradient)


no_grad_forward = with_forward(lambda mlp, plain: lambda x: torch.no_grad()(plain)(x))
WRONG = {
    "an MLP under no_grad, by a closure": no_grad_forward,
    "an MLP under no_grad, by a method": with_forward(
        lambda mlp, plain: types.MethodType(torch.no_grad()(type(mlp).forward), mlp)
    ),
    "an MLP that is another one with a graph": with_forward(
        lambda mlp, plain: lambda x: plain(x) * (2 - torch.is_grad_enabled())
    ),
    "an activation under no_grad": acting(Act(torch.no_grad()(torch.clone))),
    "a surrogate of the sign": acting(Act(lambda y: y.tanh() + (y.sign() - y.tanh()).detach())),
    "a doubled backward in one block": acting(Act(Doubled.apply), 2),
    "straight-through rounding": acting(Act(straight_through)),
    "a subclass of SiLU that rounds": acting(OtherSiLU(straight_through)),
    "a detached half": acting(Act(lambda y: y.detach() / 2 + y / 2)),
    "a cast to half precision": acting(Act(lambda y: y.to(torch.bfloat16).to(y.dtype))),
    "a hook on gradients inside a forward hook": hooked("layers.1.mlp"),
    "a hook on gradients of the attention": hooked("layers.0.self_attn.o_proj"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_wrong_derivative_is_refused_at_and_after_load(change):
    change(hf := tiny.llama())
    refused(UnsupportedModelError, OTHER, cl.wrap_model, hf)
    model = cl.wrap_model(tiny.llama())
    change(model.hf)
    refused(UnsupportedModelError, OTHER, cl.trace, model, IDS)


@pytest.mark.parametrize("register", ["register_module_full_backward_hook", "register_module_full_backward_pre_hook"])
def test_global_backward_hook_is_refused(register):
    model = cl.wrap_model(tiny.llama())
    trace = cl.trace(model, IDS)
    hook = getattr(of_torch, register)(lambda module, *gradients: tuple(3 * g for g in gradients[0] if g is not None))
    try:
        refused(UntrustworthyResultError, "since the trace", trace.jacobian(1).dense)
        refused(UnsupportedModelError, "global backward hook", cl.trace, model, IDS)
        refused(UnsupportedModelError, "global backward hook", cl.wrap_model, tiny.llama())
    finally:
        hook.remove()
    assert trace.jacobian(1).dense().isfinite().all()


def gpt2():
    """A model that computes in float64 throughout."""
    return Family("gpt2", "GPT2Config", dict(named("gpt2").arguments, activation_function="silu")).build()


def assert_exact(trace: cl.Trace, *blocks: int) -> None:
    """Compare with differences of the last token's state after a block, in float64, one coordinate at a time."""
    model, given, units = trace.model, {"input_ids": IDS}, torch.eye(trace.d_model, dtype=torch.float64)
    for block in blocks:
        place = model.hf, model.blocks.modules[block], given, trace.n_tokens - 1
        J = torch.stack([central_difference(*place, unit, 1e-6) - unit for unit in units], dim=1)
        assert relative_error(trace.jacobian(block).dense(), J) < 1e-6


def test_exchanged_modules_and_settings_are_differentiated_exactly():
    hf = gpt2()
    hf.transformer.h[1].mlp.act = OtherSiLU(lambda y: y * y.mean(-1, keepdim=True))
    assert_exact(cl.trace(cl.wrap_model(hf), IDS), 0, 1)
    model = cl.wrap_model(gpt2())
    trace = cl.trace(model, IDS)
    model.hf.transformer.h[1].attn.scaling *= 3
    refused(UntrustworthyResultError, "since the trace", trace.jacobian(1).dense)
    model.hf.transformer.h[2].mlp.act = nn.ReLU().eval()
    assert_exact(cl.trace(model, IDS), 1, 2)


@pytest.mark.parametrize("name", ["silu", "layer_norm"])
def test_exchanged_torch_function_is_noticed_after_load(name, monkeypatch):
    model = cl.wrap_model(gpt2())
    trace, plain = cl.trace(model, IDS), getattr(functional, name)
    monkeypatch.setattr(functional, name, lambda *given, **more: plain(*given, **more) ** 2)
    refused(UntrustworthyResultError, "since the trace", trace.jacobian(1).dense)
    assert_exact(cl.trace(model, IDS), 1)
    monkeypatch.setattr(functional, name, lambda *given, **more: Doubled.apply(plain(*given, **more)))
    refused(UnsupportedModelError, f"was changed since.*{OTHER}", cl.trace, model, IDS)


@pytest.mark.parametrize("part", ["", "act", "c_fc"], ids=["MLP", "activation", "linear layer"])
def test_exchanged_forward_of_a_class_is_differentiated(part, monkeypatch):
    model = cl.wrap_model(gpt2())
    before, home = cl.trace(model, IDS), type(model.hf.transformer.h[0].mlp.get_submodule(part))
    plain = home.forward
    monkeypatch.setattr(home, "forward", lambda self, x: plain(self, x).softmax(-1))
    trace = cl.trace(model, IDS)
    assert not torch.equal(trace.hidden, before.hidden)
    assert_exact(trace, 1)
    monkeypatch.setattr(home, "forward", lambda self, x: straight_through(plain(self, x)))
    refused(UnsupportedModelError, OTHER, cl.trace, model, IDS)
    monkeypatch.undo()
    assert torch.equal(cl.trace(model, IDS).hidden, before.hidden)


def compared(hf) -> list[central_differences.Comparison]:
    """Compare one block of each kind, as at load."""
    blocks = cl.wrap_model(hf).blocks
    probe = _Probe(hf, "", blocks)
    firsts = [members[0] for members in probe.kinds]
    return [central_differences.compare(probe.reference[n], blocks.modules[n], probe.default) for n in firsts]


@each_family()
def test_autograd_agrees_with_differences_in_every_family(family: Family):
    with warnings.catch_warnings(action="ignore"):
        found = compared(family.build().float())
    assert all(each.dtype == torch.float64 and each.error < 1e-6 for each in found), found


# A rectifier has a kink, a mixture of experts jumps, and so have narrow weights a staircase in the model alone.
PLAIN = {
    "a wide rectifier": lambda: tiny.llama(hidden_act="relu", intermediate_size=2048),
    "a squared rectifier": lambda: tiny.llama(hidden_act="relu2"),
    "a bounded rectifier": lambda: tiny.llama(hidden_act="relu6"),
    "bfloat16": lambda: tiny.llama().bfloat16(),
    "float16": lambda: tiny.llama().half(),
}


@pytest.mark.parametrize("made", PLAIN.values(), ids=PLAIN)
def test_plain_models_are_neither_refused_nor_warned_of(made):
    with warnings.catch_warnings(action="error"):
        model = cl.wrap_model(made())
        for block in model.blocks.modules:
            block.mlp.up_proj.register_forward_hook(lambda module, args, output: output * 1.5 + 0.1)
            block.register_forward_hook(lambda module, args, output: output + 1)
        assert cl.trace(model, IDS).jacobian(1).dense().isfinite().all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "nf4", "int8"])
@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
def test_shipped_models_are_neither_refused_nor_warned_of(name, precision):
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        cl.load_model(name, precision=precision)


def check_bent(x: Tensor, kink: Tensor) -> None:
    """Check a block that adds a rectifier with its kink at one state exactly."""
    block = nn.Identity()
    block.forward = lambda hidden_states: hidden_states + (hidden_states - kink).relu()
    central_differences.check(BlockCall(block, x, block(x), "hidden_states", {}), block, "eager", "a block")


def test_kinks_are_warned_of():
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    with pytest.warns(RuntimeWarning, match="has kinks or jumps"):
        check_bent(x, x)
    with warnings.catch_warnings(action="error"):
        check_bent(x + 1e-3, x)


def test_large_blocks_are_compared_in_float32(monkeypatch):
    monkeypatch.setattr(central_differences, "_fits", lambda block: False)
    (found,) = compared(tiny.llama())
    assert (found.dtype, found.agrees) == (torch.float32, True)
    no_grad_forward(hf := tiny.llama(initializer_range=0.1))
    refused(UnsupportedModelError, OTHER, cl.wrap_model, hf)
