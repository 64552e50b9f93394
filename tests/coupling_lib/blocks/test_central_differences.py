"""A derivative that autograd has, and the forward does not, is refused; every plain model agrees."""

import types
import warnings

import pytest
import tiny
import torch
import transformers
from families import Family, each_family
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


class Surrogate(torch.autograd.Function):
    """The sign, pulled back as if it were a hyperbolic tangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Doubled(torch.autograd.Function):
    """The identity, pulled back twice as large."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Act(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


class OtherSiLU(nn.SiLU):
    """Passes for SiLU by its class, and mixes features."""

    def forward(self, x):
        return functional.silu(x) * x.mean(-1, keepdim=True)


class Rounding(nn.SiLU):
    def forward(self, x):
        return straight_through(functional.silu(x))


def straight_through(x: Tensor) -> Tensor:
    return x + ((x * 64).round() / 64 - x).detach()


@torch.no_grad()
def without_graph(x: Tensor) -> Tensor:
    return functional.silu(x)


def doubled_gradient(module, args, output):
    if output.requires_grad:
        output.register_hook(lambda g: 2 * g)


def hooked(name: str):
    return lambda hf: hf.model.get_submodule(name).register_forward_hook(doubled_gradient)


def no_grad_forward(hf) -> None:
    mlp = hf.model.layers[1].mlp
    plain = mlp.forward
    mlp.forward = lambda x: torch.no_grad()(plain)(x)


def no_grad_method(hf) -> None:
    mlp = hf.model.layers[1].mlp

    def forward(self, x):
        with torch.no_grad():
            return type(self).forward(self, x)

    mlp.forward = types.MethodType(forward, mlp)


def other_with_a_graph(hf) -> None:
    mlp = hf.model.layers[1].mlp
    plain = mlp.forward
    mlp.forward = lambda x: plain(x) * (2 - torch.is_grad_enabled())


def acting(act: nn.Module, *blocks: int):
    def change(hf) -> None:
        for block in blocks or range(3):
            hf.model.layers[block].mlp.act_fn = act

    return change


