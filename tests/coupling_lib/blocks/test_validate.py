"""What is checked when a model is loaded; where its blocks stay on disk, few of them are read, and no fault passes."""

import sys

import pytest
import tiny
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error
from refusals import refused
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

import coupling_lib as cl
from coupling_lib.blocks import agreement, blockmap, offload, placing, record, route_choice, storage, validate
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError, UntrustworthyResultError

IDS = torch.arange(3, 12)[None]
UP, EMBEDDING = "model.layers.{}.mlp.up_proj.weight", "model.embed_tokens.weight"
NAN, INF = float("nan"), float("inf")


def deep(**changes) -> nn.Module:
    """Eight blocks of one kind."""
    return tiny.llama(num_hidden_layers=8, **changes)


def on_disk(hf: nn.Module, folder) -> cl.Model:
    """A model that was saved, loaded with its blocks on disk."""
    hf.save_pretrained(folder)
    return cl.load_model(folder, memory=placing.plan(hf).bytes(torch.float32))


@torch.no_grad()
def spoilt(hf: nn.Module, bad: dict[str, list[float]]) -> nn.Module:
    """A model with the first entries of some weights replaced."""
    for name, values in bad.items():
        hf.get_parameter(name).view(-1)[: len(values)] = torch.tensor(values)
    return hf


class Fed(LlamaDecoderLayer):
    """Reads something else than what the block before it wrote."""

    def __call__(self, x, *args, **kwargs):
        return super().__call__(x + 1.0, *args, **kwargs)


def forget(module, args, output):
    """Make a block depend on how often it was called."""
    module.calls = getattr(module, "calls", 0) + 1
    return output * (1 + 0.1 * (module.calls > 3))


UNSTABLE = {
    "training": (lambda block: block.train(), "block 2 .* two answers in two runs"),
    "another input": (lambda block: setattr(block, "__class__", Fed), "block 2 .* does not read what block 1 wrote"),
    "memory": (lambda block: block.register_forward_hook(forget), "block 2 .* depends on more than its residual str"),
}


@pytest.mark.parametrize(("change", "message"), UNSTABLE.values(), ids=UNSTABLE)
def test_model_without_a_residual_stream_is_refused(change, message):
    hf = tiny.llama(attention_dropout=0.5)
    change(hf.model.layers[1])
    refused(UnsupportedModelError, message, validate.validate, hf)


def test_block_that_mixes_tokens_takes_the_sequence_route(tmp_path, monkeypatch):
    """The self-check at load: a block whose MLP looks at its neighbours is not a function of frozen keys and values."""
    plain = LlamaMLP.forward

    def mixing(module, x):
        return plain(module, x + getattr(module, "mixed_number", 0) * x.mean(dim=1, keepdim=True))

    monkeypatch.setattr(LlamaMLP, "forward", mixing)
    hf = named("llama").build()
    hf.model.layers[2].mlp.mixed_number = 1
    trace = cl.trace(cl.wrap_model(hf), IDS)
    assert trace.routes == ("attention", "attention", "sequence")
    wanted = brute_force_jacobian(hf, hf.model.layers[2], trace.inputs, 2, 5)
    assert relative_error(trace.jacobian(2, 2, 5).dense(), wanted) < 1e-6
    model = on_disk(deep(), tmp_path)
    for wrong in (0, 4, 7):
        for number, block in enumerate(model.blocks.modules):
            block.mlp.mixed_number = float(number == wrong)  # by this name it makes no kind of its own
        routes = ["sequence" if number == wrong else "attention" for number in range(8)]
        assert list(validate.validate(model.hf).routes) == routes


def test_route_that_is_wrong_is_not_taken(monkeypatch):
    hf = named("mamba2").build()
    steps, module = "mamba2_selective_state_update", sys.modules[type(hf).__module__]
    one = getattr(module, steps)
    assert validate.validate(hf).route == "state"
    monkeypatch.setattr(module, steps, lambda *given, **named: one(*given, **named) + 1)
    assert validate.validate(hf).route == "sequence"
    # The mistake of the fused kernels, put in on purpose: all keys are visible to every query.
    # Where keys end at the token that is read, as on the route by a cache, nothing has to be hidden from it.
    rows = blockmap._rows
    monkeypatch.setattr(blockmap, "_rows", lambda name, *rest: None if name == "attention_mask" else rows(name, *rest))
    assert validate.validate(named("llama").build()).route == "cache"


