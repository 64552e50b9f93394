"""Weights of 4 bits, with a kernel in the place of bitsandbytes' own that takes the scales of other entries."""

import copy
import re
import textwrap

import accelerate
import bitsandbytes as bnb
import pytest
import tiny
import torch
from reference import brute_force_jacobian, relative_error
from refusals import refused
from table_weights import TABLES, by_entry, by_row, dense, four_bits, kernel_in_place
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import coupling_lib as cl
from coupling_lib.blocks import low_bit as ours
from coupling_lib.blocks import quantised
from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.inputs import traced as tracing
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.paths import ROOT

IDS = torch.arange(3, 12)[None]
LAYERS = (bnb.nn.Linear4bit,)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Random Llamas of three widths, of which one is a multiple of bitsandbytes' blocks of 64 weights."""
    root = tmp_path_factory.mktemp("widths")
    for width in (96, 160, 128):
        shape = dict(hidden_size=width, num_hidden_layers=2, intermediate_size=2 * width)
        tiny.llama(**shape, initializer_range=0.15).save_pretrained(root / str(width))
    return root


@pytest.fixture
def wrong_kernel():
    with kernel_in_place(by_row):
        yield


def of_a_user(folder, kind: str = "nf4", nested: bool = True, **more):
    """A model that transformers quantised, with or without nested scales."""
    how = dict(bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype=torch.float32)
    quantisation = BitsAndBytesConfig(load_in_4bit=True, **how | more)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantisation, dtype=torch.float32)


def made(kind: str = "nf4", rows: int = 80, width: int = 96, *, bias: bool = True, nested=False, compute=torch.float32):
    """One layer of 4 bits, of weights whose blocks have scales far apart, as those of trained models have."""
    torch.manual_seed(0)
    layer = bnb.nn.Linear4bit(width, rows, bias, compute, nested, kind)
    nn.init.normal_(layer.weight.data, std=0.1)
    layer = layer.to("cpu").requires_grad_(False)
    assert layer.weight.quant_state.nested is nested
    return layer


def test_4bit_kernel_errs_unless_64_divides_the_width():
    """What it was measured to do: a relative error of .2 and more, without a word."""
    for width in [96, 160, 128]:
        layer = made("nf4", 96, width)
        for where, wrong in ((by_row, width % 64 != 0), (by_entry, False)):
            with kernel_in_place(where):
                found = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
                row = bnb.nn.Linear4bit.forward(layer, torch.ones(1, width)) - layer.bias
            error = relative_error(found, four_bits(layer))
            assert error > 0.1 if wrong else error < 1e-6
            assert relative_error(row[0], found.sum(dim=1)) < 1e-5  # bitsandbytes' own product uses the kernel in place
    for kind, table in TABLES.items():
        assert torch.allclose(made(kind).weight.quant_state.code, torch.tensor(table), rtol=0, atol=1e-7)
    layer = bnb.nn.Linear4bit(96, 96)
    with pytest.raises(UntrustworthyResultError, match="holds weights that are not quantised yet; move the model"):
        ours.weights(layer, torch.float32)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("width", [96, 160, 128])
def test_4bit_states_and_jacobians_match_the_table(folders, wrong_kernel, width, kind, nested):
    folder = folders / str(width)
    model = cl.wrap_model(of_a_user(folder, kind)) if nested else cl.load_model(folder, precision=kind)
    layers = [module for module in model.hf.modules() if isinstance(module, LAYERS)]
    assert {layer.weight.quant_state.nested for layer in layers} == {nested} and model.precision == kind
    like = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    wide = dense(model.hf, like)
    trace = tracing.trace(model, IDS)
    with torch.no_grad():
        hidden = wide(IDS, use_cache=False, output_hidden_states=True).hidden_states[1]
    assert relative_error(trace.hidden[1], hidden[0]) < 2e-6
    for block in range(2):
        given = {"input_ids": IDS, "use_cache": False}
        wanted = brute_force_jacobian(wide, wide.model.layers[block], given, 8, 8)
        assert relative_error(trace.jacobian(block).dense(), wanted) < 5e-6


def test_nf4_jacobians_of_shipped_model_match_the_table(wrong_kernel):
    """Block by block, at the states of the model itself, so that rounding before a block does not enter."""
    model = cl.load_model("nano-neox", precision="nf4")
    wide = dense(model.hf, cl.load_model("nano-neox").hf.double())
    plain, trace = (cl.trace(each, PARIS) for each in (cl.load_model("nano-neox"), model))
    for block in (0, 5, 11):
        call = trace.calls[block]
        out = call.replay(wide.gpt_neox.layers[block], call.input.double())
        assert relative_error(trace.hidden[block + 1] - trace.hidden[block], (out - call.input.double())[0]) < 2e-6
        leaf = call.input.double().requires_grad_(True)
        last = call.replay(wide.gpt_neox.layers[block], leaf)[0, -1]
        wanted = torch.stack([torch.autograd.grad(y, leaf, retain_graph=True)[0][0, -1] for y in last])
        wanted -= torch.eye(96, dtype=torch.float64)
        assert relative_error(trace.jacobian(block).dense(), wanted) < 1e-6
        assert relative_error(plain.jacobian(block).dense(), wanted) > 1e-2


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize(("rows", "width"), [(96, 96), (7, 9), (1, 3), (5, 128), (300, 160)])
def test_dequantised_weights_match_the_table(wrong_kernel, kind, rows, width, nested):
    """Odd sizes leave half a byte and a short last block; 300 x 160 has more scales than one block of nested ones."""
    layer = made(kind, rows, width, nested=nested)
    wanted = four_bits(layer)
    for dtype, most in ((torch.float64, 1e-7), (torch.float32, 2e-7), (torch.bfloat16, 2.0**-8)):
        found = ours.weights(layer, dtype)
        assert found.dtype == dtype and found.shape == (rows, width)
        assert relative_error(found, wanted) < most


