"""What cannot be measured is refused by its true reason, and what looks alike is measured."""

import pytest
import torch
import transformers
from reference import brute_force_jacobian, relative_error
from refusals import refused
from tiny import STACK, llama

import coupling_lib as cl
from coupling_lib.blocks.find import find_blocks
from coupling_lib.errors import UnsupportedModelError

IDS = torch.randint(5, 200, (1, 9), generator=torch.Generator().manual_seed(1))
TEXT = dict(STACK, vocab_size=280, max_position_embeddings=64)
VISION = dict(STACK, image_size=16, patch_size=8)
AUDIO = dict(STACK, conv_dim=(16, 16), conv_stride=(2, 2), conv_kernel=(3, 3), num_conv_pos_embeddings=8)
AUDIO |= dict(num_conv_pos_embedding_groups=2)
SPECTROGRAM = transformers.ASTConfig(**STACK, max_length=64, num_mel_bins=32)
WRONG_INPUT = "reads input_values; what reads input_ids or pixel_values can be measured"


class MyAttention(transformers.models.llama.modeling_llama.LlamaAttention):
    """Attention of one's own, in a module that has no plain attention beside it."""


def with_own_attention() -> transformers.PreTrainedModel:
    hf = llama().double()
    for layer in hf.model.layers:
        own = MyAttention(hf.config, layer.self_attn.layer_idx).double()
        own.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = own
    return hf


def compiled_in_place() -> transformers.PreTrainedModel:
    hf = llama().double()
    for layer in hf.model.layers:
        layer.mlp.compile(backend="eager")
    return hf


@pytest.mark.parametrize(
    "made", [with_own_attention, compiled_in_place, lambda: torch.compile(llama().double(), backend="eager")]
)
def test_custom_attention_and_compiled_models_are_exact(made):
    plain, trace = llama().double(), cl.trace(cl.wrap_model(made()), IDS)
    wanted = brute_force_jacobian(plain, plain.model.layers[1], {"input_ids": IDS}, 8, 8)
    assert relative_error(trace.jacobian(1).dense(), wanted) < 1e-6


def compiled_blocks() -> transformers.PreTrainedModel:
    hf = llama()
    for number, layer in enumerate(hf.model.layers):
        hf.model.layers[number] = torch.compile(layer, backend="eager")
    return hf


def clip() -> transformers.PreTrainedModel:
    text = dict(TEXT, bos_token_id=0, eos_token_id=1)
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16))


def blip_2() -> transformers.PreTrainedModel:
    text = dict(TEXT, model_type="opt", ffn_dim=64, word_embed_proj_dim=32)
    former = dict(STACK, encoder_hidden_size=32, vocab_size=280)
    config = transformers.Blip2Config(vision_config=VISION, qformer_config=former, text_config=text, num_query_tokens=4)
    return transformers.Blip2ForConditionalGeneration(config)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (compiled_blocks, "were wrapped by torch.compile, .*; wrap the model before it is compiled"),
        (clip, "reads more than input_ids: wrap one of its parts, model.text_model or model.vision_model"),
        (blip_2, "wrap one of its parts, model.vision_model or model.qformer or model.language_model"),
        (lambda: transformers.ASTModel(SPECTROGRAM), f"ASTModel {WRONG_INPUT}"),
        (lambda: transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**AUDIO)), f"Wav2Vec2Model {WRONG_INPUT}"),
    ],
)
def test_refusal_names_its_reason_and_a_remedy(made, message):
    refused(UnsupportedModelError, message, cl.wrap_model, made().eval())


def test_text_and_vision_parts_are_measured_alone():
    hf = clip().eval()
    assert cl.trace(cl.wrap_model(hf.text_model), IDS).jacobian(1).dense().any()
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert cl.trace(cl.wrap_model(hf.vision_model), pixels).jacobian(1).dense().any()
    audio = dict(d_model=32, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=16)
    text = dict(STACK, model_type="qwen2", vocab_size=280, num_key_value_heads=2)
    config = transformers.Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_index=279)
    hf = transformers.Qwen2AudioForConditionalGeneration(config).eval()
    assert "language_model" in find_blocks(hf).path
    trace = cl.trace(cl.wrap_model(hf), IDS)
    wanted = brute_force_jacobian(hf, trace.model.blocks.modules[1], {"input_ids": IDS, "use_cache": False}, 8, 8)
    assert relative_error(trace.jacobian(1).dense(), wanted) < 1e-4
