import json
import shutil

import pytest
import tiny
import torch
import transformers

from coupling_lib import paths
from coupling_lib.blocks import attention
from coupling_lib.errors import ModelUnavailableError, ParameterError, UnsupportedModelError
from coupling_lib.models.load import load_model
from coupling_lib.models.storages import wrap_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": (root / "llama", tiny.save_llama(root / "llama")),
        "bert": (root / "bert", tiny.save_bert(root / "bert")),
        "vit": (root / "vit", tiny.save_vit(root / "vit")),
    }


def one_line(error: pytest.ExceptionInfo) -> None:
    assert str(error.value) and "\n" not in str(error.value)


# What is loaded


@pytest.mark.parametrize("kind", ["llama", "bert", "vit"])
def test_a_local_folder_gives_the_saved_weights_frozen_and_in_evaluation_mode(folders, kind):
    folder, saved = folders[kind]
    model = load_model(folder, device="cpu")
    assert type(model.hf) is type(saved) and tiny.same_weights(model.hf, saved)
    assert not model.hf.training and not any(p.requires_grad for p in model.hf.parameters())
    assert (model.n_blocks, model.d_model, model.device.type) == (tiny.BLOCKS, tiny.WIDTH, "cpu")
    assert model.hf.config._attn_implementation == attention.NAME
    assert (model.name, model.source) == (str(folder), str(folder))
    assert (model.revision, model.seed, model.untrained, model.precision) == (None, None, False, "float32")


def test_a_folder_is_taken_as_text_too_and_its_tokenizer_read(folders):
    model = load_model(str(folders["llama"][0]))
    assert model.tokenizer.decode(model.tokenizer(tiny.TEXT[0]).input_ids) == tiny.TEXT[0]


def test_a_vision_model_and_a_folder_without_tokenizer_have_none(folders, tmp_path):
    tiny.save_llama(tmp_path, with_tokenizer=False)
    assert load_model(folders["vit"][0]).tokenizer is None
    assert load_model(tmp_path).tokenizer is None


@pytest.mark.parametrize(
    ("architectures", "expected"),
    [(["BertModel"], "BertModel"), (None, "BertModel"), (["BertForMaskedLM"], "BertForMaskedLM")],
)
def test_an_encoder_is_never_taken_for_a_decoder(tmp_path, architectures, expected):
    config = transformers.BertConfig(**tiny.STACK, vocab_size=50, architectures=architectures)
    config.save_pretrained(tmp_path)
    assert type(load_model(tmp_path, untrained=True).hf).__name__ == expected


def test_weights_in_several_files_are_read(tmp_path):
    saved = tiny.save_llama(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert tiny.same_weights(load_model(tmp_path).hf, saved)


def test_a_mixture_of_experts_runs_one_expert_at_a_time(tmp_path):
    config = transformers.MixtralConfig(**tiny.STACK, vocab_size=50, num_key_value_heads=2, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.hf.config._experts_implementation == "eager"
    assert model.hf.double()(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float64


# Precision


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("untrained", [False, True])
def test_weights_are_stored_in_the_precision_asked_for(folders, precision, untrained):
    model = load_model(folders["llama"][0], precision=precision, untrained=untrained)
    assert {p.dtype for p in model.hf.parameters()} == {getattr(torch, precision)}
    assert model.precision == precision


@pytest.mark.parametrize(
    ("precision", "layer"), [("nf4", "Linear4bit"), ("fp4", "Linear4bit"), ("int8", "Linear8bitLt")]
)
@pytest.mark.parametrize("untrained", [False, True])
def test_linear_layers_of_the_blocks_are_quantised(folders, precision, layer, untrained):
    model = load_model(folders["llama"][0], precision=precision, untrained=untrained)
    projections = [b.self_attn.q_proj for b in model.blocks.modules]
    assert [type(p).__name__ for p in projections] == [layer] * tiny.BLOCKS
    if layer == "Linear4bit":
        assert all(p.weight.quant_type == precision for p in projections)
    assert wrap_model(model.hf).precision == precision


# Untrained


def test_untrained_weights_come_from_the_seed_alone(folders):
    folder, saved = folders["llama"]
    first = load_model(folder, untrained=True, seed=3)
    torch.rand(5)
    again, other = load_model(folder, untrained=True, seed=3), load_model(folder, untrained=True, seed=4)
    assert tiny.same_weights(first.hf, again.hf)
    assert not tiny.same_weights(first.hf, other.hf) and not tiny.same_weights(first.hf, saved)
    assert (first.seed, first.untrained, other.seed) == (3, True, 4)


def test_untrained_needs_no_weights_and_leaves_the_callers_random_state(folders, tmp_path):
    shutil.copy(folders["llama"][0] / "config.json", tmp_path)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_model(tmp_path, untrained=True)
    assert torch.equal(torch.rand(3), expected)


def test_untrained_half_precision_is_the_rounded_float32_model(folders):
    full = load_model(folders["llama"][0], untrained=True, seed=1).hf
    half = load_model(folders["llama"][0], untrained=True, seed=1, precision="bfloat16").hf
    assert tiny.same_weights(half, full.to(torch.bfloat16))


# Embedded checkpoints


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    root = tmp_path / "nano-neox"
    last = tiny.save_llama(root, seed=10)
    early = tiny.save_llama(root / "step10", seed=11, with_tokenizer=False)
    (root / "training.json").write_text(
        json.dumps({"name": "nano-neox", "seed": 5, "steps": 100, "checkpoints": [{"step": 10}, {"step": 100}]})
    )
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path)
    return {"step100": last, "step10": early, "step0": tiny.llama(5)}


def test_an_embedded_model_is_loaded_at_its_last_step(checkpoints):
    model = load_model("nano-neox")
    assert tiny.same_weights(model.hf, checkpoints["step100"])
    assert (model.revision, model.source, model.seed) == ("step100", "embedded:nano-neox", None)


@pytest.mark.parametrize("step", ["step0", "step10", "step100"])
def test_an_embedded_model_is_loaded_at_any_step_with_the_one_tokenizer(checkpoints, step):
    model = load_model("nano-neox", revision=step)
    assert tiny.same_weights(model.hf, checkpoints[step])
    assert model.tokenizer is not None and not model.untrained
    assert (model.revision, model.seed) == (step, 5 if step == "step0" else None)


def test_an_unknown_step_is_refused_with_those_that_exist(checkpoints):
    with pytest.raises(ModelUnavailableError, match="'step7'; choose one of step0, step10, step100$") as error:
        load_model("nano-neox", revision="step7")
    one_line(error)


def test_an_embedded_model_that_is_not_installed_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "CHECKPOINTS", tmp_path)
    with pytest.raises(ModelUnavailableError, match="'nano-llama'.*a checkout of the project has it in"):
        load_model("nano-llama")


# Refusals


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
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(folders, arguments, message):
    with pytest.raises(ParameterError, match=message) as error:
        load_model(folders["llama"][0], **arguments)
    one_line(error)


@pytest.mark.parametrize("name", ["", "  ", 3, None])
def test_a_name_that_is_no_name_is_refused(name):
    with pytest.raises(ParameterError, match="model is"):
        load_model(name)


def test_a_path_that_does_not_exist_is_refused_without_asking_the_hub(tmp_path):
    with pytest.raises(ModelUnavailableError, match="does not exist"):
        load_model(tmp_path / "nothing")


def test_a_pickle_named_by_the_index_is_refused(tmp_path):
    tiny.save_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "pytorch_model.bin"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailableError, match="'pytorch_model.bin', which is no safetensors file"):
        load_model(tmp_path)


