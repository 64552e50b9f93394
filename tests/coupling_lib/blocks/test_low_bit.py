"""Weights in few bits: what is differentiated, and kernels in the place of bitsandbytes' own that take other scales."""

import copy
import re
import textwrap

import accelerate
import bitsandbytes as bnb
import pytest
import tiny
import torch
from reference import brute_force_jacobian, relative_error, rows
from refusals import refused
from table_weights import TABLES, by_entry, by_row, dense, eight_bits, four_bits, kernel_in_place, operator_in_place
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import coupling_lib as cl
from coupling_lib.blocks import low_bit, quantised, storage
from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.paths import ROOT

IDS = torch.arange(3, 12)[None]
each_kind = pytest.mark.parametrize("kind", ["nf4", "fp4"])
each_nesting = pytest.mark.parametrize("nested", [False, True])


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


def quantised_by_user(folder, kind: str = "nf4", nested: bool = True):
    """A model that transformers quantised, with or without nested scales."""
    how = dict(bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype=torch.float32)
    quantisation = BitsAndBytesConfig(load_in_4bit=True, **how)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantisation, dtype=torch.float32)


def layers_of(hf: nn.Module) -> list[bnb.nn.Linear4bit]:
    return [module for module in hf.modules() if isinstance(module, bnb.nn.Linear4bit)]


def made(layer: nn.Module) -> nn.Module:
    """A quantised layer of weights whose blocks have scales far apart, as those of trained models have."""
    torch.manual_seed(0)
    nn.init.normal_(layer.weight.data, std=0.1)
    return layer.to("cpu").requires_grad_(False).eval()


def four(kind: str = "nf4", rows: int = 80, width: int = 96, *, bias=True, nested=False, compute=torch.float32):
    layer = made(bnb.nn.Linear4bit(width, rows, bias, compute, nested, kind))
    assert layer.weight.quant_state.nested is nested
    return layer


def eight(width: int, threshold: float = 6.0, *, bias: bool = True):
    return made(bnb.nn.Linear8bitLt(width, 80, bias, has_fp16_weights=False, threshold=threshold))


def test_tables_are_those_of_bitsandbytes():
    for kind, table in TABLES.items():
        assert torch.allclose(four(kind).weight.quant_state.code, torch.tensor(table), rtol=0, atol=1e-7)
    message = "holds weights that are not quantised yet; move the model"
    refused(UntrustworthyResultError, message, low_bit.weights, bnb.nn.Linear4bit(96, 96), torch.float32)


@each_nesting
@each_kind
@pytest.mark.parametrize("width", [96, 160, 128])
def test_4bit_states_and_jacobians_match_the_table(folders, wrong_kernel, width, kind, nested):
    folder = folders / str(width)
    model = cl.wrap_model(quantised_by_user(folder, kind)) if nested else cl.load_model(folder, precision=kind)
    assert {layer.weight.quant_state.nested for layer in layers_of(model.hf)} == {nested} and model.precision == kind
    wide = dense(model.hf, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval())
    trace, given = cl.trace(model, IDS), {"input_ids": IDS, "use_cache": False}
    with torch.no_grad():
        hidden = wide(**given, output_hidden_states=True).hidden_states[1]
    assert relative_error(trace.hidden[1], hidden[0]) < 2e-6
    for block in range(2):
        wanted = brute_force_jacobian(wide, wide.model.layers[block], given, 8, 8)
        assert relative_error(trace.jacobian(block).dense(), wanted) < 5e-6


@pytest.mark.parametrize(
    ("name", "precision", "most", "apart"),
    [
        ("nano-neox", "nf4", 1e-6, 1e-2),
        ("128", "int8", 1e-5, 1e-2),
        ("128", "bfloat16", 1e-5, 1e-3),  # whose own arithmetic would put an error of about 1 % on the Jacobian
        ("128", "float16", 1e-5, 1e-4),
    ],
)
def test_jacobians_are_those_of_stored_weights_in_float64(folders, wrong_kernel, name, precision, most, apart):
    """Block by block, at the states of the model itself, so that rounding before a block does not enter."""
    source = name if name.startswith("nano") else folders / name
    model, plain = cl.load_model(source, precision=precision), cl.load_model(source)
    trace, of_plain, hf = cl.trace(model, IDS), cl.trace(plain, IDS), copy.deepcopy(plain.hf).double()
    stored = {key: value for key, value in model.hf.state_dict().items() if value.is_floating_point()}
    hf.load_state_dict(stored, strict=False)
    blocks = dense(model.hf, hf).get_submodule(model.blocks.path)
    for block in {0, len(blocks) // 2, len(blocks) - 1}:
        leaf = trace.calls[block].input.double().requires_grad_(True)
        out = trace.calls[block].replay(blocks[block], leaf)[0, -1]
        wanted = rows(out, leaf)[:, -1] - torch.eye(model.d_model, dtype=torch.float64)
        J = trace.jacobian(block).dense()
        assert J.dtype == torch.float32 and relative_error(J, wanted) < most
        assert relative_error(of_plain.jacobian(block).dense(), wanted) > apart


@each_nesting
@each_kind
@pytest.mark.parametrize(("rows", "width"), [(96, 96), (7, 9), (1, 3), (5, 128), (300, 160)])
def test_dequantised_weights_match_the_table(wrong_kernel, kind, rows, width, nested):
    """Odd sizes leave half a byte and a short last block; 300 x 160 has more scales than one block of nested ones."""
    layer = four(kind, rows, width, nested=nested)
    for dtype, most in ((torch.float64, 1e-7), (torch.float32, 2e-7), (torch.bfloat16, 2.0**-8)):
        found = low_bit.weights(layer, dtype)
        assert found.dtype == dtype and found.shape == (rows, width)
        assert relative_error(found, four_bits(layer)) < most


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("blocksize", [32, 64, 128, 256, 4096])
def test_other_storage_types_and_blocksizes_are_dequantised(wrong_kernel, blocksize, storage):
    W, layer = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)), four(rows=64)
    given = dict(blocksize=blocksize, quant_type="nf4", quant_storage=storage)
    layer.weight.data, layer.weight.quant_state = bnb.functional.quantize_4bit(W, **given)
    assert relative_error(low_bit.weights(layer, torch.float64), four_bits(layer)) < 1e-7
    assert relative_error(low_bit.weights(layer, torch.float32), W) < 0.2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, None])
