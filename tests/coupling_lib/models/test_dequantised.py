"""Checkpoints in MXFP4 and FP8: Jacobians of dense models whose weights are dequantised by hand, entry by entry."""

import json

import pytest
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error
from refusals import refused
from safetensors.torch import load_file, save_file

import coupling_lib as cl
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError

IDS = torch.arange(3, 14)[None]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def built(name: str, **changes) -> transformers.PreTrainedModel:
    family = named(name)
    config = getattr(transformers, family.config)(**family.arguments | changes)
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=0.15)
    return hf


def written(hf, folder, quantised, method, drop=()):
    """Save a model, some tensors in few bits and the method in the configuration, and return what these stand for."""
    hf.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors, expected = quantised(load_file(file))
    save_file({key: value.contiguous() for key, value in tensors.items() if key not in drop}, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": method}))
    return expected


def put(plain, values: dict[str, torch.Tensor], folder) -> transformers.PreTrainedModel:
    """The dense model that the values make, read as any checkpoint is."""
    plain.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    assert values.keys() <= tensors.keys() and all(values[key].shape == tensors[key].shape for key in values)
    tensors |= {key: value.contiguous() for key, value in values.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    hf = type(plain).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    hf.set_experts_implementation("eager")
    return hf


def compared(model, dense) -> float:
    """The largest difference of Jacobians from brute force in the dense model."""
    trace, errors = cl.trace(model, IDS), []
    for block, (token_in, token_out) in ((0, (10, 10)), (1, (6, 9)), (2, (10, 10))):
        module = dense.get_submodule(model.blocks.path)[block]
        brute = brute_force_jacobian(dense, module, {"input_ids": IDS}, token_in, token_out)
        errors.append(relative_error(trace.jacobian(block, token_in=token_in, token_out=token_out).dense(), brute))
    return max(errors)


def in_mxfp4(values: dict[str, torch.Tensor]):
    """Experts of gpt-oss as they are published, and by hand what they stand for."""
    stored, expected, generator = {}, {}, torch.Generator().manual_seed(1)
    for key, value in values.items():
        if not key.endswith(("gate_up_proj", "down_proj")):
            stored[key] = value
            continue
        experts, inputs, outputs = value.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(122, 125, shape, generator=generator, dtype=torch.uint8)
        stored |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
        expected[key] = by_hand = torch.empty(experts, inputs, outputs)
        for e, o, g in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
            power = 2.0 ** (int(scales[e, o, g]) - 127)
            for byte, two in enumerate(blocks[e, o, g].tolist()):
                by_hand[e, 32 * g + 2 * byte, o] = E2M1[two % 16] * power
                by_hand[e, 32 * g + 2 * byte + 1, o] = E2M1[two // 16] * power
    return stored, expected


MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    plain, folder = built("gpt-oss"), tmp_path_factory.mktemp("gpt-oss")
    expected = written(plain, folder, in_mxfp4, MXFP4)
    return folder, put(plain, expected, tmp_path_factory.mktemp("plain")), expected


def test_gpt_oss_in_mxfp4_is_the_dense_model(gpt_oss, capsys):
    folder, dense, expected = gpt_oss
    model = cl.load_model(folder)
    assert "are stored in mxfp4 and become dense while they are read" in capsys.readouterr().out
    assert all(torch.equal(model.hf.get_parameter(key), value) for key, value in expected.items())
    assert len(expected) == 6
    assert compared(model, dense) < 5e-6
    assert not hasattr(model.hf.config, "quantization_config")


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("int8", marks=pytest.mark.thorough), "nf4"])
def test_other_precisions_are_those_of_the_dense_model(gpt_oss, precision, tmp_path):
    folder, dense, _ = gpt_oss
    dense.save_pretrained(tmp_path)
    found, wanted = (cl.load_model(where, precision=precision).hf.state_dict() for where in (folder, tmp_path))
    assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_offloaded_mxfp4_blocks_equal_the_dense_model(gpt_oss, tmp_path):
    folder, dense, _ = gpt_oss
    dense.save_pretrained(tmp_path)
    found, wanted = (cl.load_model(where, memory="205KB") for where in (folder, tmp_path))
    assert found.offloaded and wanted.offloaded
    assert torch.equal(*(cl.trace(model, IDS).jacobian(1).dense() for model in (found, wanted)))


@pytest.mark.parametrize("method", [MXFP4, {"quant_method": "gptq", "bits": 4}, {"quant_method": "awq"}])
def test_untrained_weights_are_those_of_the_plain_configuration(gpt_oss, method, tmp_path):
    folder = gpt_oss[0]
    for place, given in (("few", {"quantization_config": method}), ("plain", {})):
        stored = json.loads((folder / "config.json").read_text())
        config = {key: value for key, value in stored.items() if "quant" not in key}
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text(json.dumps(config | given))
    found, wanted = (cl.load_model(tmp_path / place, untrained=True).hf.state_dict() for place in ("few", "plain"))
    assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in wanted)


