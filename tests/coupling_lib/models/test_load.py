"""Models from folders: those that were saved, or one line that says what is wrong with the folder."""

import json
import shutil

import pytest
import tiny
import torch
import transformers
from reference import brute_force_jacobian, relative_error
from refusals import refused
from safetensors.torch import load_file, save_file

import coupling_lib as cl
from coupling_lib import paths
from coupling_lib.blocks import attention
from coupling_lib.errors import CouplingError, ModelUnavailableError, ParameterError, UnsupportedModelError, shown

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, saves = tmp_path_factory.mktemp("models"), (tiny.save_llama, tiny.save_bert, tiny.save_vit)
    return {kind: (root / kind, save(root / kind)) for kind, save in zip(("llama", "bert", "vit"), saves, strict=True)}


@pytest.fixture
def folder(folders, tmp_path):
    """A sound folder, to be spoilt."""
    return shutil.copytree(folders["llama"][0], tmp_path / "copy")


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
    saved = tiny.save_llama(tmp_path, with_tokenizer=False, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    bare = cl.load_model(tmp_path)
    assert tiny.same_weights(bare.hf, saved) and bare.tokenizer is cl.load_model(folders["vit"][0]).tokenizer is None


def test_mixture_of_experts_is_run_eagerly(tmp_path):
    config = transformers.MixtralConfig(**tiny.STACK, vocab_size=50, num_key_value_heads=2, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    model = cl.load_model(tmp_path)
    assert model.hf.config._experts_implementation == "eager"
    assert model.hf.double()(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float64


# By precision: the class of the blocks' linear layers, and the numbers in which weights are stored.
STORED = {
    "float32": ("Linear", {torch.float32}),
    "bfloat16": ("Linear", {torch.bfloat16}),
    "float16": ("Linear", {torch.float16}),
    "nf4": ("Linear4bit", {torch.uint8, torch.float32}),
    "fp4": ("Linear4bit", {torch.uint8, torch.float32}),
    "int8": ("Linear8bitLt", {torch.int8, torch.float32}),
}


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("untrained", [False, True])
def test_weights_are_stored_in_the_precision_asked_for(folders, precision, untrained):
    layer, dtypes = STORED[precision]
    random = torch.get_rng_state()
    model = cl.load_model(folders["llama"][0], precision=precision, untrained=untrained)
    assert torch.equal(torch.get_rng_state(), random)  # the caller's random state is left
    projections = [block.self_attn.q_proj for block in model.blocks.modules]
    assert [type(one).__name__ for one in projections] == [layer] * tiny.BLOCKS
    assert {p.dtype for p in model.hf.parameters()} == dtypes
    assert {getattr(one.weight, "quant_type", precision) for one in projections} == {precision}
    assert model.precision == cl.wrap_model(model.hf).precision == precision


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


def test_missing_steps_and_embedded_models_are_refused(checkpoints, folders):
    wrong = "'step3'.*leave revision out"
    refused(ParameterError, wrong, cl.load_model, folders["llama"][0], revision="step3")
    steps = "'step7'; choose one of step0, step10, step100$"
    refused(ModelUnavailableError, steps, cl.load_model, "nano-neox", revision="step7")
    refused(ModelUnavailableError, "'nano-llama'.*a checkout of the project has it in", cl.load_model, "nano-llama")


INVALID = {"untrained": ["false"], "seed": [-1, True], "revision": [""], "device": ["tpu", "cuda:99"]}
INVALID |= {"name": ["", "  ", 3, None]}


@pytest.mark.parametrize(("argument", "value"), [(name, value) for name in INVALID for value in INVALID[name]])
def test_invalid_load_arguments_are_refused(folders, argument, value):
    message = f"{argument} is {shown(value)}".replace("name", "model")
    refused(ParameterError, message, cl.load_model, **{"name": folders["llama"][0]} | {argument: value})


def setting(**values):
    """Change values of a folder's configuration."""
    return lambda folder: saying(**json.loads((folder / "config.json").read_text()) | values)(folder)


def saying(**values):
    """Write a configuration of these values alone."""
    return lambda folder: (folder / "config.json").write_text(json.dumps(values))


def cut(length):
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:length])


def with_a_pickle(folder):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "pytorch_model.bin"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def without_a_shard(folder):
    (folder / WEIGHTS).unlink()
    tiny.save_llama(folder, max_shard_size="20KB")
    next(folder.glob("model-*.safetensors")).unlink()


def without_a_tensor(folder):
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def apart(key: str, stored: str, asked: str) -> str:
    return f"do not belong together: {key} is {stored}, and config.json asks for {asked}"


UNAVAILABLE, UNSUPPORTED = ModelUnavailableError, UnsupportedModelError
EMBED, DOWN = "lm_head.weight", "model.layers.0.mlp.down_proj.weight"
KEYS, OUTPUT = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.o_proj.weight"
REMOTE = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
LLAMA = {"model_type": "llama", **tiny.STACK, "auto_map": {"AutoModelForCausalLM": "mine.MyLlama"}}
SPOILT = [
    (shutil.rmtree, UNAVAILABLE, "does not exist"),
    (lambda folder: (folder / "config.json").unlink(), UNAVAILABLE, r"no config\.json"),
    (lambda folder: (folder / "config.json").write_text("{"), UNAVAILABLE, "config.json .* is damaged"),
    (lambda folder: (folder / WEIGHTS).unlink(), UNAVAILABLE, r"has no model\.safetensors"),
    (without_a_shard, UNAVAILABLE, "lacks model-"),
    (with_a_pickle, UNAVAILABLE, "'pytorch_model.bin', which is no safetensors file"),
    (without_a_tensor, UNAVAILABLE, r"lack 1 of the model's tensors \(model.layers.1.mlp.up_proj"),
    *((cut(length), UNAVAILABLE, "damaged or truncated") for length in (0, 7, 8, 500, -1)),
    # A configuration of another shape.
    (setting(hidden_size=64), UNSUPPORTED, apart(EMBED, "280 x 32", "280 x 64")),
    (setting(hidden_size=0), UNSUPPORTED, r"modulo by zero\); check that its configuration, weights and tokenizer"),
    (setting(hidden_size=-32), UNSUPPORTED, r"makes no LlamaForCausalLM \(RuntimeError: Trying to create tensor"),
    (setting(hidden_size=2**40), UNAVAILABLE, "needs 6293604.6 GB in float32"),
    (setting(hidden_size="wide"), UNSUPPORTED, "'hidden_size' expected int, got str"),
    (setting(hidden_size=32.5), UNSUPPORTED, "'hidden_size' expected int, got float"),
    (setting(vocab_size=281), UNSUPPORTED, apart(EMBED, "280 x 32", "281 x 32")),
    (setting(intermediate_size=48), UNSUPPORTED, apart(DOWN, "32 x 64", "32 x 48")),
    (setting(num_attention_heads=8), UNSUPPORTED, apart(OUTPUT, "32 x 32", "32 x 64")),
    (setting(num_attention_heads=0), UNSUPPORTED, r"is not understood \(integer modulo by zero\)"),
    (setting(num_key_value_heads=4), UNSUPPORTED, apart(KEYS, "16 x 32", "32 x 32")),
    (setting(num_hidden_layers=4), UNAVAILABLE, r"lack 9 of the model's tensors \(model.layers.3.input_layernorm"),
    (setting(num_hidden_layers=2), UNAVAILABLE, "says 2 blocks, and the weights are of 3; take both from one"),
    (setting(num_hidden_layers=0), UNSUPPORTED, "has no list of 0 blocks"),
    (setting(num_hidden_layers=10**7), UNSUPPORTED, "says that it has 10,000,000 blocks, and at most 10,000"),
    (setting(hidden_act="none"), UNSUPPORTED, r"makes no LlamaForCausalLM \(KeyError: 'none'\); check its values"),
    # A configuration of no model that can be measured.
    (saying(model_type="mine"), UNSUPPORTED, "the model type 'mine'.*no such model"),
    (saying(hidden_size=3), UNSUPPORTED, "the model type None"),
    (setting(quantization_config="gptq"), UNSUPPORTED, "already.*gptq.*, and not how"),
    (saying(model_type="mine", auto_map=REMOTE), UNSUPPORTED, "needs remote code, which is never run"),
    (saying(**LLAMA, architectures=["MyLlama"]), UNSUPPORTED, "'MyLlama': it needs remote code"),
]


@pytest.mark.parametrize(("spoil", "error", "message"), SPOILT, ids=[message for *_, message in SPOILT])
def test_a_spoilt_folder_is_refused(folder, spoil, error, message):
    (folder / "mine.py").write_text(f"open({str(folder.parent / 'ran')!r}, 'w')")
    spoil(folder)
    refused(error, message, cl.load_model, folder)
    assert not (folder.parent / "ran").exists()


BERT = {"model_type": "bert", **tiny.STACK}
CLASSES = [
    (BERT | {"architectures": ["BertModel"]}, transformers.BertModel),
    (BERT, transformers.BertModel),  # an encoder is never taken for a decoder
    (BERT | {"architectures": ["BertForMaskedLM"]}, transformers.BertForMaskedLM),
    (LLAMA | {"architectures": ["LLaMAForCausalLM"]}, transformers.LlamaForCausalLM),  # in place of remote code
]


@pytest.mark.parametrize(("config", "expected"), CLASSES)
def test_class_is_that_of_the_configuration(tmp_path, config, expected):
    saying(**config)(tmp_path)
    assert type(cl.load_model(tmp_path, untrained=True).hf) is expected


def test_a_flipped_bit_is_refused_or_changes_nothing(folders, folder):
    content = (folder / WEIGHTS).read_bytes()
    for at in [*range(8), *range(8, 8 + int.from_bytes(content[:8], "little"), 151)]:
        (folder / WEIGHTS).write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        try:
            loaded = cl.load_model(folder)
        except CouplingError as error:
            assert "\n" not in str(error)
        else:
            assert tiny.same_weights(loaded.hf, folders["llama"][1])


def test_blocks_for_next_token_prediction_are_ignored(folder):
    weights = load_file(folder / WEIGHTS)
    more = {key.replace("layers.2", "layers.3"): v.clone() for key, v in weights.items() if "layers.2" in key}
    save_file(weights | more, folder / WEIGHTS, metadata={"format": "pt"})
    refused(ModelUnavailableError, "says 3 blocks, and the weights are of 4", cl.load_model, folder)
    setting(num_nextn_predict_layers=1)(folder)
    assert cl.load_model(folder).n_blocks == 3


T5 = dict(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
BART = dict(vocab_size=64, d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64)
BART |= dict(decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=64, max_position_embeddings=64)


@pytest.mark.parametrize("config", [transformers.BartConfig(**BART), transformers.T5Config(**T5)], ids=["Bart", "T5"])
def test_encoder_decoder_is_refused_and_encoder_exact(config, tmp_path):
    """What the line advises, compared with brute force."""
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    refused(UnsupportedModelError, r"is an encoder-decoder \(\w+\).*\.get_encoder", cl.load_model, tmp_path)
    whole = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    refused(UnsupportedModelError, "is an encoder-decoder", cl.wrap_model, whole)
    encoder, ids = whole.get_encoder(), torch.arange(3, 12)[None]
    model = cl.wrap_model(encoder)
    wanted = brute_force_jacobian(encoder, model.blocks.modules[1], {"input_ids": ids}, 8, 8)
    assert relative_error(cl.trace(model, ids).jacobian(1).dense(), wanted) < 1e-6


def test_folder_with_encoder_alone_is_loaded(tmp_path):
    transformers.T5EncoderModel(transformers.T5Config(**T5)).save_pretrained(tmp_path)
    assert cl.load_model(tmp_path).n_blocks == 2


def test_wrap_model_freezes_the_given_model():
    hf = tiny.llama().train()
    model = cl.wrap_model(hf, tiny.tokenizer(), name="mine")
    assert model.hf is hf and not hf.training and not any(p.requires_grad for p in hf.parameters())
    assert (model.name, model.source, model.precision, model.n_blocks) == ("mine", "memory", "float32", tiny.BLOCKS)
    assert hf.config._attn_implementation == attention.NAME