WRONG = {
    "an MLP under no_grad, by a closure": no_grad_forward,
    "an MLP under no_grad, by a method": no_grad_method,
    "an MLP that is another one with a graph": other_with_a_graph,
    "an activation under no_grad": acting(Act(without_graph)),
    "a surrogate of the sign": acting(Act(Surrogate.apply)),
    "a doubled backward in one block": acting(Act(lambda x: Doubled.apply(functional.silu(x))), 2),
    "straight-through rounding": acting(Act(straight_through)),
    "a subclass of SiLU that rounds": acting(Rounding()),
    "a detached half": acting(Act(lambda x: functional.silu(x).detach() / 2 + functional.silu(x) / 2)),
    "a cast to half precision": acting(Act(lambda x: functional.silu(x).to(torch.bfloat16).to(x.dtype))),
    "a hook on gradients inside a forward hook": hooked("layers.1.mlp"),
    "a hook on gradients of the attention": hooked("layers.0.self_attn.o_proj"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_derivative_is_refused_at_and_after_load(kind):
    hf = tiny.llama()
    WRONG[kind](hf)
    refused(UnsupportedModelError, OTHER, cl.wrap_model, hf)
    # The same, put there after the model was loaded.
    model = cl.wrap_model(tiny.llama())
    WRONG[kind](model.hf)
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


def independent(trace: cl.Trace, block: int) -> Tensor:
    """Differences of the last token's state after a block, in float64, one coordinate at a time."""
    call, module = trace.calls[block], trace.model.blocks.modules[block]
    x, columns = call.input.double(), []
    for unit in torch.eye(trace.d_model, dtype=torch.float64):
        step = torch.zeros_like(x)
        step[0, -1] = 1e-5 * unit
        with torch.no_grad():
            columns.append((call.replay(module, x + step) - call.replay(module, x - step))[0, -1] / 2e-5)
    return torch.stack(columns, dim=1) - torch.eye(trace.d_model, dtype=torch.float64)


def gpt2() -> transformers.GPT2LMHeadModel:
    """A model that computes in float64 throughout."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0)
    config = transformers.GPT2Config(**sizes, activation_function="silu", initializer_range=0.2)
    return transformers.GPT2LMHeadModel(config).double().eval()


def assert_exact(trace: cl.Trace, *blocks: int) -> None:
    for block in blocks:
        J = independent(trace, block)
        assert (trace.jacobian(block).dense() - J).norm() < 1e-6 * J.norm()


def test_exchanged_modules_and_settings_are_differentiated_exactly():
    hf = gpt2()
    hf.transformer.h[1].mlp.act = OtherSiLU()
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


@pytest.mark.parametrize("kind", ["MLP", "activation", "linear layer"])
def test_exchanged_forward_of_a_class_is_differentiated(kind, monkeypatch):
    model = cl.wrap_model(gpt2())
    before, mlp = cl.trace(model, IDS), model.hf.transformer.h[0].mlp
    home = type({"MLP": mlp, "activation": mlp.act, "linear layer": mlp.c_fc}[kind])
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
    model = cl.wrap_model(hf)
    probe = _Probe(model.hf, "", model.blocks)
    firsts = [members[0] for members in probe.kinds]
    return [
        central_differences.compare(probe.reference[each], model.blocks.modules[each], probe.default) for each in firsts
    ]


@each_family()
def test_autograd_agrees_with_differences_in_every_family(family: Family):
    with warnings.catch_warnings(action="ignore"):
        found = compared(family.build().float())
    assert all(each.dtype == torch.float64 and each.error < 1e-6 for each in found), found


def as_scaling(module, args, output):
    return output * 1.5 + 0.1


# A rectifier has a kink, a mixture of experts jumps, and so have narrow weights a staircase in the model alone.
PLAIN = {
    "a wide rectifier": lambda: tiny.llama(hidden_act="relu", intermediate_size=2048),
    "a squared rectifier": lambda: tiny.llama(hidden_act="relu2"),
    "a bounded rectifier": lambda: tiny.llama(hidden_act="relu6"),
    "bfloat16": lambda: tiny.llama().bfloat16(),
    "float16": lambda: tiny.llama().half(),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_models_are_neither_refused_nor_warned_of(kind):
    with warnings.catch_warnings(action="error"):
        model = cl.wrap_model(PLAIN[kind]())
        for block in model.blocks.modules:
            block.mlp.up_proj.register_forward_hook(as_scaling)
            block.register_forward_hook(lambda module, args, output: output + 1)
        assert cl.trace(model, IDS).jacobian(1).dense().isfinite().all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "nf4", "int8"])
@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
def test_shipped_models_are_neither_refused_nor_warned_of(name, precision):
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        cl.load_model(name, precision=precision)


class Bent(nn.Module):
    """Adds a rectifier that has its kink at one state exactly."""

    def __init__(self, kink: Tensor):
        super().__init__()
        self.kink = nn.Parameter(kink)

    def forward(self, hidden_states):
        return hidden_states + (hidden_states - self.kink).relu()


def test_kinks_are_warned_of(monkeypatch):
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    block = Bent(x).requires_grad_(False)
    with pytest.warns(RuntimeWarning, match="has kinks or jumps"):
        central_differences.check(BlockCall(block, x, block(x), "hidden_states", {}), block, "eager", "a block")
    with warnings.catch_warnings(action="error"):
        x = x + 1e-3
        central_differences.check(BlockCall(block, x, block(x), "hidden_states", {}), block, "eager", "a block")
    monkeypatch.setattr(central_differences, "_fits", lambda block: False)
    (found,) = compared(tiny.llama())
    assert (found.dtype, found.agrees) == (torch.float32, True)
    hf = tiny.llama(initializer_range=0.1)
    no_grad_forward(hf)
    refused(UnsupportedModelError, OTHER, cl.wrap_model, hf)