def in_fp8(values, scale_of, name="{}_scale_inv", only="proj"):
    """Matrices in e4m3 with random scales, and by hand what they stand for; beside them scales of activations."""
    stored, expected, generator = {}, {}, torch.Generator().manual_seed(2)
    for key, value in values.items():
        stored[key] = value
        if value.ndim == 2 and only in key:
            scale, spread = scale_of(value.shape, generator)
            narrow = (value / spread).clamp(-440, 440).to(torch.float8_e4m3fn)
            base = key.removesuffix(".weight")
            stored |= {key: narrow, name.format(key, base=base): scale, f"{base}.input_scale": torch.tensor(7.0)}
            stored[f"{base}.activation_scale"] = torch.tensor(3.0)
            expected[key] = narrow.float() * spread
    return stored, expected


def in_blocks(side_rows, side_columns):
    """One scale for each block of some rows and columns; the last ones may be short."""

    def scale_of(shape, generator):
        rows, columns = -(-shape[0] // side_rows), -(-shape[1] // side_columns)
        scale = torch.rand(rows, columns, generator=generator) * 0.01 + 0.001
        return scale, scale[torch.arange(shape[0]) // side_rows][:, torch.arange(shape[1]) // side_columns]

    return scale_of


def for_all(shape, generator):
    scale = torch.rand(1, generator=generator)[0] * 0.01 + 0.001
    return scale, scale.expand(shape)


def for_a_row(shape, generator):
    scale = torch.rand(shape[0], 1, generator=generator) * 0.01 + 0.001
    return scale, scale.expand(shape)


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
SMALL = BLOCKS | {"weight_block_size": [24, 16]}
TENSOR = BLOCKS | {"weight_block_size": None, "activation_scheme": "static"}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
CHANNEL = {"quant_method": "compressed-tensors", "format": "float-quantized"}
CHANNEL |= {"config_groups": {"group_0": {"weights": WEIGHTS}}}
WIDE = dict(hidden_size=136, num_attention_heads=4, num_key_value_heads=2, head_dim=34, intermediate_size=200)
CASES = {
    "deepseek-v3 in blocks": ("deepseek-v3", {}, SMALL, in_blocks(24, 16), "{}_scale_inv"),
    "qwen3-moe in blocks": ("qwen3-moe", {}, SMALL, in_blocks(24, 16), "{}_scale_inv"),
    "qwen3 in blocks of 128": ("qwen3", WIDE, BLOCKS, in_blocks(128, 128), "{}_scale_inv"),
    "one scale, of its name": ("llama", {}, TENSOR, for_all, "{}_scale"),
    "one scale, inverse": ("mixtral", {}, TENSOR, for_all, "{}_scale_inv"),
    "one scale a row": ("llama", {}, CHANNEL, for_a_row, "{}_scale"),
    "rows of fbgemm": ("llama", {}, {"quant_method": "fbgemm_fp8"}, for_a_row, "{}_scale"),
    "a scale beside": ("deepseek-v3", {}, SMALL, in_blocks(24, 16), "{base}.scale"),
}


def stored_fp8(case, tmp_path, drop=(), method=None):
    kind, changes, given, scale_of, name = CASES[case]
    plain, folder = built(kind, **changes), tmp_path / "few"
    return folder, plain, written(plain, folder, lambda v: in_fp8(v, scale_of, name), method or given, drop)


QUICK = ("deepseek-v3 in blocks", "one scale, of its name", "one scale a row")


@pytest.mark.parametrize("case", [pytest.param(x, marks=[pytest.mark.thorough] * (x not in QUICK)) for x in CASES])
def test_fp8_is_the_dense_model(case, tmp_path):
    folder, plain, expected = stored_fp8(case, tmp_path)
    assert len(expected) > 8
    assert compared(cl.load_model(folder), put(plain, expected, tmp_path / "plain")) < 5e-6


def test_missing_or_mismatched_scales_are_refused(tmp_path):
    lacking = "model.layers.1.self_attn.o_proj.weight_scale_inv"
    folder, *_ = stored_fp8("deepseek-v3 in blocks", tmp_path, drop=(lacking,))
    with pytest.raises(ModelUnavailableError, match=r"lack the scale of model\.layers\.1\.self_attn\.o_proj\.weight"):
        cl.load_model(folder)
    folder, *_ = stored_fp8("qwen3-moe in blocks", tmp_path / "other", method=BLOCKS | {"weight_block_size": [7, 5]})
    message = r"_proj\.weight of .* is \d+ x \d+ and its scales are \d x \d, which"
    refused(UnsupportedModelError, message, cl.load_model, folder)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "quanto", "compressed-tensors"])
def test_other_quantisation_methods_are_refused(gpt_oss, method, tmp_path):
    config = json.loads((gpt_oss[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    with pytest.raises(UnsupportedModelError, match=rf"are quantised already \({method}\).*or pass untrained=True"):
        cl.load_model(tmp_path)
    assert cl.load_model(tmp_path, untrained=True).n_blocks == 3
