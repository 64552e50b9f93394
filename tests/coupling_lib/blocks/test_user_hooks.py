"""What others put on a block (hooks, a forward, parametrisations) is differentiated with it, or refused in a line."""

import copy
from contextlib import ExitStack
from functools import cache

import pytest
import tiny
import torch
from reference import as_leaf, brute_force_jacobian, outputs, relative_error
from refusals import refused
from torch import Tensor, nn
from torch.nn.utils import parametrize

import coupling_lib as cl
from coupling_lib.blocks.makeup import is_bare, modifications, replaced_forward
from coupling_lib.errors import UnsupportedModelError, UntrustworthyResultError

IDS, LAST = torch.arange(3, 12)[None], 8
MODULES = (
    *("mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.act_fn", "mlp", "input_layernorm", ""),
    *("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn"),
)


def ablated(y: Tensor) -> Tensor:
    direction = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(y)
    direction = direction / direction.norm()
    return y - (y @ direction)[..., None] * direction


KINDS = {
    "halved": lambda y: y / 2,
    "zeroed": lambda y: 0 * y,
    "ablated": ablated,
    "rectified": torch.relu,
    "squared": lambda y: y.square(),
    "another token added": lambda y: y + y[:, :1].tanh(),
    "one position": lambda y: torch.cat([y[:, :5], 2 * y[:, 5:6], y[:, 6:]], dim=1),
}


def hook(change):
    """A forward hook that changes what a module gives, the first of several if it gives several."""

    def apply(module, args, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return apply


def wide_llama(width: int) -> nn.Module:
    """Three blocks whose layers are wide enough, from 512 on, that rows of their weights are taken."""
    hf = tiny.llama(hidden_size=width, intermediate_size=2 * width, vocab_size=32)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.ndim == 2:
                weight.add_(torch.randn(weight.shape, generator=generator) / 2 / weight.shape[1] ** 0.5)
    return hf


MODELS = {width: wide_llama(width) for width in (64, 512)}


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("width", MODELS)
def test_forward_hook_on_any_module_is_differentiated(width, name, kind):
    model, reference = wrapped(width)
    u = torch.randn(width, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    with ExitStack() as hooks:
        for each in (model.hf, reference):
            module = each.model.layers[1].get_submodule(name)
            hooks.callback(module.register_forward_hook(hook(KINDS[kind])).remove)
        trace, wanted = cl.trace(model, IDS), products(reference, u)
        for start in (LAST, 5, 2):
            if not wanted[start].any():
                with pytest.raises(UntrustworthyResultError, match="is zero"):
                    trace.jacobian(1, start, LAST).T @ u.float()
            else:
                assert relative_error(trace.jacobian(1, start, LAST).T @ u.float(), wanted[start]) < 1e-5
    route = "sequence" if kind == "another token added" else "attention"
    assert trace.routes == ("attention", route, "attention")


@pytest.mark.parametrize("before", [True, False], ids=["before wrapping", "after wrapping"])
@pytest.mark.parametrize("width", MODELS)
def test_hooks_before_and_after_wrapping_are_differentiated(width, before):
    def given_less(module, args, kwargs):
        return tuple(x / 3 for x in args), kwargs

    def put(hf):
        block = hf.model.layers[1]
        block.mlp.down_proj.register_forward_pre_hook(given_less, with_kwargs=True)
        block.mlp.gate_proj.register_forward_hook(lambda module, args, kwargs, y: 2 * y, with_kwargs=True)
        block.self_attn.o_proj.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))

    hf = copy.deepcopy(MODELS[width])
    reference = copy.deepcopy(hf).double()
    put(reference)
    if before:
        put(hf)
    model = cl.wrap_model(hf)
    if not before:
        put(hf)
    u = torch.randn(width, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    J = cl.trace(model, IDS).jacobian(1).dense()
    assert relative_error(u.float() @ J, products(reference, u)[LAST]) < 1e-5


def test_hook_on_a_block_is_part_of_it():
    hf = tiny.llama()
    model = cl.wrap_model(hf)
    hf.model.layers[1].register_forward_pre_hook(lambda module, args: (1.5 * args[0], *args[1:]))
    hf.model.layers[2].register_forward_hook(hook(lambda y: y + y.square()))
    trace, wide = cl.trace(model, IDS), copy.deepcopy(hf).double()
    for block in (1, 2):
        wanted = brute_force_jacobian(wide, wide.model.layers[block], {"input_ids": IDS}, LAST, LAST)
        assert relative_error(trace.jacobian(block).dense(), wanted) < 1e-5
    states = wide(input_ids=IDS, output_hidden_states=True).hidden_states
    assert relative_error(trace.hidden[2], states[2][0]) < 1e-5


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "nf4"])
def test_jacobian_of_zeros_is_refused_in_every_precision(tmp_path, precision):
    tiny.save_llama(tmp_path)
    model = cl.load_model(tmp_path, precision=precision)
    plain = cl.trace(model, IDS).jacobian(1).dense()
    model.hf.model.layers[1].mlp.register_forward_hook(hook(lambda y: 0 * y))
    model.hf.model.layers[1].self_attn.register_forward_hook(hook(lambda y: 0 * y))
    assert plain.norm() > 0.1
    refused(UntrustworthyResultError, "is zero", cl.trace(model, IDS).jacobian(1).dense)


