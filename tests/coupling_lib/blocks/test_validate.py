"""What is checked when a model is loaded."""

import sys

import pytest
import tiny
import torch
import transformers
from families import each_family, loaded, named
from reference import brute_force_jacobian, relative_error
from refusals import refused
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

import coupling_lib as cl
from coupling_lib.blocks import agreement, blockmap, route_choice, storage
from coupling_lib.blocks import record as blocks
from coupling_lib.blocks import validate as checks
from coupling_lib.blocks.model_config import random_input
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError


class Fed(GPT2Block):
    """Reads something else than what the block before it wrote."""

    def __call__(self, x, *args, **kwargs):
        return super().__call__(x + 1.0, *args, **kwargs)


def forgetting(block):
    """Add a memory of its own to a block."""
    block.calls = 0

    def forget(module, args, output):
        module.calls += 1
        return output * (1 + 0.1 * (module.calls > 3))

    block.register_forward_hook(forget)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda hf: hf.train(), "two answers in two runs"),
        (
            lambda hf: setattr(hf.transformer.h[1], "__class__", Fed),
            "block 2 of GPT2LMHeadModel .* does not read what block 1 wrote",
        ),
        (lambda hf: forgetting(hf.transformer.h[1]), "block 2 .* depends on more than its residual stream"),
    ],
    ids=["training", "another input", "memory"],
)
def test_model_without_a_residual_stream_is_refused(change, message):
    hf = named("gpt2").build()
    change(hf)
    refused(UnsupportedModelError, message, checks.validate, hf)


def test_block_that_fails_a_route_takes_the_next(monkeypatch):
    """The self-check at load: a block whose MLP looks at its neighbours is not a function of frozen keys and values."""

    class Mixing(nn.Module):
        def __init__(self, mlp):
            super().__init__()
            self.mlp = mlp

        def forward(self, x):
            return self.mlp(x + x.mean(dim=1, keepdim=True))

    hf = named("llama").build()
    hf.model.layers[2].mlp = Mixing(hf.model.layers[2].mlp)
    model = cl.wrap_model(hf)
    assert model.blocks.routes == ("attention", "attention", "sequence")
    trace = cl.trace(model, torch.arange(3, 12)[None])
    wanted = brute_force_jacobian(hf, hf.model.layers[2], trace.inputs, 2, 5)
    assert relative_error(trace.jacobian(2, 2, 5).dense(), wanted) < 1e-6
    hf = named("mamba2").build()
    steps = "mamba2_selective_state_update"
    module = sys.modules[type(hf).__module__]
    one = getattr(module, steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, steps, lambda *given, **named: one(*given, **named) + 1)
        assert checks.validate(hf).route == "sequence"
    assert checks.validate(hf).route == "state"
    # The mistake of the fused kernels, put in on purpose: all keys are visible to every query.
    # Where keys end at the token that is read, as on the route by a cache, nothing has to be hidden from it.
    rows = blockmap._rows
    monkeypatch.setattr(blockmap, "_rows", lambda name, *rest: None if name == "attention_mask" else rows(name, *rest))
    assert checks.validate(named("llama").build()).route == "cache"


@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda block: setattr(block.mlp, "act_fn", nn.GELU()),
        lambda block: setattr(block.self_attn, "scaling", 0.3),
        lambda block: setattr(block.mlp, "forward", lambda x: 0 * x),
        lambda block: block.mlp.register_forward_hook(lambda module, args, output: 2 * output),
        lambda block: setattr(block.mlp, "up_proj", nn.Linear(tiny.WIDTH, 64)),
    ],
    ids=["alike", "activation", "scaling", "forward", "hook", "layer"],
)
def test_one_block_of_each_kind_is_compared(change, monkeypatch):
    hf, seen, compare = tiny.llama(num_hidden_layers=8), [], agreement.route_error
    note = lambda call, *rest: seen.append(call.block) or compare(call, *rest)  # ruff: ignore[lambda-assignment]
    monkeypatch.setattr(route_choice, "route_error", note)
    if change:
        change(hf.model.layers[2])
    assert checks.validate(hf.eval()).route == "attention"
    # The first, the middle and the last of those alike, and what differs.
    assert [list(hf.model.layers).index(block) for block in seen] == [0, 4, 7, 2][: 4 if change else 3]


@each_family()
def test_route_error_is_small_in_every_family(family):
    model = loaded(family)
    hf, found = model.hf, model.blocks
    given = random_input(hf, torch.Generator().manual_seed(3), n_tokens=9)
    calls = blocks.record(hf, found, {hf.main_input_name: given})
    for call, module, route in zip(calls, found.modules, found.routes, strict=True):
        assert agreement.route_error(call, call, module, route, found.attention) < 1e-4


