"""Finding blocks, recording their calls, and refusing what does not fit."""

import pytest
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error
from refusals import refused
from torch import nn
from transformers import DynamicCache

import coupling_lib as cl
from coupling_lib.blocks import find
from coupling_lib.blocks import record as blocks
from coupling_lib.blocks.call import residual_stream
from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.inputs.images import load_images, normalisation

IDS = torch.arange(3, 12)[None]


def test_block_outputs_may_be_tensors_or_tuples():
    """P13: some families return a tuple, others a bare tensor, whose `[0]` would be batch element 0."""
    kinds = set()
    for name in ("gpt-neo", "bloom-alibi", "llama", "gpt2"):
        hf = named(name).build()
        found = find.find_blocks(hf)
        seen = []
        handle = found.modules[0].register_forward_hook(lambda module, args, output, seen=seen: seen.append(output))
        hf(input_ids=IDS, use_cache=False)
        handle.remove()
        kinds.add(type(seen[0]).__name__)
        call = blocks.record(hf, found, {"input_ids": IDS})[0]
        assert call.output.shape == call.input.shape == (1, 9, 32)
    assert kinds == {"Tensor", "tuple"}
    with pytest.raises(UnsupportedModelError, match=r"returned \(9, 32\); a residual stream of shape \(1, 9, 32\)"):
        residual_stream(torch.zeros(9, 32), torch.Size([1, 9, 32]))
    refused(UnsupportedModelError, "returned NoneType", residual_stream, None, torch.Size([1, 9, 32]))


def test_a_filled_cache_is_never_replayed():
    """P7: a block replayed with the cache of its own forward pass attends to every token twice."""
    hf = named("llama").build()
    hf.set_attn_implementation("eager")
    found = find.find_blocks(hf)
    calls = blocks.record(hf, found, {"input_ids": IDS})
    assert not any(isinstance(value, DynamicCache) for call in calls for value in call.arguments.values())
    cache = DynamicCache(config=hf.config)
    hf(input_ids=IDS, past_key_values=cache, use_cache=True)
    call = calls[1]
    right = call.replay(found.modules[1], call.input)
    with_cache = call.with_argument("past_key_values", cache).with_argument("attention_mask", None)
    wrong = with_cache.replay(found.modules[1], call.input)
    torch.testing.assert_close(right, call.output)
    assert float((wrong - call.output).abs().max()) > 1e-3
    sorted_out = blocks.block_call(found.modules[1], (call.input,), {"past_key_values": cache}, call.output, {})
    assert sorted_out.arguments == {"past_key_values": None}


def test_blocks_are_found_by_depth_or_refused():
    paths = {"gpt2": "transformer.h", "mpt-alibi": "transformer.blocks", "opt": "model.decoder.layers"}
    paths |= {"bert": "encoder.layer"}
    assert {name: find.find_blocks(named(name).build()).path for name in paths} == paths
    hf = named("gpt2").build()
    hf.transformer.h = nn.ModuleList(list(hf.transformer.h)[:2])
    refused(UnsupportedModelError, "no list of 3 blocks", find.find_blocks, hf)


def test_recorded_calls_move_to_one_device():
    x = torch.ones(1, 3, 4)
    given = {"mask": x, "tables": (x, [x, None]), "named": {"a": x}, "flag": True}
    call = blocks.BlockCall(nn.Identity(), x, x + 1, "x", given)
    moved = call.on("meta")
    there = [moved.input, moved.output, moved.arguments["mask"], *moved.arguments["tables"][1][:1]]
    assert all(one.is_meta for one in (*there, moved.arguments["tables"][0], moved.arguments["named"]["a"]))
    assert moved.arguments["tables"][1][1] is None and moved.arguments["flag"] is True
    here = call.on("cpu")
    assert here.input is x and here.arguments["mask"] is x and here.arguments["tables"][0] is x
    hf = named("llama").build()
    found = find.find_blocks(hf)
    wanted = blocks.record(hf, found, {"input_ids": IDS})
    found.modules[1].mlp.elsewhere = nn.Parameter(torch.empty(1, device="meta"))
    for ours, theirs in zip(blocks.record(hf, found, {"input_ids": IDS}), wanted, strict=True):
        assert torch.equal(ours.input, theirs.input) and torch.equal(ours.output, theirs.output)
        assert ours.arguments.keys() == theirs.arguments.keys()
        pair = (call.arguments["position_embeddings"] for call in (ours, theirs))
        assert all(torch.equal(a, b) for a, b in zip(*pair, strict=True))
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
    assert picture.pixels.shape == (1, 3, 16, 16)
    pixels = picture.pixels.double()
    traced = cl.trace(model, pixels)
    assert traced.hidden.shape == (3, 4 if family == "Siglip" else 5, 16)
    wanted = brute_force_jacobian(model.hf, model.blocks.modules[1], {"pixel_values": pixels}, 1, 2)
    assert relative_error(traced.jacobian(1, 1, 2).dense(), wanted) < 1e-6  # their softmax is float32
    refused(ParameterError, r"reads \(1, 3, 16, 16\)", cl.trace, model, pixels[..., :8])


def test_clip_images_are_normalised_by_clip_statistics():
    config = transformers.CLIPConfig(vision_config=dict(image_size=8))
    (picture,) = load_images("digits", config, 1)
    mean, std = normalisation(config.vision_config)
    raw = picture.pixels * torch.tensor(std).view(1, 3, 1, 1) + torch.tensor(mean).view(1, 3, 1, 1)
    assert mean[0] == 0.48145466 and torch.allclose(raw[0, 0], raw[0, 2], atol=1e-6)
