"""Quantised and half-precision blocks: what is differentiated, and the failures that give silent wrong numbers."""

import bitsandbytes as bnb
import pytest
import table_weights
import tiny
import torch
from reference import relative_error, rows
from refusals import refused
from torch import nn

import coupling_lib as cl
from coupling_lib.blocks import precision, storage
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.inputs import traced as tracing

IDS = torch.arange(3, 12)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama wide enough for bitsandbytes' blocks of 64 weights."""
    path = tmp_path_factory.mktemp("llama")
    tiny.llama(hidden_size=128, intermediate_size=256, initializer_range=0.15).save_pretrained(path)
    return path


def of_a_replay(trace: cl.Trace, dense: nn.Module, block: int) -> torch.Tensor:
    """Differentiate a float64 block at the states of another model, row by row."""
    leaf = trace.calls[block].input.double().requires_grad_(True)
    out = trace.calls[block].replay(dense.model.layers[block], leaf)[0, -1]
    return rows(out, leaf)[:, -1] - torch.eye(128, dtype=torch.float64)


def test_int8_jacobian_is_that_of_dequantised_weights(folder):
    model = cl.load_model(folder, precision="int8")
    dense = table_weights.dense(model.hf, cl.load_model(folder).hf.double())
    trace = tracing.trace(model, IDS)
    for block in range(3):
        assert relative_error(trace.jacobian(block).dense(), of_a_replay(trace, dense, block)) < 1e-5


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_precision_weights_are_differentiated_in_float32(folder, name):
    """P8: bfloat16 arithmetic would put an error of about 1 % on the Jacobian."""
    model = cl.load_model(folder, precision=name)
    trace = tracing.trace(model, IDS)
    dense = cl.load_model(folder).hf.double()
    dense.load_state_dict({key: value.double() for key, value in model.hf.state_dict().items()})
    for block in range(3):
        J = trace.jacobian(block).dense()
        assert J.dtype == torch.float32
        assert relative_error(J, of_a_replay(trace, dense, block)) < 1e-5


def test_repacked_4bit_weights_are_refused(folder):
    """P1: with the flag set as bitsandbytes ships it, the block's linear layers drop out after one forward."""
    model = cl.load_model(folder, precision="nf4")
    layers = [module for module in model.hf.modules() if isinstance(module, bnb.nn.Linear4bit)]
    assert layers and not any(layer.support_avx512bf16_for_cpu for layer in layers)
    trace = tracing.trace(model, IDS)
    before = trace.jacobian(1).dense()
    trace2 = tracing.trace(model, IDS)
    assert torch.equal(trace2.jacobian(1).dense(), before)
    layers[0].weight.quant_state.packing_format_for_cpu = True
    refused(UntrustworthyResultError, "repacked", trace.jacobian(0).dense)
    # P2: the reason why the library never uses forward mode.
    model = cl.load_model(folder, precision="nf4")
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


def test_dense_copy_of_float32_block_is_the_block(folder):
    block = cl.load_model(folder).blocks.modules[0]
    assert storage.dense_copy(block, torch.float32) is block
    copy = storage.dense_copy(block, torch.float64)
    assert copy is not block and storage.dense_copy(copy, torch.float64) is copy
    # P11: the default of transformers is fp4.
    for name in ("nf4", "fp4"):
        quantisation = precision.loading_arguments(name)["quantization_config"]
        assert (quantisation.bnb_4bit_quant_type, quantisation.bnb_4bit_compute_dtype) == (name, torch.float32)
    refused(ParameterError, "precision is 'int4'; it must be one of float32", precision.loading_arguments, "int4")