def test_layer_and_its_copies_follow_the_table(wrong_kernel, compute, bias):
    layer = four(bias=bias, compute=compute)
    layer.support_avx512bf16_for_cpu = True  # as on a CPU that repacks
    low_bit.replace_forward(layer)
    before = layer.weight.data.clone()
    x, *weighted = torch.randn(4, 2, 5, 96, generator=torch.Generator().manual_seed(1))
    weighted = torch.stack(weighted)[..., :80]
    W, b = four_bits(layer), layer.bias.double() if bias else 0.0
    most = 2.0**-7 if compute == torch.bfloat16 else 1e-6
    for one in (layer, copy.deepcopy(layer), copy.deepcopy(copy.deepcopy(nn.Sequential(layer)))[0]):
        assert isinstance(one, bnb.nn.Linear4bit) and type(one).__name__ == "Linear4bit"
        leaf = x.clone().requires_grad_(True)
        y = one(leaf)
        assert y.dtype == torch.float32 and relative_error(y.detach(), x.double() @ W.T + b) < most
        assert torch.equal(one(x), y) and one(x.bfloat16()).dtype == torch.bfloat16
        (found,) = torch.autograd.grad(y, leaf, weighted, is_grads_batched=True)
        assert relative_error(found, weighted.double() @ W) < most
        assert relative_error(torch.func.jvp(one, (x,), (x,))[1], x.double() @ W.T) < most
    assert torch.equal(layer.weight.data, before)


def test_model_hooked_by_accelerate_gives_the_same_numbers(folders, wrong_kernel):
    """accelerate and nnsight hold on to the method of a layer that they find."""
    plain, hooked, held = (quantised_by_user(folders / "96") for _ in range(3))
    wanted = cl.trace(cl.wrap_model(plain), IDS)
    accelerate.dispatch_model(hooked, {"": "cpu"}, force_hooks=True)
    for layer in layers_of(hooked):
        accelerate.hooks.add_hook_to_module(layer, accelerate.hooks.AlignDevicesHook("cpu", io_same_device=True))
    for _ in range(2):
        found = cl.trace(cl.wrap_model(hooked), IDS)
        assert torch.equal(found.hidden, wanted.hidden)
        assert torch.equal(found.jacobian(1).dense(), wanted.jacobian(1).dense())
    for layer in layers_of(held):
        layer.forward = layer.forward  # a method that nothing tells from a user's own
    message = "LlamaForCausalLM: .* 96 weights of 4 bits on cpu is .*% off .* forward was replaced: give wrap_model"
    refused(UntrustworthyResultError, message, cl.wrap_model, held)


@each_kind
def test_product_of_another_device_is_replaced_where_wrong(folders, monkeypatch, capsys, kind):
    """The CPU stands for a GPU, whose own product is used unless it is wrong."""
    monkeypatch.setattr(quantised, "TABLE_DEVICES", ())
    with kernel_in_place(by_entry):
        kept = cl.wrap_model(quantised_by_user(folders / "96", kind))
    assert capsys.readouterr().out == "" and {layer.trusted_on for layer in layers_of(kept.hf)} == {"cpu"}
    with kernel_in_place(by_row):
        model = cl.wrap_model(quantised_by_user(folders / "96", kind), name="mine")
    # 96 x 96, 48 x 96 and 192 x 96; 192 columns are a multiple of 64.
    line = r"mine: bitsandbytes' product with \d+ x 96 weights of 4 bits on cpu is .*; their table is used instead\n"
    assert re.fullmatch(line * 3, capsys.readouterr().out)
    by_width = {(layer.in_features, layer.trusted_on) for layer in layers_of(model.hf)}
    assert by_width == {(96, None), (192, "cpu")}


