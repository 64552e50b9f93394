"""Finding blocks and recording their calls; what cannot be measured is refused by its true reason."""

import math

import pytest
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error
from refusals import refused
from tiny import STACK, llama
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, PreTrainedModel

import coupling_lib as cl
from coupling_lib.blocks import call as calls
from coupling_lib.blocks import record as blocks
from coupling_lib.blocks.find import find_blocks
from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.inputs.images import load_images, normalisation

IDS = torch.arange(3, 12)[None]
TEXT = dict(STACK, vocab_size=280, max_position_embeddings=64)
VISION = dict(STACK, image_size=16, patch_size=8)
SPECTROGRAM = transformers.ASTConfig(**STACK, max_length=64, num_mel_bins=32)
AUDIO = dict(conv_dim=(16, 16), conv_stride=(2, 2), conv_kernel=(3, 3), num_conv_pos_embeddings=8)
AUDIO = transformers.Wav2Vec2Config(**STACK, **AUDIO, num_conv_pos_embedding_groups=2)


def test_block_outputs_may_be_tensors_or_tuples():
    """Some families return a tuple, others a bare tensor, whose `[0]` would be batch element 0."""
    kinds = {}
    for name in ("gpt-neo", "bloom-alibi", "llama", "gpt2"):
        hf = named(name).build()
        found = find_blocks(hf)
        found.modules[0].register_forward_hook(lambda *given, name=name: kinds.update({name: type(given[-1])}))
        call = blocks.record(hf, found, {"input_ids": IDS})[0]
        assert call.output.shape == call.input.shape == (1, 9, 32)
    assert set(kinds.values()) == {torch.Tensor, tuple}
    other = r"returned \(9, 32\); a residual stream of shape \(1, 9, 32\)"
    for output, message in ((torch.zeros(9, 32), other), (None, "returned NoneType")):
        refused(UnsupportedModelError, message, calls.residual_stream, output, torch.Size([1, 9, 32]))


def test_a_filled_cache_is_never_replayed():
    """A block replayed with the cache of its own forward pass attends to every token twice."""
    hf = named("llama").build()
    hf.set_attn_implementation("eager")
    recorded = blocks.record(hf, found := find_blocks(hf), {"input_ids": IDS})
    assert not any(isinstance(value, DynamicCache) for call in recorded for value in call.arguments.values())
    cache, call, block = DynamicCache(config=hf.config), recorded[1], found.modules[1]
    hf(input_ids=IDS, past_key_values=cache, use_cache=True)
    torch.testing.assert_close(call.replay(block, call.input), call.output)
    with_cache = call.with_argument("past_key_values", cache).with_argument("attention_mask", None)
    assert float((with_cache.replay(block, call.input) - call.output).abs().max()) > 1e-3
    sorted_out = blocks.block_call(block, (call.input,), {"past_key_values": cache}, call.output, {})
    assert sorted_out.arguments == {"past_key_values": None}


def test_blocks_are_found_by_depth_or_refused():
    paths = {"gpt2": "transformer.h", "mpt-alibi": "transformer.blocks", "opt": "model.decoder.layers"}
    paths |= {"bert": "encoder.layer"}
    assert {name: find_blocks(named(name).build()).path for name in paths} == paths
    hf = named("gpt2").build()
    hf.transformer.h = hf.transformer.h[:2]
    refused(UnsupportedModelError, "no list of 3 blocks", find_blocks, hf)


def test_recorded_calls_move_to_one_device():
    x = torch.ones(1, 3, 4)
    given = {"mask": x, "tables": (x, [x, None]), "named": {"a": x}, "flag": True}
    call = blocks.BlockCall(nn.Identity(), x, x + 1, "x", given)
    moved, here = call.on("meta"), call.on("cpu")
    there, (first, (second, nothing)) = moved.arguments, moved.arguments["tables"]
    assert all(one.is_meta for one in (moved.input, moved.output, there["mask"], there["named"]["a"], first, second))
    assert nothing is None and there["flag"] is True
    assert here.input is x and here.arguments["mask"] is x and here.arguments["tables"][0] is x