def test_block_without_an_autograd_derivative_is_refused():
    class Overwriting(nn.Module):
        def forward(self, x):
            y = x.exp()
            z = y * y
            y.add_(1)
            return z

    hf = named("mamba2-bounded").build()
    mixer = hf.backbone.layers[1].mixer
    mixer.out_proj = nn.Sequential(mixer.out_proj, Overwriting())
    line = refused(UnsupportedModelError, "please report it$", checks.validate, hf)
    assert line.startswith(
        "block 2 of Mamba2ForCausalLM (model type 'mamba2') has no Jacobian that agrees with that of the whole "
        "sequence: the sequence route cannot be differentiated (one of the"
    )


def test_nan_route_errors_are_not_taken_for_agreement(monkeypatch):
    hf = named("llama").build()
    found = checks.validate(hf)
    call = blocks.record(hf, found, {"input_ids": torch.arange(3, 12)[None]})[0]
    compare = agreement._row_and_column

    def spoilt(call, block, route, *given, **named):
        row, column, y = compare(call, block, route, *given, **named)
        return (row, column * float("nan") if route == "attention" else column, y)

    monkeypatch.setattr(agreement, "_row_and_column", spoilt)
    assert not agreement.route_error(call, call, found.modules[0], "attention", found.attention) <= 1e-3
    monkeypatch.setattr(route_choice, "route_error", lambda call, came, block, route, default: 0.5)
    assert refused(UnsupportedModelError, "", checks.validate, named("llama").build()) == (
        "block 1 of LlamaForCausalLM (model type 'llama') has no Jacobian that agrees with that of the whole sequence: "
        "the attention route gives a Jacobian that differs by 5.0e-01; "
        "the cache route gives a Jacobian that differs by 5.0e-01; "
        "the sequence route gives a Jacobian that differs by 5.0e-01; "
        "this family cannot be measured, please report it"
    )


def test_experts_are_set_to_run_eagerly():
    """The grouped kernel rejects float64 and has no forward mode; `load_model` and `wrap_model` switch it off."""
    hf = named("mixtral").build()
    hf.set_experts_implementation("grouped_mm")
    assert cl.wrap_model(hf).hf.config._experts_implementation == "eager"
    torch.manual_seed(0)
    config = transformers.BertConfig(**dict(tiny.STACK, num_hidden_layers=6), vocab_size=50)
    found = checks.validate(transformers.BertModel(config).eval())
    assert list(found.post_norm) == list(range(6)) and len(set(found.post_norm.values())) == 1
    assert found.norm_position == "post"


UP, EMBEDDING = "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"
NAN, INF = float("nan"), float("inf")


def spoilt(bad: dict[str, list[float]]) -> nn.Module:
    """A Llama with the first entries of some weights replaced."""
    hf = tiny.llama()
    with torch.no_grad():
        for name, values in bad.items():
            hf.get_parameter(name).view(-1)[: len(values)] = torch.tensor(values)
    return hf


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "nf4"])
def test_nan_weights_are_named_at_load(tmp_path, stored):
    folder = tmp_path / "m"
    spoilt({UP: [NAN] * 3}).save_pretrained(folder)
    line = refused(ModelUnavailableError, f"weights {UP} hold .*NaN of 2,048", cl.load_model, folder, precision=stored)
    # A quantised group of 64 has one scale, and shares its NaN.
    assert stored == "nf4" or line == (
        f"model {str(folder)!r}: weights {UP} hold 3 NaN of 2,048 entries; fetch it again or choose another revision"
    )


FURTHER = rf"{EMBEDDING} hold 8,960 infinite of 8,960 entries \(and .*other tensors are not finite\); fetch it again"


def test_non_finite_weights_are_counted_by_kind(monkeypatch):
    for bad, message in [
        ({UP: [NAN, -INF]}, f"'mine': weights {UP} hold 1 NaN and 1 infinite of 2,048 entries;"),
        ({EMBEDDING: [INF] * 8960, UP: [NAN, -INF]}, FURTHER),
    ]:
        refused(ModelUnavailableError, message, cl.wrap_model, spoilt(bad), name="mine")
    for wrong in [0, 3, 5]:
        hf, weight = tiny.llama(num_hidden_layers=8), f"layers.{wrong}.mlp.up_proj.weight"
        with torch.no_grad():
            hf.get_parameter(f"model.{weight}")[0, 0] = NAN
        refused(ModelUnavailableError, f"{weight} hold 1 NaN", checks.validate, hf)
    hf = tiny.llama()
    with torch.no_grad():
        hf.model.layers[1].mlp.up_proj.weight.fill_(3e38)
        hf.model.layers[1].mlp.down_proj.weight.fill_(3e38)
    with pytest.raises(UnsupportedModelError, match="block 2 gives values .* not finite, and all weights are finite"):
        cl.wrap_model(hf, name="mine")
    monkeypatch.setattr(checks, "_weights", lambda *arguments: pytest.fail("weights were read"))
    assert storage.arithmetic(cl.wrap_model(tiny.llama()).hf) == torch.float32
