"""Checkpoints that are not what they say: each ends in one line, or is the model that was saved."""

import json

import pytest
import tiny
from refusals import refused
from safetensors.torch import load_file, save_file

from coupling_lib.errors import CouplingError, ModelUnavailableError, UnsupportedModelError
from coupling_lib.models.load import load_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "m"
    return folder, tiny.save_llama(folder)


@pytest.fixture
def folder(saved):
    """The folder of a sound model, which is put right again when a test has spoilt it."""
    place, _ = saved
    kept = {name: (place / name).read_bytes() for name in ("config.json", "model.safetensors")}
    yield place
    for name, content in kept.items():
        (place / name).write_bytes(content)


def message(folder, error=CouplingError) -> str:
    return refused(error, "", load_model, folder)


def belong(key: str, stored: str, asked: str) -> str:
    return f"do not belong together: {key} is {stored}, and config.json asks for {asked}"


DOWN, EMBED = "model.layers.0.mlp.down_proj.weight", "lm_head.weight"
KEYS, OUTPUT = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.o_proj.weight"


UNSUPPORTED, UNAVAILABLE = UnsupportedModelError, ModelUnavailableError


@pytest.mark.parametrize(
    ("setting", "value", "error", "expected"),
    [
        ("hidden_size", 64, UNSUPPORTED, belong(EMBED, "280 x 32", "280 x 64")),
        ("hidden_size", 0, UNSUPPORTED, "modulo by zero); check that its configuration, weights and tokenizer"),
        ("hidden_size", -32, UNSUPPORTED, "makes no LlamaForCausalLM (RuntimeError: Trying to create tensor"),
        ("hidden_size", 2**40, UNAVAILABLE, "needs 6293604.6 GB in float32"),
        ("hidden_size", "wide", UNSUPPORTED, "'hidden_size' expected int, got str"),
        ("hidden_size", 32.5, UNSUPPORTED, "'hidden_size' expected int, got float"),
        ("vocab_size", 281, UNSUPPORTED, belong(EMBED, "280 x 32", "281 x 32")),
        ("intermediate_size", 48, UNSUPPORTED, belong(DOWN, "32 x 64", "32 x 48")),
        ("num_attention_heads", 8, UNSUPPORTED, belong(OUTPUT, "32 x 32", "32 x 64")),
        ("num_attention_heads", 0, UNSUPPORTED, "is not understood (integer modulo by zero)"),
        ("num_key_value_heads", 4, UNSUPPORTED, belong(KEYS, "16 x 32", "32 x 32")),
        ("num_hidden_layers", 4, UNAVAILABLE, "lack 9 of the model's tensors (model.layers.3.input_layernorm"),
        ("num_hidden_layers", 2, UNAVAILABLE, "says 2 blocks, and the weights are of 3; take both from one"),
        ("num_hidden_layers", 0, UNSUPPORTED, "has no list of 0 blocks"),
        ("num_hidden_layers", 10**7, UNSUPPORTED, "says that it has 10,000,000 blocks, and at most 10,000"),
        ("hidden_act", "none", UNSUPPORTED, "makes no LlamaForCausalLM (KeyError: 'none'); check its values"),
    ],
)
def test_a_configuration_of_another_shape_is_refused(folder, setting, value, error, expected):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {setting: value}))
    assert expected in message(folder, error)


def test_a_flipped_bit_is_refused_or_changes_nothing(saved, folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    for at in [*range(8), *range(8, length, 151)]:
        file.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        try:
            loaded = load_model(folder)
        except CouplingError as error:
            assert "\n" not in str(error)
            continue
        assert tiny.same_weights(loaded.hf, saved[1])


@pytest.mark.parametrize("length", [0, 7, 8, 500, -1])
def test_a_truncated_file_is_refused_wherever_it_ends(folder, length):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "damaged or truncated" in message(folder, ModelUnavailableError)


def test_blocks_for_next_token_prediction_are_ignored(folder):
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    more = {key.replace("layers.2", "layers.3"): v.clone() for key, v in weights.items() if "layers.2" in key}
    save_file(weights | more, folder / "model.safetensors", metadata={"format": "pt"})
    assert "says 3 blocks, and the weights are of 4" in message(folder, ModelUnavailableError)
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert load_model(folder).n_blocks == 3