def test_weight_elsewhere_leaves_recorded_calls_unchanged():
    hf = named("llama").build()
    wanted = blocks.record(hf, found := find_blocks(hf), {"input_ids": IDS})
    found.modules[1].mlp.elsewhere = nn.Parameter(torch.empty(1, device="meta"))
    for ours, theirs in zip(blocks.record(hf, found, {"input_ids": IDS}), wanted, strict=True):
        assert ours.arguments.keys() == theirs.arguments.keys()
        values = ((call.input, call.output, *call.arguments["position_embeddings"]) for call in (ours, theirs))
        torch.testing.assert_close(*values, rtol=0, atol=0)
        assert torch.equal(ours.replay(ours.block, ours.input), ours.output)


@pytest.mark.parametrize("family", ["CLIP", "MetaClip2", "Siglip"])
def test_image_classifier_is_measured_on_its_vision_stack(family):
    """Their configuration has the image's size, and the depth of the stack that reads it, in its `vision_config`."""
    shape = dict(num_attention_heads=2, intermediate_size=32)
    vision = dict(shape, hidden_size=16, num_hidden_layers=2, image_size=16, patch_size=8)
    text = dict(shape, hidden_size=8, num_hidden_layers=3, vocab_size=32)
    config = getattr(transformers, f"{family}Config")(vision_config=vision, text_config=text, num_labels=2)
    torch.manual_seed(0)
    model = cl.wrap_model(getattr(transformers, f"{family}ForImageClassification")(config).double())
    (picture,) = load_images("digits", config, 1)
    pixels = picture.pixels.double()
    traced = cl.trace(model, pixels)
    assert pixels.shape == (1, 3, 16, 16) and traced.hidden.shape == (3, 4 if family == "Siglip" else 5, 16)
    wanted = brute_force_jacobian(model.hf, model.blocks.modules[1], {"pixel_values": pixels}, 1, 2)
    assert relative_error(traced.jacobian(1, 1, 2).dense(), wanted) < 1e-6  # their softmax is float32
    refused(ParameterError, r"reads \(1, 3, 16, 16\)", cl.trace, model, pixels[..., :8])


def test_clip_images_are_normalised_by_clip_statistics():
    config = transformers.CLIPConfig(vision_config=dict(image_size=8))
    (picture,) = load_images("digits", config, 1)
    mean, std = normalisation(config.vision_config)
    raw = picture.pixels * torch.tensor(std).view(1, 3, 1, 1) + torch.tensor(mean).view(1, 3, 1, 1)
    assert mean[0] == 0.48145466 and torch.allclose(raw[0, 0], raw[0, 2], atol=1e-6)


class MyAttention(transformers.models.llama.modeling_llama.LlamaAttention):
    """Attention of one's own, in a module that has no plain attention beside it."""


def with_own_attention(hf: PreTrainedModel) -> PreTrainedModel:
    for layer in hf.model.layers:
        own = MyAttention(hf.config, layer.self_attn.layer_idx).double()
        own.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = own
    return hf


def compiled_in_place(hf: PreTrainedModel) -> PreTrainedModel:
    for layer in hf.model.layers:
        layer.mlp.compile(backend="eager")
    return hf


@pytest.mark.parametrize(
    "change", [with_own_attention, compiled_in_place, lambda hf: torch.compile(hf, backend="eager")]
)
def test_custom_attention_and_compiled_models_are_exact(change):
    plain, trace = llama().double(), cl.trace(cl.wrap_model(change(llama().double())), IDS)
    wanted = brute_force_jacobian(plain, plain.model.layers[1], {"input_ids": IDS}, 8, 8)
    assert relative_error(trace.jacobian(1).dense(), wanted) < 1e-6


def compiled_blocks() -> PreTrainedModel:
    hf = llama()
    hf.model.layers = nn.ModuleList(torch.compile(layer, backend="eager") for layer in hf.model.layers)
    return hf


def clip() -> PreTrainedModel:
    text = dict(TEXT, bos_token_id=0, eos_token_id=1)
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16))


def blip_2() -> PreTrainedModel:
    text = dict(TEXT, model_type="opt", ffn_dim=64, word_embed_proj_dim=32)
    former = dict(STACK, encoder_hidden_size=32, vocab_size=280)
    config = transformers.Blip2Config(vision_config=VISION, qformer_config=former, text_config=text, num_query_tokens=4)
    return transformers.Blip2ForConditionalGeneration(config)


