"""Checkpoints of few bits: Jacobians of dense models whose weights are dequantised by hand, entry by entry."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error
from refusals import refused
from safetensors.torch import load_file, save_file

import coupling_lib as cl
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.models import dequantised

IDS = torch.arange(3, 14)[None]
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def built(name: str, **changes) -> transformers.PreTrainedModel:
    family = named(name)
    return replace(family, arguments=family.arguments | changes).build().float()


def saved(hf, folder, change, **config):
    """Save a model with other tensors and further settings, and return what the tensors stand for."""
    hf.save_pretrained(folder)
    file, settings = folder / "model.safetensors", folder / "config.json"
    tensors, expected = change(load_file(file))
    save_file({key: value.contiguous() for key, value in tensors.items()}, file, {"format": "pt"})
    settings.write_text(json.dumps(json.loads(settings.read_text()) | config))
    return expected


def dense(plain, values: dict[str, torch.Tensor], folder) -> transformers.PreTrainedModel:
    """The model that the values make, read as any checkpoint is."""
    stored = saved(plain, folder, lambda tensors: (tensors | values, tensors))
    assert values.keys() <= stored.keys() and all(values[key].shape == stored[key].shape for key in values)
    hf = type(plain).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    hf.set_experts_implementation("eager")
    return hf


def compared(model, hf) -> float:
    """The largest difference of Jacobians from brute force in the dense model."""
    trace, errors, blocks = cl.trace(model, IDS), [], hf.get_submodule(model.blocks.path)
    for block, (token_in, token_out) in enumerate([(10, 10), (6, 9), (10, 10)]):
        brute = brute_force_jacobian(hf, blocks[block], {"input_ids": IDS}, token_in, token_out)
        errors.append(relative_error(trace.jacobian(block, token_in, token_out).dense(), brute))
    return max(errors)


def in_mxfp4(values: dict[str, torch.Tensor]):
    """Experts of gpt-oss as they are published, and by hand what they stand for."""
    stored, expected, generator = {}, {}, torch.Generator().manual_seed(1)
    for key, value in values.items():
        if not key.endswith(("gate_up_proj", "down_proj")):
            stored[key] = value
            continue
        shape = (len(value), value.shape[2], value.shape[1] // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(122, 125, shape, generator=generator, dtype=torch.uint8)
        stored |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
        expected[key] = torch.empty(value.shape)
        for e, o, g in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
            two = [half for byte in blocks[e, o, g].tolist() for half in (byte % 16, byte // 16)]
            expected[key][e, 32 * g : 32 * (g + 1), o] = E2M1[two] * 2.0 ** (int(scales[e, o, g]) - 127)
    return stored, expected


MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    """A folder in MXFP4, one with the dense model, that model, and its dequantised weights."""
    plain, few, many = built("gpt-oss"), tmp_path_factory.mktemp("few"), tmp_path_factory.mktemp("dense")
    expected = saved(plain, few, in_mxfp4, quantization_config=MXFP4)
    return few, many, dense(plain, expected, many), expected


def test_gpt_oss_in_mxfp4_is_the_dense_model(gpt_oss, capsys):
    folder, _, hf, expected = gpt_oss
    model = cl.load_model(folder)
    assert "are stored in mxfp4 and become dense while they are read" in capsys.readouterr().out
    assert all(torch.equal(model.hf.get_parameter(key), value) for key, value in expected.items())
    assert len(expected) == 6
    assert compared(model, hf) < 5e-6
    assert not hasattr(model.hf.config, "quantization_config")


def same(found, wanted) -> bool:
    ours, theirs = found.hf.state_dict(), wanted.hf.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("int8", marks=pytest.mark.thorough), "nf4"])
def test_other_precisions_are_those_of_the_dense_model(gpt_oss, precision):
    assert same(*(cl.load_model(folder, precision=precision) for folder in gpt_oss[:2]))


def test_offloaded_mxfp4_blocks_equal_the_dense_model(gpt_oss):
    found, wanted = (cl.load_model(folder, memory="205KB") for folder in gpt_oss[:2])
    assert found.offloaded and wanted.offloaded
    assert torch.equal(*(cl.trace(model, IDS).jacobian(1).dense() for model in (found, wanted)))


@pytest.mark.parametrize("method", [MXFP4, {"quant_method": "gptq", "bits": 4}, {"quant_method": "awq"}])
def test_untrained_weights_are_those_of_the_plain_configuration(gpt_oss, method, tmp_path):
    stored = json.loads((gpt_oss[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | {"quantization_config": method}))
    assert same(*(cl.load_model(folder, untrained=True) for folder in (tmp_path, gpt_oss[1])))


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "quanto", "compressed-tensors"])
def test_other_quantisation_methods_are_refused(gpt_oss, method, tmp_path):
    config = json.loads((gpt_oss[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    message = rf"are quantised already \({method}\).*or pass untrained=True"
    refused(UnsupportedModelError, message, cl.load_model, tmp_path)
    assert cl.load_model(tmp_path, untrained=True).n_blocks == 3


def random_scales(shape, block, generator):
    """A scale for each block of some rows and columns, or of all, and the scale of each number."""
    rows, columns = (side or size for side, size in zip(block, shape, strict=True))
    scale = torch.rand(-(-shape[0] // rows), -(-shape[1] // columns), generator=generator) * 0.01 + 0.001
    wide = scale[torch.arange(shape[0]) // rows][:, torch.arange(shape[1]) // columns]
    return scale if scale.numel() > 1 else scale[0, 0], wide


def in_fp8(values, block, name="{}_scale_inv", drop=""):
    """Matrices in e4m3 with random scales, and by hand what they stand for; beside them scales of activations."""
    stored, expected, generator = {}, {}, torch.Generator().manual_seed(2)
    for key, value in values.items():
        stored[key] = value
        if value.ndim == 2 and "proj" in key:
            scale, wide = random_scales(value.shape, block, generator)
            narrow, base = (value / wide).clamp(-440, 440).to(torch.float8_e4m3fn), key.removesuffix(".weight")
            stored |= {key: narrow, name.format(key, base=base): scale, f"{base}.input_scale": torch.tensor(7.0)}
            stored[f"{base}.activation_scale"] = torch.tensor(3.0)
            expected[key] = narrow.float() * wide
    stored.pop(drop, None)
    return stored, expected


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
SMALL = BLOCKS | {"weight_block_size": [24, 16]}
TENSOR = BLOCKS | {"weight_block_size": None, "activation_scheme": "static"}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
CHANNEL = {"quant_method": "compressed-tensors", "format": "float-quantized"}
CHANNEL |= {"config_groups": {"group_0": {"weights": WEIGHTS}}}
WIDE = dict(hidden_size=136, num_attention_heads=4, num_key_value_heads=2, head_dim=34, intermediate_size=200)
# By name: a family and changes of it, the method, the rows and columns that share a scale, and the name of the scale.
CASES = {
    "deepseek-v3 in blocks": ("deepseek-v3", {}, SMALL, (24, 16), "{}_scale_inv"),
    "qwen3-moe in blocks": ("qwen3-moe", {}, SMALL, (24, 16), "{}_scale_inv"),
    "qwen3 in blocks of 128": ("qwen3", WIDE, BLOCKS, (128, 128), "{}_scale_inv"),
    "one scale, of its name": ("llama", {}, TENSOR, (None, None), "{}_scale"),
    "one scale, inverse": ("mixtral", {}, TENSOR, (None, None), "{}_scale_inv"),
    "one scale a row": ("llama", {}, CHANNEL, (1, None), "{}_scale"),
    "rows of fbgemm": ("llama", {}, {"quant_method": "fbgemm_fp8"}, (1, None), "{}_scale"),
    "a scale beside": ("deepseek-v3", {}, SMALL, (24, 16), "{base}.scale"),
}
QUICK = ("deepseek-v3 in blocks", "one scale, of its name", "one scale a row")


@pytest.mark.parametrize("case", [pytest.param(x, marks=[pytest.mark.thorough] * (x not in QUICK)) for x in CASES])
def test_fp8_is_the_dense_model(case, tmp_path):
    kind, changes, method, block, name = CASES[case]
    plain = built(kind, **changes)
    expected = saved(plain, tmp_path / "few", partial(in_fp8, block=block, name=name), quantization_config=method)
    assert len(expected) > 8
    assert compared(cl.load_model(tmp_path / "few"), dense(plain, expected, tmp_path / "dense")) < 5e-6


def test_missing_or_mismatched_scales_are_refused(tmp_path):
    plain, lost, few = built("qwen3-moe"), "model.layers.1.self_attn.o_proj.weight", partial(in_fp8, block=(24, 16))
    saved(plain, tmp_path, partial(few, drop=f"{lost}_scale_inv"), quantization_config=SMALL)
    refused(ModelUnavailableError, f"lack the scale of {lost}", cl.load_model, tmp_path)
    saved(plain, tmp_path, few, quantization_config=BLOCKS | {"weight_block_size": [7, 5]})
    message = r"_proj\.weight of .* is \d+ x \d+ and its scales are \d x \d, which"
    refused(UnsupportedModelError, message, cl.load_model, tmp_path)


def packed(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Write each number, raised by half its range, behind the last one, the first in the lowest bits of 32."""
    each = 32 // bits
    words = torch.zeros(len(values), -(-values.shape[1] // each), dtype=torch.int64)
    for column, numbers in enumerate(values.mT):
        words[:, column // each] |= (numbers + 2 ** (bits - 1)) << (bits * (column % each))
    return words.where(words < 2**31, words - 2**32).to(torch.int32)


def packing(**weights) -> dequantised.Method:
    groups = {"group_0": {"weights": weights}}
    return dequantised.Method("compressed-tensors", {"format": "pack-quantized", "config_groups": groups})


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_what_was_packed(bits, tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (6, 40), generator=generator)
    scales = torch.rand(6, 5, generator=generator)
    stored = {"a.weight_packed": packed(values, bits), "a.weight_scale": scales, "a.input_scale": torch.ones(1)}
    save_file(stored | {"a.weight_shape": torch.tensor(values.shape)}, tmp_path / "model.safetensors")
    found = dequantised.tensors(tmp_path, packing(num_bits=bits, group_size=8), "a model")
    assert list(found) == ["a.weight"]
    assert torch.equal(found["a.weight"][...], values * scales[:, torch.arange(40) // 8])
    assert not packing(num_bits=3).is_read  # whose numbers straddle words