@pytest.mark.parametrize("after", [True, False])
def test_replaced_forward_is_differentiated(after):
    hf = tiny.llama()
    model = cl.wrap_model(hf) if after else None
    layer = hf.model.layers[1].mlp.down_proj
    layer.forward = lambda x: nn.functional.linear(x, layer.weight).tanh()
    trace, block = cl.trace(model or cl.wrap_model(hf), IDS), copy.deepcopy(MODELS[64]).model.layers[1]
    assert replaced_forward(layer) is not None and not is_bare(layer) and is_bare(block.mlp.down_proj)
    wanted = brute_force_jacobian(hf, hf.model.layers[1], {"input_ids": IDS}, LAST, LAST)
    assert relative_error(trace.jacobian(1).dense(), wanted) < 1e-5


def test_replaced_forward_is_refused_in_bfloat16(tmp_path):
    tiny.save_llama(tmp_path)
    model = cl.load_model(tmp_path, precision="bfloat16")
    layer = model.hf.model.layers[1].mlp.down_proj
    layer.forward = lambda x: nn.functional.linear(x, layer.weight).tanh()
    refused(UnsupportedModelError, "'mlp.down_proj' has a forward of your own, which .* float32", cl.trace, model, IDS)


@pytest.mark.parametrize("width", MODELS)
def test_parametrised_weight_is_differentiated(width):
    class Halved(nn.Module):
        def forward(self, weight):
            return weight / 2

    hf = copy.deepcopy(MODELS[width])
    model = cl.wrap_model(hf)
    parametrize.register_parametrization(hf.model.layers[1].mlp.down_proj, "weight", Halved())
    reference, u = copy.deepcopy(hf).double(), torch.ones(width, dtype=torch.float64)
    found = cl.trace(model, IDS).jacobian(1).T @ u.float()
    assert relative_error(found, products(reference, u)[LAST]) < 1e-5


def test_hook_changed_since_the_trace_is_refused():
    hf = tiny.llama()
    model = cl.wrap_model(hf)
    trace = cl.trace(model, IDS)
    handle = hf.model.layers[1].mlp.up_proj.register_forward_hook(hook(lambda y: y / 2))
    assert refused(UntrustworthyResultError, "", trace.jacobian(1).dense) == (
        "'LlamaForCausalLM', block 1: a hook or a forward of your own was added or removed since the trace "
        "('mlp.up_proj' carries one); trace again"
    )
    again = cl.trace(model, IDS)
    handle.remove()
    refused(UntrustworthyResultError, "none of its modules carries one", again.jacobian(1).dense)
    assert torch.equal(cl.trace(model, IDS).jacobian(1).dense(), trace.jacobian(1).dense())


def raising(y):
    raise ValueError("no such direction")


@pytest.mark.parametrize(
    ("change", "message"),
    [(raising, "ValueError: no such direction"), (lambda y: y[..., :-1], "RuntimeError: The size")],
)
def test_failing_hook_is_named_in_the_error(change, message):
    hf = tiny.llama()
    model = cl.wrap_model(hf)
    hf.model.layers[1].mlp.down_proj.register_forward_hook(hook(change))
    line = refused(UnsupportedModelError, "", cl.trace, model, IDS)
    assert "failed while 'model.layers.1.mlp.down_proj' carried a hook or a forward of your own" in line
    assert message in line and "\n" not in line


def test_global_hooks_count_and_those_of_transformers_not():
    hf = tiny.llama()
    model = cl.wrap_model(hf)
    hf(input_ids=IDS, output_hidden_states=True, output_attentions=True)
    assert modifications(hf.model.layers[0]) == () and cl.trace(model, IDS).jacobian(0).dense().shape == (32, 32)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        assert not is_bare(hf.lm_head)
    finally:
        handle.remove()
    assert is_bare(hf.lm_head)


def test_backward_hooks_and_random_hooks_are_refused():
    hf = tiny.llama()
    model = cl.wrap_model(hf)
    generator = torch.Generator().manual_seed(7)
    noisy = hook(lambda y: y + torch.randn(y.shape, generator=generator))
    hf.model.layers[1].mlp.register_forward_hook(noisy)
    refused(UnsupportedModelError, "block 2 .* 'mlp' carries a hook .* differs from the model", cl.trace, model, IDS)
    hf = tiny.llama()
    model = cl.wrap_model(hf)
    hf.model.layers[1].mlp.up_proj.register_full_backward_hook(lambda module, given, gave: given)
    refused(UnsupportedModelError, "'mlp.up_proj' of a block carries a backward hook", cl.trace, model, IDS)
