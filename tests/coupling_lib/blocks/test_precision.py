"""Quantised and half-precision blocks: what is differentiated, and the failures that give silent wrong numbers."""

from __future__ import annotations

import bitsandbytes as bnb
import pytest
import table_weights
import torch
from reference import brute_force_jacobian, relative_error, rows
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from coupling_lib.blocks import precision
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.jacobian import tracing
from coupling_lib.models.load import load_model, wrap_model

IDS = torch.arange(3, 12)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama wide enough for bitsandbytes' blocks of 64 weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        initializer_range=0.15,
    )
    path = tmp_path_factory.mktemp("llama")
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def dequantised_reference(folder, quantised) -> nn.Module:
    """A dense float64 model holding the dequantised weights, made without the library."""
    dense = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    return table_weights.dense(quantised.hf, dense)


def of_a_replay(trace: tracing.Trace, dense: nn.Module, block: int) -> torch.Tensor:
    """Differentiate a float64 block at the states of another model, row by row."""
    leaf = trace.calls[block].input.double().requires_grad_(True)
    out = trace.calls[block].replay(dense.model.layers[block], leaf)[0, -1]
    return rows(out, leaf)[:, -1] - torch.eye(128, dtype=torch.float64)


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_4bit_jacobian_is_that_of_the_dequantised_weights(folder, name):
    model = load_model(folder, precision=name)
    dense = dequantised_reference(folder, model)
    trace = tracing.trace(model, IDS)
    for block in (2, 1, 0):  # deepest first: the order in which packing used to strike
        wanted = brute_force_jacobian(dense, dense.model.layers[block], {"input_ids": IDS, "use_cache": False}, 8, 8)
        assert relative_error(trace.jacobian(block).dense(), wanted) < 1e-5
    # In the same arithmetic nothing is left but the order of additions.
    same = tracing.trace(wrap_model(dense.float()), IDS)
    for block in range(3):
        assert relative_error(trace.jacobian(block).dense(), same.jacobian(block).dense()) < 1e-6
    plain = load_model(folder)
    assert relative_error(tracing.trace(plain, IDS).jacobian(0).dense(), wanted) > 1e-2


def test_int8_jacobian_is_that_of_the_dequantised_weights_at_the_states_of_the_int8_model(folder):
    model = load_model(folder, precision="int8")
    dense = dequantised_reference(folder, model)
    trace = tracing.trace(model, IDS)
    for block in range(3):
        assert relative_error(trace.jacobian(block).dense(), of_a_replay(trace, dense, block)) < 1e-5


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_weights_are_differentiated_in_float32(folder, name):
    """P8: bfloat16 arithmetic would put an error of about 1 % on the Jacobian."""
    model = load_model(folder, precision=name)
    trace = tracing.trace(model, IDS)
    dense = load_model(folder).hf.double()
    dense.load_state_dict({key: value.double() for key, value in model.hf.state_dict().items()})
    for block in range(3):
        J = trace.jacobian(block).dense()
        assert J.dtype == torch.float32
        assert relative_error(J, of_a_replay(trace, dense, block)) < 1e-5


def test_packed_4bit_weights_would_vanish_from_the_graph_without_prepare(folder):
    """P1: with the flag set as bitsandbytes ships it, the block's linear layers drop out after one forward."""
    model = load_model(folder, precision="nf4")
    layers = [module for module in model.hf.modules() if isinstance(module, bnb.nn.Linear4bit)]
    assert layers and not any(layer.support_avx512bf16_for_cpu for layer in layers)
    trace = tracing.trace(model, IDS)
    before = trace.jacobian(1).dense()
    trace2 = tracing.trace(model, IDS)
    assert torch.equal(trace2.jacobian(1).dense(), before)
    layers[0].weight.quant_state.packing_format_for_cpu = True
    with pytest.raises(UntrustworthyResultError, match="repacked"):
        trace.jacobian(0).dense()


def test_forward_mode_is_silently_zero_on_bitsandbytes_product_and_ours_is_not(folder):
    """P2: the reason why the library never uses forward mode."""
    model = load_model(folder, precision="nf4")
    trace = tracing.trace(model, IDS)
    call, block = trace.calls[1], model.blocks.modules[1]
    tangent = torch.zeros_like(call.input)
    tangent[0, -1, 0] = 1.0
    wanted = trace.jacobian(1) @ tangent[0, -1]

    def pushed():
        return torch.func.jvp(lambda x: call.replay(block, x) - x, (call.input,), (tangent,))[1]

    assert relative_error(pushed()[0, -1], wanted) < 1e-4 and float(wanted.norm()) > 0.1
    for layer in block.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            layer.trusted_on = "cpu"
    assert float(pushed().norm()) == 0.0


def test_an_all_zero_jacobian_is_refused(folder):
    model = load_model(folder)
    with torch.no_grad():
        model.blocks.modules[1].mlp.down_proj.weight.zero_()
        model.blocks.modules[1].self_attn.o_proj.weight.zero_()
    with pytest.raises(UntrustworthyResultError, match="is zero"):
        tracing.trace(model, IDS).jacobian(1).dense()


def test_wide_plain_blocks_are_not_copied(folder):
    block = load_model(folder).blocks.modules[0]
    assert precision.dense_copy(block, torch.float32) is block
    assert precision.dense_copy(block, torch.float64) is not block


def test_4bit_type_and_arithmetic_are_explicit():
    """P11: the default of transformers is fp4."""
    for name in ("nf4", "fp4"):
        quantisation = precision.loading_arguments(name)["quantization_config"]
        assert (quantisation.bnb_4bit_quant_type, quantisation.bnb_4bit_compute_dtype) == (name, torch.float32)
    with pytest.raises(ParameterError, match="precision is 'int4'; it must be one of float32"):
        precision.loading_arguments("int4")