DIFFERENT = {
    "activation": lambda block: setattr(block.mlp, "act_fn", nn.GELU()),
    "scaling": lambda block: setattr(block.self_attn, "scaling", 0.3),
    "forward": lambda block: setattr(block.mlp, "forward", lambda x: 0 * x),
    "hook": lambda block: block.mlp.register_forward_hook(lambda module, args, output: 2 * output),
    "layer": lambda block: setattr(block.mlp, "up_proj", nn.Linear(tiny.WIDTH, 64)),
}


@pytest.mark.parametrize(
    ("change", "also"), [(id, []), *((change, [2]) for change in DIFFERENT.values())], ids=["alike", *DIFFERENT]
)
def test_one_block_of_each_kind_is_compared(change, also, monkeypatch):
    hf, seen, compare = deep(), [], agreement.route_error
    note = lambda call, *rest: seen.append(call.block) or compare(call, *rest)  # ruff: ignore[lambda-assignment]
    monkeypatch.setattr(route_choice, "route_error", note)
    change(hf.model.layers[2])
    assert validate.validate(hf.eval()).route == "attention"
    # The first, the middle and the last of those alike, and what differs.
    assert [list(hf.model.layers).index(block) for block in seen] == [0, 4, 7, *also]


def test_experts_are_set_to_run_eagerly():
    """The grouped kernel rejects float64 and has no forward mode."""
    (hf := named("mixtral").build()).set_experts_implementation("grouped_mm")
    assert cl.wrap_model(hf).hf.config._experts_implementation == "eager"


def test_blocks_of_a_kind_share_their_norms():
    torch.manual_seed(0)
    config = transformers.BertConfig(**dict(tiny.STACK, num_hidden_layers=6), vocab_size=50)
    found = validate.validate(transformers.BertModel(config).eval())
    assert list(found.post_norm) == list(range(6)) and len(set(found.post_norm.values())) == 1
    assert found.norm_position == "post"


class Overwriting(nn.Module):
    def forward(self, x):
        y = x.exp()
        z = y * y
        y.add_(1)
        return z


def test_block_without_an_autograd_derivative_is_refused():
    hf = named("mamba2-bounded").build()
    mixer = hf.backbone.layers[1].mixer
    mixer.out_proj = nn.Sequential(mixer.out_proj, Overwriting())
    line = refused(UnsupportedModelError, "please report it$", validate.validate, hf)
    assert line.startswith(
        "block 2 of Mamba2ForCausalLM (model type 'mamba2') has no Jacobian that agrees with that of the whole "
        "sequence: the sequence route cannot be differentiated (one of the"
    )


def test_nan_route_errors_are_not_taken_for_agreement(monkeypatch):
    hf = named("llama").build()
    found = validate.validate(hf)
    call = record.record(hf, found, {"input_ids": IDS})[0]
    compare = agreement._row_and_column

    def nan_column(call, block, route, *given, **named):
        row, column, y = compare(call, block, route, *given, **named)
        return (row, column * NAN if route == "attention" else column, y)

    monkeypatch.setattr(agreement, "_row_and_column", nan_column)
    assert not agreement.route_error(call, call, found.modules[0], "attention", found.attention) <= 1e-3
    monkeypatch.setattr(route_choice, "route_error", lambda call, came, block, route, default: 0.5)
    tried = (
        f"the {each} route gives a Jacobian that differs by 5.0e-01; " for each in ("attention", "cache", "sequence")
    )
    assert refused(UnsupportedModelError, "", validate.validate, named("llama").build()) == (
        "block 1 of LlamaForCausalLM (model type 'llama') has no Jacobian that agrees with that of the whole sequence: "
        f"{''.join(tried)}this family cannot be measured, please report it"
    )


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "nf4"])
def test_nan_weights_are_named_at_load(tmp_path, stored):
    name, folder = UP.format(1), tmp_path / "m"
    spoilt(tiny.llama(), {name: [NAN] * 3}).save_pretrained(folder)
    line = refused(
        ModelUnavailableError, f"weights {name} hold .*NaN of 2,048", cl.load_model, folder, precision=stored
    )
    # A quantised group of 64 has one scale, and shares its NaN.
    assert stored == "nf4" or line == (
        f"model {str(folder)!r}: weights {name} hold 3 NaN of 2,048 entries; fetch it again or choose another revision"
    )


