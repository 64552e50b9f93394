import json
import shutil

import pytest
import tiny
import torch
import transformers
from refusals import refused

import coupling_lib as cl
from coupling_lib import paths
from coupling_lib.blocks import attention
from coupling_lib.errors import ModelUnavailableError, ParameterError, UnsupportedModelError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": (root / "llama", tiny.save_llama(root / "llama")),
        "bert": (root / "bert", tiny.save_bert(root / "bert")),
        "vit": (root / "vit", tiny.save_vit(root / "vit")),
    }


@pytest.mark.parametrize("kind", ["llama", "bert", "vit"])
def test_a_folder_gives_the_saved_weights_frozen(folders, kind):
    folder, saved = folders[kind]
    model = cl.load_model(folder, device="cpu")
    assert type(model.hf) is type(saved) and tiny.same_weights(model.hf, saved)
    assert not model.hf.training and not any(p.requires_grad for p in model.hf.parameters())
    assert (model.n_blocks, model.d_model, model.device.type) == (tiny.BLOCKS, tiny.WIDTH, "cpu")
    assert model.hf.config._attn_implementation == attention.NAME
    assert all(p.data_ptr() % 64 == 0 for p in model.hf.parameters())
    assert (model.name, model.source) == (str(folder), str(folder))
    assert (model.revision, model.seed, model.untrained, model.precision) == (None, None, False, "float32")


def test_tokenizers_and_weights_in_several_files_are_read(folders, tmp_path):
    read = cl.load_model(str(folders["llama"][0])).tokenizer
    assert read.decode(read(tiny.TEXT[0]).input_ids) == tiny.TEXT[0]
    tiny.save_llama(tmp_path, with_tokenizer=False)
    assert [cl.load_model(folder).tokenizer for folder in (folders["vit"][0], tmp_path)] == [None, None]
    saved = tiny.save_llama(tmp_path / "split", max_shard_size="20KB")
    assert len(list((tmp_path / "split").glob("model-*.safetensors"))) > 1
    assert tiny.same_weights(cl.load_model(tmp_path / "split").hf, saved)


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [(["BertModel"], "BertModel"), (None, "BertModel"), (["BertForMaskedLM"], "BertForMaskedLM")],
)
def test_an_encoder_is_never_taken_for_a_decoder(tmp_path, architectures, expected):
    config = transformers.BertConfig(**tiny.STACK, vocab_size=50, architectures=architectures)
    config.save_pretrained(tmp_path)
    assert type(cl.load_model(tmp_path, untrained=True).hf).__name__ == expected


def test_mixture_of_experts_is_run_eagerly(tmp_path):
    config = transformers.MixtralConfig(**tiny.STACK, vocab_size=50, num_key_value_heads=2, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    model = cl.load_model(tmp_path)
    assert model.hf.config._experts_implementation == "eager"
    assert model.hf.double()(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float64


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("untrained", [False, True])
def test_weights_are_stored_in_the_precision_asked_for(folders, precision, untrained):
    model = cl.load_model(folders["llama"][0], precision=precision, untrained=untrained)
    assert {p.dtype for p in model.hf.parameters()} == {getattr(torch, precision)}
    assert model.precision == precision


@pytest.mark.parametrize("precision", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("untrained", [False, True])
def test_linear_layers_of_blocks_are_quantised(folders, precision, untrained):
    layer = "Linear8bitLt" if precision == "int8" else "Linear4bit"
    model = cl.load_model(folders["llama"][0], precision=precision, untrained=untrained)
    projections = [b.self_attn.q_proj for b in model.blocks.modules]
    assert [type(p).__name__ for p in projections] == [layer] * tiny.BLOCKS
    if layer == "Linear4bit":
        assert all(p.weight.quant_type == precision for p in projections)
    assert cl.wrap_model(model.hf).precision == precision


def test_untrained_weights_come_from_the_seed_alone(folders, tmp_path):
    folder, saved = folders["llama"]
    shutil.copy(folder / "config.json", tmp_path)  # without its weights
    first = cl.load_model(tmp_path, untrained=True, seed=3)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    again, other = (cl.load_model(tmp_path, untrained=True, seed=seed) for seed in (3, 4))
    assert torch.equal(torch.rand(3), expected)  # the caller's random state is left
    assert tiny.same_weights(first.hf, again.hf)
    assert not tiny.same_weights(first.hf, other.hf) and not tiny.same_weights(first.hf, saved)
    assert (first.seed, first.untrained, other.seed) == (3, True, 4)
    half = cl.load_model(tmp_path, untrained=True, seed=3, precision="bfloat16").hf
    assert tiny.same_weights(half, first.hf.to(torch.bfloat16))


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    root = tmp_path / "nano-neox"
    last = tiny.save_llama(root, seed=10)
    early = tiny.save_llama(root / "step10", seed=11, with_tokenizer=False)
    record = {"name": "nano-neox", "seed": 5, "steps": 100, "checkpoints": [{"step": 10}, {"step": 100}]}
    (root / "training.json").write_text(json.dumps(record))
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path)
    return {"step100": last, "step10": early, "step0": tiny.llama(5)}


@pytest.mark.parametrize("revision", [None, "step0", "step10", "step100"])
def test_an_embedded_model_is_loaded_at_any_step(checkpoints, revision):
    model, step = cl.load_model("nano-neox", revision=revision), revision or "step100"
    assert tiny.same_weights(model.hf, checkpoints[step])
    assert model.tokenizer is not None and not model.untrained
    assert (model.revision, model.seed) == (step, 5 if step == "step0" else None)
    assert model.source == "embedded:nano-neox"


def test_missing_steps_and_embedded_models_are_refused(checkpoints):
    steps = "'step7'; choose one of step0, step10, step100$"
    refused(ModelUnavailableError, steps, cl.load_model, "nano-neox", revision="step7")
    refused(ModelUnavailableError, "'nano-llama'.*a checkout of the project has it in", cl.load_model, "nano-llama")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"untrained": "false"}, "untrained is 'false'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": True}, "seed is True"),
        ({"revision": ""}, "revision is ''"),
        ({"revision": "step3"}, "'step3'.*leave revision out"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"device": "cuda:99"}, "device is 'cuda:99'"),
        *(({"name": name}, "model is") for name in ("", "  ", 3, None)),
    ],
)
def test_invalid_load_arguments_are_refused(folders, arguments, message):
    refused(ParameterError, message, cl.load_model, **{"name": folders["llama"][0]} | arguments)


