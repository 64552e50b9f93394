"""What others put on a block (hooks, a forward, parametrisations) is differentiated with it, or refused in a line."""

import copy
from contextlib import ExitStack
from functools import cache

import pytest
import tiny
import torch
from reference import as_leaf, outputs, relative_error
from refusals import refused
from torch import Tensor, nn
from torch.nn.utils import parametrize

import coupling_lib as cl
from coupling_lib.blocks.makeup import is_bare, makeups, modifications, replaced_forward
from coupling_lib.errors import UnsupportedModelError, UntrustworthyResultError

IDS, LAST = torch.arange(3, 12)[None], 8
MODULES = (
    *("mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.act_fn", "mlp", "input_layernorm", ""),
    *("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn"),
)


def ablated(y: Tensor) -> Tensor:
    direction = nn.functional.normalize(torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(4)), dim=0)
    return y - (y @ direction.to(y))[..., None] * direction.to(y)


KINDS = {
    "halved": lambda y: y / 2,
    "zeroed": lambda y: 0 * y,
    "ablated": ablated,
    "rectified": torch.relu,
    "squared": lambda y: y.square(),
    "another token added": lambda y: y + y[:, :1].tanh(),
    "one position": lambda y: torch.cat([y[:, :5], 2 * y[:, 5:6], y[:, 6:]], dim=1),
}


def put_hook(hf: nn.Module, name: str, change):
    """Put a forward hook on a part of a block that changes what it gives, the first of several if it gives several."""

    def apply(module, args, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hf.model.layers[1].get_submodule(name).register_forward_hook(apply)


def wide_llama(width: int) -> nn.Module:
    """Three blocks whose layers are wide enough, from 512 on, that rows of their weights are taken."""
    sizes = dict(hidden_size=width, intermediate_size=2 * width, vocab_size=32)
    return tiny.llama(**sizes, initializer_range=0.5 / width**0.5)


MODELS = {width: wide_llama(width) for width in (64, 512)}
U = {width: torch.randn(width, generator=torch.Generator().manual_seed(6), dtype=torch.float64) for width in MODELS}


@cache
def wrapped(width: int) -> tuple[cl.Model, nn.Module]:
    """A model and its copy in float64, for tests that take away again what they put on them."""
    return cl.wrap_model(copy.deepcopy(MODELS[width])), copy.deepcopy(MODELS[width]).double()


def products(hf: nn.Module, u: Tensor) -> Tensor:
    """Pull a cotangent at the last token back through the second block, in plain autograd: a row for every token."""
    block, leaf = hf.model.layers[1], []
    with torch.enable_grad():
        (y,) = outputs(hf, {"input_ids": IDS}, block, lambda x: as_leaf(x, leaf), [block])
        (pulled,) = torch.autograd.grad(y[0, LAST], leaf[0], u, materialize_grads=True, allow_unused=True)
    pulled[0, LAST] -= u
    return pulled[0]


HOOKS = [(width, name, kind) for width in MODELS for name in MODULES for kind in KINDS]
# Every kind on one module and every module with one kind, where rows are taken; all of them otherwise.
CROSSED = [hook for hook in HOOKS if hook[0] == 64 or hook[1] == "mlp.down_proj" or hook[2] == "ablated"]


@pytest.mark.parametrize(
    ("width", "name", "kind"),
    [pytest.param(*hook, marks=() if hook in CROSSED else pytest.mark.thorough) for hook in HOOKS],
)
def test_forward_hook_on_any_module_is_differentiated(width, name, kind):
    model, reference = wrapped(width)
    with ExitStack() as hooks:
        for each in (model.hf, reference):
            hooks.callback(put_hook(each, name, KINDS[kind]).remove)
        trace, wanted = cl.trace(model, IDS), products(reference, U[width])
        for start in (LAST, 5, 2):
            transposed = trace.jacobian(1, start, LAST).T
            if wanted[start].any():
                assert relative_error(transposed @ U[width].float(), wanted[start]) < 1e-5
            else:
                refused(UntrustworthyResultError, "is zero", transposed.__matmul__, U[width].float())
    route = "sequence" if kind == "another token added" else "attention"
    assert trace.routes == ("attention", route, "attention")


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


def with_hooks(block: nn.Module) -> None:
    block.mlp.down_proj.register_forward_pre_hook(
        lambda module, args, kwargs: ((args[0] / 3,), kwargs), with_kwargs=True
    )
    block.mlp.gate_proj.register_forward_hook(lambda module, args, kwargs, y: 2 * y, with_kwargs=True)
    block.self_attn.o_proj.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))


def with_forward(block: nn.Module) -> None:
    layer = block.mlp.down_proj
    layer.forward = lambda x: nn.functional.linear(x, layer.weight).tanh()


def with_parametrisation(block: nn.Module) -> None:
    parametrize.register_parametrization(block.mlp.down_proj, "weight", Halved())


