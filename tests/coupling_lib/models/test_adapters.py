"""Adapters of peft: Jacobians of the adapted model, folders with an adapter, and what is refused in one line."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import peft
import pytest
import tiny
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error, rows
from safetensors.torch import load_file, save_file

import coupling_lib as cl
from coupling_lib.blocks.precision import dense_copy, loading_arguments
from coupling_lib.blocks.record import random_input
from coupling_lib.errors import CouplingError, MissingPackageError, ModelUnavailableError, UnsupportedModelError
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
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 10)
    return model


def jacobian(model: cl.Model, token_in: int = 3, token_out: int = 5) -> torch.Tensor:
    return cl.trace(model, IDS).jacobian(1, token_in, token_out).dense()


def replayed(trace: cl.Trace, block: torch.nn.Module) -> torch.Tensor:
    """The same of a block in float64, from its own replay."""
    stream = trace.calls[1].input.double().requires_grad_(True)
    return rows(trace.calls[1].replay(block, stream)[0, 5], stream)[:, 3]


def reference(hf: transformers.PreTrainedModel, token_in: int = 3, token_out: int = 5, every: int = 1) -> torch.Tensor:
    """The same in float64, of the block inside a whole forward pass; every row, or one of some."""
    wide = copy.deepcopy(hf).double()
    return brute_force_jacobian(wide, wide.model.layers[1], {"input_ids": IDS}, token_in, token_out, every=every)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "base"
    tiny.save_llama(folder)
    return folder


def saved(folder: Path, base: Path | str, config: peft.PeftConfig | None = None, **changes) -> Path:
    """A folder with an adapter of a base, as peft writes it; `changes` are made in its configuration."""
    adapted(config or lora()).save_pretrained(folder)
    file = folder / adapters.CONFIG
    said = json.loads(file.read_text()) | {"base_model_name_or_path": str(base)} | changes
    file.write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("width", [64, pytest.param(512, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("method", ["LoRA", "DoRA", "one layer", "other weights"])
def test_jacobians_are_those_of_the_adapted_model(width, method):
    further = {
        "DoRA": {"use_dora": True},
        "one layer": {"target_modules": ["up_proj"], "use_rslora": True},
        "other weights": {"modules_to_save": ["embed_tokens", "input_layernorm"], "lora_bias": True},
    }
    model = adapted(lora(**further.get(method, {})), width)
    bare = jacobian(cl.wrap_model(tiny.llama(hidden_size=width, intermediate_size=2 * width)))
    ours = cl.wrap_model(model)
    for token_in, token_out in ((3, 5), (4, 4)):
        found, every = jacobian(ours, token_in, token_out), width // 64
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
def test_other_methods_are_measured_as_exactly(config):
    ours = cl.wrap_model(adapted(config))
    assert relative_error(jacobian(ours), reference(ours.hf)) < 1e-5
    assert ours.name == f"LlamaForCausalLM with {config.peft_type.value} 'default'"


@pytest.mark.parametrize("width", [64, 512])
def test_an_adapter_merged_into_its_model_gives_the_same(width):
    model = adapted(lora(), width)
    merged = cl.wrap_model(copy.deepcopy(model).merge_and_unload())
    assert type(merged.hf.model.layers[1].mlp.up_proj) is torch.nn.Linear
    assert relative_error(jacobian(cl.wrap_model(model)), jacobian(merged)) < 1e-5


def test_what_is_switched_off_or_on_is_what_is_measured():
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


@pytest.mark.parametrize("precision", ["nf4", "int8", "bfloat16"])
def test_an_adapter_on_weights_of_few_bits_is_differentiated_with_them(base, tmp_path, precision):
    model = cl.load_model(saved(tmp_path / "adapter", base), precision=precision)
    plain = cl.load_model(base, precision=precision)
    # A layer stands for the base's weights, widened, and for what the adapter's file adds to them.
    block, under = (dense_copy(one.blocks.modules[1], torch.float64) for one in (model, plain))
    files = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    B, A = (files[f"base_model.model.model.layers.1.mlp.up_proj.lora_{side}.weight"].double() for side in "BA")
    x = torch.randn(3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = x @ (under.mlp.up_proj.weight + 2 * B @ A).mT
    torch.testing.assert_close(block.mlp.up_proj(x), wanted, rtol=1e-6, atol=1e-6)
    # And the block's Jacobian is that of such layers.
    trace = cl.trace(model, IDS)
    assert relative_error(trace.jacobian(1, 3, 5).dense(), replayed(trace, block)) < 1e-5


def test_an_adapter_on_a_quantised_model_in_memory_is_measured(base):
    hf = transformers.AutoModelForCausalLM.from_pretrained(base, **loading_arguments("nf4"), device_map={"": "cpu"})
    torch.manual_seed(0)
    ours = cl.wrap_model(peft.get_peft_model(hf, lora(init_lora_weights=False)))
    assert ours.precision == "nf4"
    trace, block = cl.trace(ours, IDS), dense_copy(ours.blocks.modules[1], torch.float64)
    assert relative_error(trace.jacobian(1, 3, 5).dense(), replayed(trace, block)) < 1e-5


@pytest.mark.filterwarnings("ignore::coupling_lib.errors.PostNormWarning")
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "mixtral", "gemma2-window", "falcon-alibi", "qwen3-next"])
def test_adapters_in_other_families_are_measured_as_exactly_and_by_the_same_route(name):
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


def test_two_adapters_that_differ_in_a_setting_alone_are_two_models():
    keys = {fingerprint(cl.wrap_model(adapted(lora(lora_alpha=alpha)))) for alpha in (8, 8, 16)}
    assert len(keys) == 2


# Folders


@pytest.mark.parametrize("config", [lora(), lora(use_dora=True), peft.IA3Config(target_modules=["k_proj", *SOME])])
def test_a_folder_with_an_adapter_is_its_base_with_the_adapter_s_layers(base, tmp_path, config):
    if config.peft_type == "IA3":
        config.feedforward_modules = ["down_proj"]
    folder = saved(tmp_path / "adapter", base, config)
    model = cl.load_model(folder)
    assert (model.name, model.source) == (str(folder), f"{base} with {config.peft_type.value} of {folder}")
    text = tiny.TEXT[0]
    assert model.tokenizer.decode(model.tokenizer(text).input_ids) == text  # the base's
    assert not model.hf.training and not any(p.requires_grad for p in model.hf.parameters())
    in_memory = cl.wrap_model(adapted(config))
    with torch.no_grad():
        torch.testing.assert_close(model.hf(IDS).logits, in_memory.hf(IDS).logits)
    assert relative_error(jacobian(model), reference(in_memory.hf)) < 1e-5
    ds = cl.measure_depth(model, [text], ks=(3,))
    assert ds.attrs["source"] == model.source
    assert fingerprint(model) == fingerprint(cl.load_model(folder)) != fingerprint(cl.load_model(base))


def test_the_base_may_be_an_alias_and_a_revision_is_the_base_s(tmp_path):
    hf = cl.load_model("nano-neox").hf
    hf = peft.get_peft_model(hf, lora(init_lora_weights=False))
    hf.save_pretrained(tmp_path)
    said = json.loads((tmp_path / adapters.CONFIG).read_text())
    for stated, asked, revision in (("step100", None, "step100"), (None, None, "step10000"), (None, "step0", "step0")):
        said |= {"base_model_name_or_path": "nano-neox", "revision": stated}
        (tmp_path / adapters.CONFIG).write_text(json.dumps(said))
        model = cl.load_model(tmp_path, revision=asked)
        assert model.revision == revision and model.source == f"embedded:nano-neox with LORA of {tmp_path}"
        plain = cl.load_model("nano-neox", revision=revision)
        under, own = (one.blocks.modules[3].mlp.dense_h_to_4h for one in (model, plain))
        assert torch.equal(under.base_layer.weight, own.weight)


def test_a_tokenizer_beside_the_adapter_is_taken(base, tmp_path):
    folder = saved(tmp_path / "adapter", base)
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["Paris"])
    tokenizer.save_pretrained(folder)
    assert cl.load_model(folder).tokenizer("Paris").input_ids == [len(tokenizer) - 1]


def test_untrained_weights_have_no_adapter(base, tmp_path):
    fresh = cl.load_model(saved(tmp_path / "adapter", base), untrained=True, seed=3)
    assert tiny.same_weights(fresh.hf, cl.load_model(base, untrained=True, seed=3).hf)


# What is refused


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
def test_an_adapter_that_does_more_than_change_layers_is_refused_in_one_line(config, message):
    with pytest.raises(UnsupportedModelError, match=message + ".*such as plain LoRA") as error:
        cl.wrap_model(adapted(config))
    assert "\n" not in str(error.value)


def test_a_peft_model_that_answers_otherwise_than_its_layers_is_refused(monkeypatch):
    model = adapted(lora())
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **given: [forward(**given).logits + 1])
    with pytest.raises(UnsupportedModelError, match="the PeftModel with LORA 'default' does not answer as the model"):
        cl.wrap_model(model)


def spoilt(folder: Path, base: Path) -> Iterator[tuple[str, str]]:
    """Folders with an adapter of which something is wrong, one after the other, and what is said of it."""
    weights = folder / "adapter_model.safetensors"

    def anew(config: peft.PeftConfig | None = None, **changes) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        return saved(folder, base, config, **changes)

    for name in ("/nowhere/at/all", "nano_neox", "x" * 300, "a\0b"):
        anew(base_model_name_or_path=name)
        yield "no such base", "the adapter in .* is of '.*', which cannot be had: .*base_model_name_or_path"
    anew(base_model_name_or_path=str(folder))
    yield "its own base", "which holds an adapter itself; merge the two with peft"
    anew(base_model_name_or_path="")
    yield "no base", "does not say which model it is of; write base_model_name_or_path"
    anew(peft_type="PREFIX_TUNING")
    yield "virtual tokens", "is of the type 'PREFIX_TUNING'; LORA and IA3 are read"
    anew(megatron_config={"a": 1}, megatron_core="antigravity")
    yield "a module to import", "is of the type LORA with megatron_config; LORA and IA3 are read"
    anew(r=5)
    yield "another rank", r"does not fit its base model .*\(.*size mismatch.*name another base"
    anew(target_modules=["c_attn"])
    yield "modules of another family", r"does not fit its base model .*\(.*c_attn.*name another base"
    anew(target_modules=["q_proj"])
    yield "fewer modules", r"has no place for \d+ of the tensors \(base_model.model.*lora_A"
    anew(lora(target_modules=["q_proj"]), target_modules=["q_proj", "k_proj"])
    yield "more modules", r"lacks 6 of the tensors \(base_model.model.*k_proj.lora_A"
    anew()
    save_file({key: x[..., :16].contiguous() for key, x in load_file(weights).items()}, weights)
    yield "another width", "does not fit its base model .*size mismatch"
    weights.write_bytes(weights.read_bytes()[:500])
    yield "cut short", "adapter_model.safetensors of .* is damaged or truncated"
    weights.rename(folder / "adapter_model.bin")
    yield "a pickle", r"has only pickled weights \(adapter_model.bin\), which can run code.*convert them to adapter_mod"
    (folder / "adapter_model.bin").unlink()
    yield "no weights", "has no adapter_model.safetensors"
    for text in ("{", "[1]", "[" * 100_000):
        (folder / adapters.CONFIG).write_text(text)
        yield "damaged", "adapter_config.json in .* is damaged; fetch it again"


def test_a_folder_whose_adapter_cannot_be_put_on_is_refused_in_one_line(base, tmp_path):
    for seen, (what, message) in enumerate(spoilt(tmp_path / "adapter", base), start=1):
        with pytest.raises(CouplingError, match=message) as error:
            cl.load_model(tmp_path / "adapter")
        assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 900, (seen, what)
    assert seen == 19 and "antigravity" not in sys.modules


def test_blocks_on_disk_take_no_adapter(base, tmp_path):
    with pytest.raises(ModelUnavailableError, match="stay on disk, where no adapter can be put on them; give more"):
        cl.load_model(saved(tmp_path / "adapter", base), memory=110_000)


def test_without_peft_a_folder_with_an_adapter_says_what_to_install(base, tmp_path, monkeypatch):
    folder = saved(tmp_path / "adapter", base)
    monkeypatch.setitem(sys.modules, "peft", None)
    said = r"peft, .* not installed; run: pip install 'coupling_lib\[adapters]'"
    with pytest.raises(MissingPackageError, match=said):
        cl.load_model(folder)
    assert cl.load_model(base).n_blocks == tiny.BLOCKS
