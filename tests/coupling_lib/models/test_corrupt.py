"""Checkpoints that are not what they say: each ends in one line, or is the model that was saved."""

from __future__ import annotations

import json

import pytest
import tiny
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


def refused(folder, error=CouplingError) -> str:
    with pytest.raises(error) as raised:
        load_model(folder)
    message = str(raised.value)
    assert message and "\n" not in message
    return message


def belong(key: str, stored: str, asked: str) -> str:
    return f"do not belong together: {key} is {stored}, and config.json asks for {asked}"


DOWN, EMBED = "model.layers.0.mlp.down_proj.weight", "lm_head.weight"
KEYS, OUTPUT = "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.o_proj.weight"


@pytest.mark.parametrize(
    ("setting", "value", "error", "said"),
    [
        ("hidden_size", 64, UnsupportedModelError, belong(EMBED, "280 x 32", "280 x 64")),
        (
            "hidden_size",
            0,
            UnsupportedModelError,
            "modulo by zero); check that its configuration, weights and tokenizer",
        ),
        ("hidden_size", -32, UnsupportedModelError, "makes no LlamaForCausalLM (RuntimeError: Trying to create tensor"),
        ("hidden_size", 2**40, ModelUnavailableError, "needs 6293604.6 GB in float32"),
        ("hidden_size", "wide", UnsupportedModelError, "'hidden_size' expected int, got str"),
        ("hidden_size", 32.5, UnsupportedModelError, "'hidden_size' expected int, got float"),
        ("vocab_size", 281, UnsupportedModelError, belong(EMBED, "280 x 32", "281 x 32")),
        ("intermediate_size", 48, UnsupportedModelError, belong(DOWN, "32 x 64", "32 x 48")),
        ("num_attention_heads", 8, UnsupportedModelError, belong(OUTPUT, "32 x 32", "32 x 64")),
        ("num_attention_heads", 0, UnsupportedModelError, "is not understood (integer modulo by zero)"),
        ("num_key_value_heads", 4, UnsupportedModelError, belong(KEYS, "16 x 32", "32 x 32")),
        (
            "num_hidden_layers",
            4,
            ModelUnavailableError,
            "lack 9 of the model's tensors (model.layers.3.input_layernorm",
        ),
        ("num_hidden_layers", 2, ModelUnavailableError, "says 2 blocks, and the weights are of 3; take both from one"),
        ("num_hidden_layers", 0, UnsupportedModelError, "has no list of 0 blocks"),
        ("num_hidden_layers", 10**7, UnsupportedModelError, "says that it has 10,000,000 blocks, and at most 10,000"),
        ("hidden_act", "none", UnsupportedModelError, "makes no LlamaForCausalLM (KeyError: 'none'); check its values"),
    ],
)
def test_a_configuration_that_lies_about_the_shape_is_refused(folder, setting, value, error, said):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {setting: value}))
    assert said in refused(folder, error)


def test_a_flipped_bit_anywhere_in_the_header_is_refused_or_changes_nothing(saved, folder):
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
    assert "damaged or truncated" in refused(folder, ModelUnavailableError)


def test_predicted_tokens_kept_as_further_blocks_are_none_of_the_model(folder):
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    more = {key.replace("layers.2", "layers.3"): v.clone() for key, v in weights.items() if "layers.2" in key}
    save_file(weights | more, folder / "model.safetensors", metadata={"format": "pt"})
    assert "says 3 blocks, and the weights are of 4" in refused(folder, ModelUnavailableError)
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert load_model(folder).n_blocks == 3