def test_non_finite_weights_are_counted_by_kind():
    bad = {UP.format(1): [NAN, -INF]}
    message = f"'mine': weights {UP.format(1)} hold 1 NaN and 1 infinite of 2,048 entries;"
    refused(ModelUnavailableError, message, cl.wrap_model, spoilt(tiny.llama(), bad), name="mine")
    bad[EMBEDDING] = [INF] * 8960
    message = (
        rf"{EMBEDDING} hold 8,960 infinite of 8,960 entries \(and .*other tensors are not finite\); fetch it again"
    )
    refused(ModelUnavailableError, message, cl.wrap_model, spoilt(tiny.llama(), bad))
    large = {f"model.layers.1.mlp.{name}.weight": [3e38] * 2048 for name in ("up_proj", "down_proj")}
    message = "block 2 gives values .* not finite, and all weights are finite"
    refused(UnsupportedModelError, message, cl.wrap_model, spoilt(tiny.llama(), large))


def test_nan_in_any_block_is_found(tmp_path, monkeypatch):
    made = {wrong: spoilt(deep(), {UP.format(wrong): [NAN]}) for wrong in (0, 3, 4, 5, 7)}
    for wrong, hf in made.items():
        refused(ModelUnavailableError, f"{UP.format(wrong)} hold 1 NaN", validate.validate, hf)
    for wrong in (0, 4, 7):  # the blocks that are read at load
        message = f"{UP.format(wrong)} hold 1 NaN"
        refused(ModelUnavailableError, message, on_disk, made[wrong], tmp_path / str(wrong))
    message = "holds NaN or infinite values after block 4; look for such w"
    refused(UntrustworthyResultError, message, cl.trace, on_disk(made[3], tmp_path / "3"), IDS)
    monkeypatch.setattr(validate, "_weights", lambda *arguments: pytest.fail("weights were read"))
    assert storage.arithmetic(cl.wrap_model(tiny.llama()).hf) == torch.float32


def test_only_compared_blocks_are_read_from_disk(tmp_path, monkeypatch):
    read, one = [], offload.StoredWeights.__getitem__

    def noted(stored, name):
        read.append(stored._entries[name]["weight_name"])
        return one(stored, name)

    monkeypatch.setattr(offload.StoredWeights, "__getitem__", noted)
    model = on_disk(deep(), tmp_path)
    assert model.offloaded and model.blocks.routes == ("attention",) * 8
    assert [read.count(UP.format(number)) for number in range(8)] == [3, 0, 0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("wrong", [0, 3])
def test_change_between_two_offloaded_blocks_is_refused(tmp_path, wrong):
    model = on_disk(deep(), tmp_path)
    model.hf.model.layers[wrong + 1].__class__ = Fed
    message = f"block {wrong + 2} of LlamaForCausalLM .* does not read what block {wrong + 1} wrote"
    refused(UnsupportedModelError, message, cl.trace, model, IDS)
    refused(UnsupportedModelError, message, validate.validate, model.hf)


def test_hooks_and_dropout_of_offloaded_blocks_count(tmp_path):
    def shifted(module, args, kwargs):
        return (args[0] + args[0].tanh(), *args[1:]), kwargs

    models = [cl.wrap_model(deep()), on_disk(deep(), tmp_path)]
    for model in models:
        model.hf.model.layers[1].register_forward_pre_hook(shifted, with_kwargs=True)
    whole, offloaded = (cl.trace(model, IDS) for model in models)
    found, hf = whole.jacobian(1).dense(), models[0].hf
    assert torch.equal(whole.hidden, offloaded.hidden) and torch.equal(found, offloaded.jacobian(1).dense())
    assert relative_error(found, brute_force_jacobian(hf, hf.model.layers[1], {"input_ids": IDS}, 8, 8)) < 1e-5
    assert relative_error(whole.hidden[:8], torch.cat(hf(IDS, output_hidden_states=True).hidden_states[:8])) < 1e-5
    model = on_disk(deep(attention_dropout=0.5), tmp_path / "dropout")
    refused(UnsupportedModelError, "block 1 .* two answers in two runs", validate.validate, model.hf.train())