WRONG_INPUT = "reads input_values; what reads input_ids or pixel_values can be measured"
REFUSED = {
    "compiled blocks": (compiled_blocks, "were wrapped by torch.compile, .*; wrap the model before it is compiled"),
    "CLIP": (clip, "reads more than input_ids: wrap one of its parts, model.text_model or model.vision_model"),
    "BLIP-2": (blip_2, "wrap one of its parts, model.vision_model or model.qformer or model.language_model"),
    "AST": (lambda: transformers.ASTModel(SPECTROGRAM), f"ASTModel {WRONG_INPUT}"),
    "wav2vec2": (lambda: transformers.Wav2Vec2Model(AUDIO), f"Wav2Vec2Model {WRONG_INPUT}"),
}


@pytest.mark.parametrize(("made", "message"), REFUSED.values(), ids=REFUSED)
def test_refusal_names_its_reason_and_a_remedy(made, message):
    refused(UnsupportedModelError, message, cl.wrap_model, made().eval())


def test_text_and_vision_parts_are_measured_alone():
    hf, pixels = clip().eval(), torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for part, given in ((hf.text_model, IDS), (hf.vision_model, pixels)):
        assert cl.trace(cl.wrap_model(part), given).jacobian(1).dense().any()
    audio = dict(d_model=32, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=16)
    text = dict(STACK, model_type="qwen2", vocab_size=280, num_key_value_heads=2)
    config = transformers.Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_index=279)
    hf = transformers.Qwen2AudioForConditionalGeneration(config).eval()
    assert "language_model" in find_blocks(hf).path
    trace = cl.trace(cl.wrap_model(hf), IDS)
    wanted = brute_force_jacobian(hf, trace.model.blocks.modules[1], {"input_ids": IDS, "use_cache": False}, 8, 8)
    assert relative_error(trace.jacobian(1).dense(), wanted) < 1e-4


class Other(TorchFunctionMode):
    """Within it, `topk` takes the smallest: experts that the model did not take."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.topk, torch.Tensor.topk):
            return func(args[0], *args[1:], **{**(kwargs or {}), "largest": False})
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "gpt-oss", "deepseek-v3"])
def test_jacobian_uses_the_experts_of_the_pass(family):
    model = cl.wrap_model(named(family).build())
    trace = cl.trace(model, IDS)
    assert model.blocks.choosing and sum(len(call.chosen) > 0 for call in trace.calls) >= 2
    wanted = brute_force_jacobian(model.hf, model.blocks.modules[-1], {"input_ids": IDS}, 8, 8)
    with Other():  # what a copy in another number format would rank
        assert relative_error(trace.jacobian(-1).dense(), wanted) < 1e-5


def test_recorded_experts_are_those_of_the_model():
    model = cl.wrap_model(named("llama").build())
    assert not model.blocks.choosing and all(call.chosen == () for call in cl.trace(model, IDS).calls)
    model = cl.wrap_model(named("mixtral").build().to(torch.bfloat16))
    trace = cl.trace(model, IDS)
    for number, call in enumerate(trace.calls):
        with calls.RecordedChoices(lambda: 0) as noting:
            model.blocks.modules[number](call.input, **call.arguments)
        torch.testing.assert_close(list(noting.chosen[0]), list(call.chosen), rtol=0, atol=0)
        assert trace.jacobian(number).dense().isfinite().all()


def test_fixed_choices_replace_topk_call_by_call():
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.3]])
    first, second = torch.tensor([[2, 0], [1, 2]]), torch.tensor([[0], [0]])
    with calls.FixedChoices([first, second]):
        values, index = torch.topk(scores, 2, dim=-1)
        assert torch.equal(index, first) and torch.equal(values, torch.tensor([[0.5, 0.1], [0.2, 0.3]]))
        assert torch.equal(scores.topk(1).values, scores[:, :1])
        assert scores.topk(1).indices.tolist() == [[1], [0]]  # none is held any more
    for shape in [(5, 2), (1, 5, 2), (1, 5, 3, 2)]:
        chosen = torch.arange(math.prod(shape)).reshape(shape)
        few = calls.chosen_rows(chosen, torch.tensor([[1, 4]]), 5)
        assert torch.equal(few, chosen.reshape(5, -1, 2)[[1, 4]].reshape(-1, 2))