def without_a_tensor(folder):
    model = tiny.save_llama(folder)
    state = {name: value for name, value in model.state_dict().items() if "layers.1.mlp.up_proj" not in name}
    model.save_pretrained(folder, state_dict=state)


def without_weights(folder):
    tiny.save_llama(folder)
    (folder / "model.safetensors").unlink()


def with_a_pickle(folder):
    without_weights(folder)
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_a_shard(folder):
    tiny.save_llama(folder, max_shard_size="20KB")
    next(folder.glob("model-*.safetensors")).unlink()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda folder: None, r"no config\.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "damaged"),
        (without_weights, r"has no model\.safetensors"),
        (without_a_shard, "lacks model-"),
        (with_a_pickle, "'pytorch_model.bin', which is no safetensors file"),
        (without_a_tensor, r"lack 1 of the model's tensors \(model.layers.1.mlp.up_proj"),
    ],
    ids=["nowhere", "empty", "damaged", "no weights", "no shard", "pickle", "no tensor"],
)
def test_an_incomplete_folder_is_refused(tmp_path, made, message):
    made(tmp_path)
    refused(ModelUnavailableError, message, cl.load_model, tmp_path)


REMOTE = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
LLAMA = {"model_type": "llama", **tiny.STACK, "auto_map": {"AutoModelForCausalLM": "mine.MyLlama"}}


def write_config(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_the_class_of_transformers_replaces_remote_code(tmp_path):
    write_config(tmp_path, **LLAMA | {"architectures": ["LLaMAForCausalLM"]})
    assert type(cl.load_model(tmp_path, untrained=True).hf) is transformers.LlamaForCausalLM


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mine"}, "the model type 'mine'.*no such model"),
        ({"hidden_size": 3}, "the model type None"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"model_type": "llama", "quantization_config": "gptq"}, "already.*gptq.*, and not how"),
        ({"model_type": "mine", "auto_map": REMOTE}, "needs remote code, which is never run"),
        (LLAMA | {"architectures": ["MyLlama"]}, "'MyLlama': it needs remote code"),
    ],
    ids=["unknown", "no type", "encoder-decoder", "quantised", "remote code", "remote class"],
)
def test_a_configuration_that_cannot_be_measured_is_refused(tmp_path, values, message):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    refused(UnsupportedModelError, message, cl.load_model, write_config(tmp_path, **values), untrained=True)
    assert not (tmp_path / "ran").exists()


def test_wrap_model_freezes_the_given_model():
    hf = tiny.llama().train()
    model = cl.wrap_model(hf, tiny.tokenizer(), name="mine")
    assert model.hf is hf and not hf.training and not any(p.requires_grad for p in hf.parameters())
    assert (model.name, model.source, model.precision, model.n_blocks) == ("mine", "memory", "float32", tiny.BLOCKS)
    assert hf.config._attn_implementation == attention.NAME
    config = transformers.T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4, vocab_size=9)
    refused(UnsupportedModelError, "encoder-decoder", cl.wrap_model, transformers.T5ForConditionalGeneration(config))