def test_other_storage_types_and_blocksizes_are_dequantised(wrong_kernel):
    W = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    for blocksize in (32, 64, 128, 256, 4096):
        for storage in (torch.uint8, torch.bfloat16, torch.float32):
            given = dict(blocksize=blocksize, quant_type="nf4", quant_storage=storage)
            packed, state = bnb.functional.quantize_4bit(W, **given)
            layer = made(rows=64)
            layer.weight.data, layer.weight.quant_state = packed, state
            assert relative_error(ours.weights(layer, torch.float64), four_bits(layer)) < 1e-7
            assert relative_error(ours.weights(layer, torch.float32), W) < 0.2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, None])
def test_layer_and_its_copies_follow_the_table(wrong_kernel, compute, bias):
    layer = made(bias=bias, compute=compute)
    layer.support_avx512bf16_for_cpu = True  # as on a CPU that repacks
    ours.replace_forward(layer)
    before = layer.weight.data.clone()
    x = torch.randn(2, 5, 96, generator=torch.Generator().manual_seed(1))
    W, b = four_bits(layer), layer.bias.double() if bias else 0.0
    most = 2.0**-7 if compute == torch.bfloat16 else 1e-6
    for one in (layer, copy.deepcopy(layer), copy.deepcopy(copy.deepcopy(nn.Sequential(layer)))[0]):
        assert isinstance(one, bnb.nn.Linear4bit) and type(one).__name__ == "Linear4bit"
        with torch.no_grad():
            y = one(x)
        assert y.dtype == torch.float32 and relative_error(y, x.double() @ W.T + b) < most
        assert one(x.bfloat16()).dtype == torch.bfloat16
        leaf = x.clone().requires_grad_(True)
        weighted = torch.randn(3, *y.shape, generator=torch.Generator().manual_seed(2))
        (found,) = torch.autograd.grad(one(leaf), leaf, weighted, is_grads_batched=True)
        assert relative_error(found, weighted.double() @ W) < most
        pushed = torch.func.jvp(one, (x,), (x,))[1]
        assert relative_error(pushed, x.double() @ W.T) < most
    assert torch.equal(layer.weight.data, before)


def test_model_hooked_by_accelerate_gives_the_same_numbers(folders, wrong_kernel):
    """accelerate and nnsight hold on to the method of a layer that they find."""
    wanted = tracing.trace(cl.wrap_model(of_a_user(folders / "96")), IDS)
    hooked = of_a_user(folders / "96")
    accelerate.dispatch_model(hooked, {"": "cpu"}, force_hooks=True)
    for layer in hooked.modules():
        if isinstance(layer, LAYERS):
            accelerate.hooks.add_hook_to_module(layer, accelerate.hooks.AlignDevicesHook("cpu", io_same_device=True))
    found = tracing.trace(cl.wrap_model(hooked), IDS)
    assert torch.equal(found.hidden, wanted.hidden)
    assert torch.equal(found.jacobian(1).dense(), wanted.jacobian(1).dense())
    again = tracing.trace(cl.wrap_model(hooked), IDS)
    assert torch.equal(again.hidden, wanted.hidden)
    held = of_a_user(folders / "96")
    for layer in held.modules():
        if isinstance(layer, LAYERS):
            layer.forward = layer.forward  # a method that nothing tells from a user's own
    message = (
        r"LlamaForCausalLM: .* 96 weights of 4 bits on cpu is \d+\.\d% off .* forward was replaced: give wrap_model"
    )
    refused(UntrustworthyResultError, message, cl.wrap_model, held)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_product_of_another_device_is_replaced_where_wrong(folders, monkeypatch, capsys, kind):
    """The CPU stands for a GPU, whose own product is used unless it is wrong."""
    monkeypatch.setattr(quantised, "TABLE_DEVICES", ())
    with kernel_in_place(by_entry):
        kept = cl.wrap_model(of_a_user(folders / "96", kind))
    assert capsys.readouterr().out == ""
    assert {m.trusted_on for m in kept.hf.modules() if isinstance(m, LAYERS)} == {"cpu"}
    with kernel_in_place(by_row):
        model = cl.wrap_model(of_a_user(folders / "96", kind), name="mine")
    lines = capsys.readouterr().out.splitlines()
    # 96 x 96, 48 x 96 and 192 x 96; 192 columns are a multiple of 64.
    assert len(lines) == 3 and all(line.startswith("mine: bitsandbytes' product with ") for line in lines)
    assert all(line.endswith("their table is used instead") for line in lines)
    assert all(" x 96 weights of 4 bits on cpu is " in line for line in lines)
    by_width = {(m.in_features, m.trusted_on) for m in model.hf.modules() if isinstance(m, LAYERS)}
    assert by_width == {(96, None), (192, "cpu")}


@pytest.mark.parametrize(("where", "wrong"), [(by_entry, False), (by_row, True)])
def test_check_on_the_gotchas_page_detects_wrong_kernel(capsys, where, wrong):
    section = (ROOT / "book" / "gotchas.md").read_text(encoding="utf-8").split("## 4-bit weights with the scales")[1]
    (lines,) = re.findall(r"```python\n(  import bitsandbytes.*?)  ```", section, flags=re.DOTALL)
    torch.manual_seed(0)
    with kernel_in_place(where):
        exec(textwrap.dedent(lines), {})
    assert 0.15 < float(capsys.readouterr().out) < 0.3 if wrong else float(capsys.readouterr().out) == 0.0