def test_missing_weights_are_refused(tmp_path):
    tiny.save_llama(tmp_path, max_shard_size="20KB")
    next(tmp_path.glob("model-*.safetensors")).unlink()
    with pytest.raises(ModelUnavailableError, match="lacks model-"):
        load_model(tmp_path)
    for file in (*tmp_path.glob("model-*"), tmp_path / "model.safetensors.index.json"):
        file.unlink()
    with pytest.raises(ModelUnavailableError, match=r"has no model\.safetensors"):
        load_model(tmp_path)


def test_weights_that_lack_a_tensor_are_refused_rather_than_drawn_at_random(tmp_path):
    model = tiny.save_llama(tmp_path)
    state = {name: value for name, value in model.state_dict().items() if "layers.1.mlp.up_proj" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelUnavailableError, match=r"lack 1 of the model's tensors \(model.layers.1.mlp.up_proj"):
        load_model(tmp_path)


def write_config(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_remote_code_is_never_run(tmp_path):
    write_config(
        tmp_path, model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    )
    marker = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(UnsupportedModelError, match="needs remote code, which is never run") as error:
        load_model(tmp_path, untrained=True)
    one_line(error)
    assert not marker.exists()


def test_remote_code_behind_a_known_model_type_is_refused(folders, tmp_path):
    config = json.loads((folders["llama"][0] / "config.json").read_text())
    config |= {"architectures": ["MyLlama"], "auto_map": {"AutoModelForCausalLM": "mine.MyLlama"}}
    with pytest.raises(UnsupportedModelError, match="'MyLlama': it needs remote code"):
        load_model(write_config(tmp_path, **config), untrained=True)


def test_a_repository_with_remote_code_that_transformers_has_too_is_taken(folders, tmp_path):
    config = json.loads((folders["llama"][0] / "config.json").read_text())
    config |= {"architectures": ["LLaMAForCausalLM"], "auto_map": {"AutoModelForCausalLM": "mine.LLaMAForCausalLM"}}
    model = load_model(write_config(tmp_path, **config), untrained=True)
    assert type(model.hf) is transformers.LlamaForCausalLM


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"model_type": "mine"}, UnsupportedModelError, "the model type 'mine'.*no such model"),
        ({"hidden_size": 3}, UnsupportedModelError, "the model type None"),
        ({"model_type": "t5"}, UnsupportedModelError, "encoder-decoder"),
        (
            {"model_type": "llama", "quantization_config": "gptq"},
            UnsupportedModelError,
            "already.*gptq.*, and not how",
        ),
    ],
)
def test_a_configuration_that_cannot_be_measured_is_refused(tmp_path, values, error, message):
    with pytest.raises(error, match=message) as raised:
        load_model(write_config(tmp_path, **values), untrained=True)
    one_line(raised)


def test_a_folder_without_a_readable_configuration_is_refused(tmp_path):
    with pytest.raises(ModelUnavailableError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelUnavailableError, match="damaged"):
        load_model(tmp_path)


def test_weights_lie_where_matrix_products_do_not_depend_on_the_file(folders):
    for folder, _ in folders.values():
        assert all(p.data_ptr() % 64 == 0 for p in load_model(folder).hf.parameters())


# Models that exist already


def test_wrap_model_freezes_the_model_it_is_given():
    hf = tiny.llama().train()
    model = wrap_model(hf, tiny.tokenizer(), name="mine")
    assert model.hf is hf and not hf.training and not any(p.requires_grad for p in hf.parameters())
    assert (model.name, model.source, model.precision, model.n_blocks) == ("mine", "memory", "float32", tiny.BLOCKS)
    assert hf.config._attn_implementation == attention.NAME


def test_wrap_model_refuses_an_encoder_decoder():
    config = transformers.T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=2, d_kv=4, vocab_size=9)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        wrap_model(transformers.T5ForConditionalGeneration(config))
