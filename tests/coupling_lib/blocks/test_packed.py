"""Experts of mixtures in 4 and in 8 bits: bitsandbytes' own numbers matrix by matrix, and Jacobians by brute force."""

import copy
from dataclasses import replace

import bitsandbytes.functional as bnb
import pytest
import tiny
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error, rows
from refusals import refused
from table_weights import dense

import coupling_lib as cl
from coupling_lib.blocks import packed, precision, storage, weight_memory
from coupling_lib.errors import PrecisionWarning, UnsupportedModelError

FURTHER = [pytest.param(name, marks=pytest.mark.thorough) for name in ("deepseek-v3", "qwen2-moe", "qwen3-moe")]
IDS = torch.arange(3, 14)[None]


@pytest.fixture(scope="module", params=["mixtral", "gpt-oss", *FURTHER])
def stored(request, tmp_path_factory):
    """A mixture in float32 and its folder; the matrices of its experts are no multiple of a block."""
    family, folder = named(request.param), tmp_path_factory.mktemp(request.param)
    sides = {"intermediate_size", "moe_intermediate_size"} & set(family.arguments)
    hf = replace(family, arguments=family.arguments | dict.fromkeys(sides, 28)).build().float()
    hf.save_pretrained(folder)
    return hf, folder


def theirs(matrix: torch.Tensor, kind: str) -> torch.Tensor:
    """One matrix (outputs x inputs), quantised and dequantised by bitsandbytes."""
    if kind != "int8":
        return bnb.dequantize_4bit(*bnb.quantize_4bit(matrix.contiguous(), quant_type=kind))
    data, scale, _ = bnb.int8_vectorwise_quant(matrix.half().contiguous())
    return data.float() * scale[:, None] / 127


def wanted(hf: torch.nn.Module, kind: str) -> dict[str, torch.Tensor]:
    """The experts' stacks by name, each matrix as bitsandbytes would store it as a linear layer's."""
    found = {}
    for name, weight in hf.named_parameters():
        if weight.ndim == 3:
            turned = hf.get_submodule(name.rpartition(".")[0]).is_transposed
            stack = torch.stack([theirs(matrix.T if turned else matrix, kind) for matrix in weight.detach()])
            found[name] = stack.mT if turned else stack
    return found


@pytest.mark.parametrize("untrained", [False, True])
@pytest.mark.parametrize("kind", ["nf4", pytest.param("fp4", marks=pytest.mark.thorough), "int8"])
def test_experts_are_stored_as_linear_layers_would_be(stored, kind, untrained):
    hf, folder = stored
    if untrained:
        hf = cl.load_model(folder, untrained=True).hf
    model = cl.load_model(folder, precision=kind, untrained=untrained)
    expected = wanted(hf, kind)
    assert len(expected) >= 2
    for name, values in expected.items():
        path, _, last = name.rpartition(".")
        found = packed.weights(model.hf.get_submodule(path), last, torch.float32)
        assert relative_error(found, values) < 1e-7 and relative_error(values, hf.get_parameter(name).detach()) > 1e-3


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_jacobians_are_those_of_the_dense_model(stored, kind):
    """A dense model whose weights are the quantised ones; int8 layers round activations, so states come from ours."""
    hf, folder = stored
    model = cl.load_model(folder, precision=kind)
    plain = dense(model.hf, type(hf).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager"))
    plain.set_experts_implementation("eager")
    for name, values in wanted(hf, kind).items():
        plain.get_parameter(name).data.copy_(values)
    block, before = plain.get_submodule(model.blocks.path)[1], copy.deepcopy(dict(model.hf.state_dict()))
    trace = cl.trace(model, IDS)
    if kind == "int8":
        ours = storage.dense_copy(model.blocks.modules[1], torch.float32).state_dict()
        torch.testing.assert_close(dict(ours), dict(block.state_dict()), rtol=1e-6, atol=1e-8)
    for token_in, token_out in ((10, 10), (4, 9)):
        if kind == "int8":
            leaf = trace.calls[1].input.clone().requires_grad_(True)
            brute = rows(trace.calls[1].replay(block, leaf)[0, token_out], leaf)[:, token_in]
            brute -= torch.eye(len(brute)) * (token_in == token_out)
        else:
            brute = brute_force_jacobian(plain, block, {"input_ids": IDS}, token_in, token_out)
        found, again = (each.jacobian(1, token_in, token_out).dense() for each in (trace, cl.trace(model, IDS)))
        assert relative_error(found, brute) < 5e-6 and torch.equal(found, again)
    torch.testing.assert_close(dict(model.hf.state_dict()), before, rtol=0, atol=0)


def test_share_of_quantised_weights_exceeds_99_percent(tmp_path, recwarn):
    """Sides of 256, of which norms and routers make under a percent; no word then, and the plan counts them."""
    sizes = dict(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=8, head_dim=32)
    config = transformers.MixtralConfig(**named("mixtral").arguments | sizes)
    config.save_pretrained(tmp_path)
    model = cl.load_model(tmp_path, precision="nf4", untrained=True)
    assert model.share_in_precision > 0.99
    assert PrecisionWarning not in [one.category for one in recwarn]
    need = weight_memory.bytes_needed(weight_memory.skeleton(transformers.MixtralForCausalLM, config))
    held = sum(x.nbytes for x in (*model.hf.parameters(), *model.hf.buffers()))
    held += sum(m.weight.quant_state.absmax.nbytes for m in model.hf.modules() if hasattr(m, "quant_state"))
    assert need["nf4"] == pytest.approx(held, rel=0.02)


def test_experts_left_in_float32_are_warned_of(tmp_path):
    """Read by plain transformers, a mixture keeps its experts in float32: one line, and the record."""
    named("mixtral").build().float().save_pretrained(tmp_path)
    plain = transformers.MixtralForCausalLM.from_pretrained(tmp_path, **precision.loading_arguments("nf4"))
    message = r"\d+% of its blocks' weights are stored in few bits; most of the rest is gate_up_proj of MixtralExperts"
    with pytest.warns(PrecisionWarning, match=message):
        model = cl.wrap_model(plain)
    layers = plain.model.layers
    linear = sum(m.in_features * m.out_features for m in layers.modules() if hasattr(m, "in_features"))
    wide = sum(w.numel() for n, w in layers.named_parameters() if "proj" not in n or "experts" in n)
    assert model.share_in_precision == pytest.approx(linear / (linear + wide))
    record = cl.measure_depth(model, [IDS], ks=(2,)).attrs
    assert record["share_in_precision"] == pytest.approx(model.share_in_precision, abs=1e-4)


def test_plain_model_has_share_in_precision_of_one(tmp_path):
    tiny.save_llama(tmp_path, with_tokenizer=False)
    model = cl.load_model(tmp_path, precision="bfloat16")
    assert model.share_in_precision == 1.0
    assert "share_in_precision" not in cl.measure_depth(model, [IDS % 32], ks=(2,)).attrs


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_quantised_model_that_fails_names_another_precision(kind, tmp_path):
    """Mamba multiplies by the weights of its `dt_proj` itself; what the line advises works."""
    named("mamba").build().float().save_pretrained(tmp_path)
    message = r"does not run on 7 random tokens .*; if a layer does not run in few bits, pass precision='bfloat16'$"
    refused(UnsupportedModelError, message, cl.load_model, tmp_path, precision=kind)
    assert cl.load_model(tmp_path, precision="bfloat16").precision == "bfloat16"