@pytest.mark.parametrize(("where", "least", "most"), [(by_entry, 0.0, 0.0), (by_row, 0.15, 0.3)])
def test_check_on_the_gotchas_page_detects_wrong_kernel(capsys, where, least, most):
    section = (ROOT / "book" / "gotchas.md").read_text(encoding="utf-8").split("## 4-bit weights with the scales")[1]
    (lines,) = re.findall(r"```python\n(  import bitsandbytes.*?)  ```", section, flags=re.DOTALL)
    torch.manual_seed(0)
    with kernel_in_place(where):
        exec(textwrap.dedent(lines), {})
    assert least <= float(capsys.readouterr().out) <= most


def test_repacked_4bit_weights_are_refused(folders):
    """With the flag set as bitsandbytes ships it, the block's linear layers drop out after one forward."""
    model = cl.load_model(folders / "128", precision="nf4")
    layers = layers_of(model.hf)
    assert layers and not any(layer.support_avx512bf16_for_cpu for layer in layers)
    trace = cl.trace(model, IDS)
    assert torch.equal(cl.trace(model, IDS).jacobian(1).dense(), trace.jacobian(1).dense())
    layers[0].weight.quant_state.packing_format_for_cpu = True
    refused(UntrustworthyResultError, "repacked", trace.jacobian(0).dense)


def defined(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """LLM.int8() entry by entry (Dettmers et al. 2022, equations 5 to 8), in float64 and whole numbers."""
    narrow, threshold = x.half().double(), layer.state.threshold
    outlying = torch.tensor([threshold > 0 and bool((column.abs() >= threshold).any()) for column in narrow.T])
    weight = eight_bits(layer)
    scale = layer.state.SCB if layer.state.SCB is not None else layer.weight.SCB
    y = torch.zeros(len(x), len(weight), dtype=torch.float64)
    for row, values in enumerate(narrow):
        largest = max(float(value.abs()) for value in values if not threshold or abs(value) < threshold)
        whole = torch.round(values * 127 / largest).long()
        whole[outlying] = 0
        y[row] = (layer.weight.data.long() @ whole).double() * largest * scale.double() / 127**2
        for column in outlying.nonzero().flatten():
            y[row] += weight[:, column] * x[row, column].double()
    return y if layer.bias is None else y + layer.bias.double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 6.0])
@pytest.mark.parametrize("width", [96, 160, 128, 1100])
def test_int8_product_equals_its_definition(width, threshold, bias):
    """1e-4: release 0.50.2 writes 1/127^2 with 2e-5 of error; at 1100 the whole numbers outgrow float32."""
    layer = eight(width, threshold, bias=bias)
    x = torch.randn(9, width, generator=torch.Generator().manual_seed(3))
    x[2, 5], x[7, 5], x[4, 40], x[6, 20] = 9.0, -3.0, -11.0, 6.0  # the last at the threshold
    for given in (x, x[:1], x[2:3]):
        wanted = defined(layer, given)
        assert relative_error(layer(given), wanted) < 1e-4
        assert relative_error(low_bit.product(layer, given), wanted) < 1e-6
        assert relative_error(nn.functional.linear(given.double(), eight_bits(layer)), wanted) > 1e-3


def test_int8_takes_four_dimensions_as_rows():
    """DeepSeek's keys and values come from one; bitsandbytes 0.50.2 takes the largest of another dimension there."""
    low_bit.replace_forward(layer := eight(96))
    x = torch.randn(2, 1, 7, 96, generator=torch.Generator().manual_seed(3))
    assert torch.equal(layer(x), layer(x.reshape(14, 96)).reshape(2, 1, 7, 80))
    assert relative_error(layer(x).flatten(0, 2), defined(layer, x.reshape(14, 96))) < 1e-4


@pytest.mark.parametrize("width", [96, 160, 128])
def test_dequantised_int8_weights_have_one_scale_per_row(width):
    layer = eight(width)
    W = eight_bits(layer)
    for dtype, most in ((torch.float64, 1e-15), (torch.float32, 1e-7)):
        assert relative_error(low_bit.weights(layer, dtype), W) < most
        assert relative_error(storage.dense_copy(nn.Sequential(layer), dtype)[0].weight, W) < most
    layer(torch.ones(1, width))  # moves the scales from the weight to the layer's state
    assert relative_error(low_bit.weights(layer, torch.float64), W) < 1e-15


def scales_of_other_rows(A, row_stats, col_stats, dtype=None, bias=None):
    y = A * row_stats.view(-1, 1) * col_stats.roll(1) / 127**2
    return (y if bias is None else y + bias).to(dtype or torch.float16)


def test_wrong_int8_product_is_refused_at_load(folders):
    message = r"product with \d+ x \d+ weights of 8 bits on cpu is \d+\.\d% off .*; take another precision, such as"
    with operator_in_place("int8_mm_dequant", scales_of_other_rows):
        refused(UntrustworthyResultError, message, cl.load_model, folders / "96", precision="int8")
    cl.load_model(folders / "96", precision="int8")
