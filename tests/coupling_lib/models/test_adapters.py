"""Adapters of peft: Jacobians of the adapted model, folders with an adapter, and what is refused in one line."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import tiny
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error, rows
from refusals import refused
from safetensors.torch import load_file

import coupling_lib as cl
from coupling_lib.blocks.model_config import random_input
from coupling_lib.blocks.precision import loading_arguments
from coupling_lib.blocks.storage import dense_copy
from coupling_lib.errors import UnsupportedModelError, shown
from coupling_lib.models import adapters
from coupling_lib.store.key import fingerprint

IDS = torch.tensor([[7, 3, 200, 11, 3, 90, 41]])
SOME = ["q_proj", "v_proj", "down_proj"]


def lora(**changes) -> peft.LoraConfig:
    return peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | changes)


def adapted(config: peft.PeftConfig, width: int = 32) -> peft.PeftModel:
    """A random decoder with an adapter that changes what it computes: all of its weights are moved at random."""
    model = peft.get_peft_model(tiny.llama(hidden_size=width, intermediate_size=2 * width), config)
    with torch.no_grad():
        for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 10)
    return model


def jacobian(model: cl.Model, token_in: int = 3, token_out: int = 5) -> torch.Tensor:
    return cl.trace(model, IDS).jacobian(1, token_in, token_out).dense()


def reference(hf: transformers.PreTrainedModel, token_in: int = 3, token_out: int = 5, every: int = 1) -> torch.Tensor:
    """The same in float64, of the block inside a whole forward pass; every row, or one of some."""
    wide = copy.deepcopy(hf).double()
    return brute_force_jacobian(wide, wide.model.layers[1], {"input_ids": IDS}, token_in, token_out, every=every)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    tiny.save_llama(folder := tmp_path_factory.mktemp("base"))
    return folder


METHODS = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "one layer": {"target_modules": ["up_proj"], "use_rslora": True},
    "other weights": {"modules_to_save": ["embed_tokens", "input_layernorm"], "lora_bias": True},
}


# Of the wide ones, of whose layers rows are taken, LoRA stands for all.
WIDE = [pytest.param(512, method, marks=[pytest.mark.thorough] * (method != "LoRA")) for method in METHODS]


@pytest.mark.parametrize(("width", "method"), [*((64, method) for method in METHODS), *WIDE])
def test_jacobians_are_those_of_the_adapted_model(width, method):
    ours, every = cl.wrap_model(adapted(lora(**METHODS[method]), width)), width // 64
    bare = jacobian(cl.wrap_model(tiny.llama(hidden_size=width, intermediate_size=2 * width)))
    for token_in, token_out in ((3, 5), (4, 4)):
        found = jacobian(ours, token_in, token_out)
        assert relative_error(found[::every], reference(ours.hf, token_in, token_out, every)) < 1e-5
    assert relative_error(bare, jacobian(ours)) > 0.05


@pytest.mark.parametrize(
    "config",
    [
        peft.IA3Config(target_modules=["k_proj", *SOME], feedforward_modules=["down_proj"]),
        peft.LoHaConfig(target_modules=SOME),
        peft.OFTConfig(target_modules=SOME, oft_block_size=8, r=0),
        peft.LNTuningConfig(target_modules=["input_layernorm"]),
        lora(target_modules=[], target_parameters=["mlp.down_proj.weight"]),
        peft.AdaptionPromptConfig(adapter_layers=2, adapter_len=3, task_type="CAUSAL_LM"),
    ],
    ids=lambda config: config.peft_type.value,
)
def test_other_adapter_methods_are_measured_exactly(config):
    ours = cl.wrap_model(adapted(config))
    assert relative_error(jacobian(ours), reference(ours.hf)) < 1e-5
    assert ours.name == f"LlamaForCausalLM with {config.peft_type.value} 'default'"


def test_only_the_active_adapter_is_measured():
    model = adapted(lora())
    torch.manual_seed(2)
    model.add_adapter("second", lora(init_lora_weights=False))
    ours, bare = cl.wrap_model(model), cl.wrap_model(tiny.llama())
    first, one = jacobian(ours), fingerprint(ours)
    with model.disable_adapter():
        torch.testing.assert_close(jacobian(ours), jacobian(bare), rtol=1e-5, atol=1e-6)
        assert cl.wrap_model(model).name == "LlamaForCausalLM" and fingerprint(ours) != one
    assert fingerprint(ours) == one
    model.set_adapter("second")
    assert cl.wrap_model(model).source == "memory with LORA 'second'"
    assert relative_error(jacobian(ours), first) > 0.05
    assert relative_error(jacobian(ours), reference(ours.hf)) < 1e-5
    assert len({fingerprint(cl.wrap_model(adapted(lora(lora_alpha=alpha)))) for alpha in (8, 8, 16)}) == 2


def by_transformers(folder: Path, precision: str) -> SimpleNamespace:
    how = loading_arguments(precision) | {"device_map": {"": "cpu"}}
    return SimpleNamespace(hf=transformers.AutoModelForCausalLM.from_pretrained(folder, **how))


LOADED = [*((precision, cl.load_model) for precision in ("nf4", "int8", "bfloat16")), ("nf4", by_transformers)]


@pytest.mark.parametrize(("precision", "load"), LOADED)
def test_adapter_on_quantised_weights_is_differentiated_with_them(base, tmp_path, precision, load):
    plain, under = cl.load_model(base, precision=precision), load(base, precision=precision)
    adapted(lora()).save_pretrained(tmp_path)
    refused(UnsupportedModelError, "holds an adapter, which .* fits into memory", cl.load_model, tmp_path)
    model = cl.wrap_model(peft.PeftModel.from_pretrained(under.hf, tmp_path), plain.tokenizer)
    assert (model.precision, model.tokenizer) == (precision, plain.tokenizer)
    # A layer stands for the base's weights, widened, and for what the adapter's file adds to them.
    block, under = (dense_copy(one.blocks.modules[1], torch.float64) for one in (model, plain))
    files = load_file(tmp_path / "adapter_model.safetensors")
    B, A = (files[f"base_model.model.model.layers.1.mlp.up_proj.lora_{side}.weight"].double() for side in "BA")
    x = torch.randn(3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = x @ (under.mlp.up_proj.weight + 2 * B @ A).mT
    torch.testing.assert_close(block.mlp.up_proj(x), wanted, rtol=1e-6, atol=1e-6)
    # And the block's Jacobian is that of such layers, from its own replay in float64.
    trace = cl.trace(model, IDS)
    stream = trace.calls[1].input.double().requires_grad_(True)
    wanted = rows(trace.calls[1].replay(block, stream)[0, 5], stream)[:, 3]
    assert relative_error(trace.jacobian(1, 3, 5).dense(), wanted) < 1e-5


@pytest.mark.filterwarnings("ignore::coupling_lib.errors.PostNormWarning")
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "mixtral", "gemma2-window", "falcon-alibi", "qwen3-next"])
def test_adapters_keep_the_route_in_other_families(name):
    torch.manual_seed(0)
    ours = cl.wrap_model(peft.get_peft_model(named(name).build().float(), lora(init_lora_weights=False)))
    assert ours.blocks.route == cl.wrap_model(named(name).build().float()).blocks.route
    given = random_input(ours.hf, torch.Generator().manual_seed(0), 7)
    wide = copy.deepcopy(ours.hf).double()
    inputs = {wide.main_input_name: given.double() if given.is_floating_point() else given}
    if wide.main_input_name == "input_ids":
        inputs["use_cache"] = False
    wanted = brute_force_jacobian(wide, wide.get_submodule(ours.blocks.path)[1], inputs, 3, 5)
    assert relative_error(cl.trace(ours, given).jacobian(1, 3, 5).dense(), wanted) < 1e-5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"), "PROMPT_TUNING.*puts tokens of its own"),
        (peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"), "PREFIX_TUNING.*puts tokens of its own"),
        (lora(alora_invocation_tokens=[5, 6], task_type="CAUSAL_LM"), "LORA.* looks for certain tokens in every"),
        (peft.PolyConfig(target_modules=SOME), "POLY.* wants a task with every prompt"),
    ],
    ids=["prompt tuning", "prefix tuning", "activated by tokens", "poly"],
)
def test_adapter_that_changes_the_prompt_is_refused(config, message):
    refused(UnsupportedModelError, message + ".*such as plain LoRA", cl.wrap_model, adapted(config))


def test_peft_model_that_changes_logits_is_refused(monkeypatch):
    model = adapted(lora())
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **given: [forward(**given).logits + 1])
    message = "the PeftModel with LORA 'default' does not answer as the model"
    refused(UnsupportedModelError, message, cl.wrap_model, model)


DAMAGED = ("{", "[1]", "{}", "[" * 100_000)
STATED = {json.dumps({"base_model_name_or_path": name}): name for name in ("organisation/name", "a\nb", 3, "x" * 5000)}
STATED |= dict.fromkeys((*DAMAGED, '{"base_model_name_or_path": null}'), "path/to/base")


@pytest.mark.parametrize(("config", "stated"), STATED.items(), ids=[config[:40] for config in STATED])
@pytest.mark.parametrize("untrained", [False, True])
def test_folder_with_adapter_is_refused_with_code(tmp_path, config, stated, untrained):
    tiny.save_llama(tmp_path / "model")  # of which transformers would take the adapter along, without a word
    for folder in (tmp_path, tmp_path / "model"):
        (folder / adapters.CONFIG).write_text(config)
        message = "holds an adapter, which .* fits into memory"
        line = refused(UnsupportedModelError, message, cl.load_model, folder, untrained=untrained)
        wrapped = f"cl.wrap_model(peft.PeftModel.from_pretrained(base.hf, {str(folder)!r}), base.tokenizer)"
        assert line.endswith(f"base = cl.load_model({shown(stated)}); model = {wrapped}")