@pytest.mark.parametrize("before", [True, False], ids=["before wrapping", "after wrapping"])
@pytest.mark.parametrize("put", [with_hooks, with_forward, with_parametrisation])
@pytest.mark.parametrize("width", MODELS)
def test_modifications_before_and_after_wrapping_are_differentiated(width, put, before):
    hf, reference = (copy.deepcopy(MODELS[width]) for _ in range(2))
    put(reference.double().model.layers[1])
    if before:
        put(hf.model.layers[1])
    model = cl.wrap_model(hf)
    if not before:
        put(hf.model.layers[1])
    wanted = products(reference, U[width])[LAST]
    assert relative_error(cl.trace(model, IDS).jacobian(1).T @ U[width].float(), wanted) < 1e-5
    assert relative_error(U[width].float() @ cl.trace(model, IDS).jacobian(1).dense(), wanted) < 1e-5


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "nf4"])
def test_jacobian_of_zeros_is_refused_in_every_precision(tmp_path, precision):
    tiny.save_llama(tmp_path)
    model = cl.load_model(tmp_path, precision=precision)
    assert cl.trace(model, IDS).jacobian(1).dense().norm() > 0.1
    for part in ("mlp", "self_attn"):
        put_hook(model.hf, part, KINDS["zeroed"])
    refused(UntrustworthyResultError, "is zero", cl.trace(model, IDS).jacobian(1).dense)


def test_hook_changed_since_the_trace_is_refused():
    model = cl.wrap_model(tiny.llama())
    trace = cl.trace(model, IDS)
    handle = put_hook(model.hf, "mlp.up_proj", KINDS["halved"])
    assert refused(UntrustworthyResultError, "", trace.jacobian(1).dense) == (
        "'LlamaForCausalLM', block 1: a hook or a forward of your own was added or removed since the trace "
        "('mlp.up_proj' carries one); trace again"
    )
    again = cl.trace(model, IDS)
    handle.remove()
    refused(UntrustworthyResultError, "none of its modules carries one", again.jacobian(1).dense)
    assert torch.equal(cl.trace(model, IDS).jacobian(1).dense(), trace.jacobian(1).dense())


NOISE = torch.Generator().manual_seed(7)
FAILED = "failed while 'model.layers.1.mlp.down_proj' carried a hook or a forward of your own"
REFUSED = {
    "raises": ("mlp.down_proj", lambda y: 1 // 0, f"{FAILED}.*ZeroDivisionError: integer division"),
    "another shape": ("mlp.down_proj", lambda y: y[..., :-1], f"{FAILED}.*RuntimeError: The size"),
    "random": (
        "mlp",
        lambda y: y + torch.randn(y.shape, generator=NOISE),
        "block 2 .* 'mlp' carries a hook .* differs from the model",
    ),
}


@pytest.mark.parametrize(("name", "change", "message"), REFUSED.values(), ids=REFUSED)
def test_failing_and_random_hooks_are_refused_by_name(name, change, message):
    model = cl.wrap_model(tiny.llama())
    put_hook(model.hf, name, change)
    refused(UnsupportedModelError, message, cl.trace, model, IDS)


def test_backward_hooks_and_bfloat16_forwards_are_refused():
    model, narrow = cl.wrap_model(tiny.llama()), cl.wrap_model(tiny.llama().bfloat16())
    model.hf.model.layers[1].mlp.up_proj.register_full_backward_hook(lambda module, given, gave: given)
    refused(UnsupportedModelError, "'mlp.up_proj' of a block carries a backward hook", cl.trace, model, IDS)
    with_forward(narrow.hf.model.layers[1])
    refused(UnsupportedModelError, "'mlp.down_proj' has a forward of your own, which .* float32", cl.trace, narrow, IDS)


def test_global_hooks_count_and_those_of_transformers_not():
    model = cl.wrap_model(hf := tiny.llama())
    hf(input_ids=IDS, output_hidden_states=True, output_attentions=True)
    assert modifications(hf.model.layers[0]) == () and cl.trace(model, IDS).jacobian(0).dense().shape == (32, 32)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        assert not is_bare(hf.lm_head)
    finally:
        handle.remove()
    assert is_bare(hf.lm_head)
    with_forward(hf.model.layers[1])
    layer, other = (hf.model.layers[number].mlp.down_proj for number in (1, 2))
    assert replaced_forward(layer) is not None and not is_bare(layer) and is_bare(other)


# Before, after, and whether that is the same block: a state that a pass leaves does not count.
SETTINGS = [
    (None, torch.ones(2), True),
    (None, 2.0, False),
    (None, torch.sin, False),
    (2.0, None, False),
    (torch.cos, torch.sin, False),
    ("relu", "gelu", False),
]


@pytest.mark.parametrize(("before", "after", "same"), SETTINGS)
def test_makeup_changes_with_settings_but_not_states(before, after, same):
    block = nn.Identity()
    block.kept = before
    first = makeups([block])
    block.kept = after
    assert (makeups([block]) == first) is same
