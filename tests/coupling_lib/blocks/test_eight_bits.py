"""int8: bitsandbytes' product and weights against their definition in float64, and a wrong product refused at load."""

import bitsandbytes as bnb
import pytest
import tiny
import torch
from reference import relative_error
from table_weights import eight_bits, operator_in_place
from torch import nn

from coupling_lib.blocks import low_bit as ours
from coupling_lib.blocks import storage
from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.models.load import load_model


def made(width: int, threshold: float = 6.0, *, bias: bool = True):
    torch.manual_seed(0)
    layer = bnb.nn.Linear8bitLt(width, 80, bias, has_fp16_weights=False, threshold=threshold)
    nn.init.normal_(layer.weight.data, std=0.1)
    return layer.to("cpu").requires_grad_(False).eval()


def defined(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """LLM.int8() entry by entry (Dettmers et al. 2022, equations 5 to 8), in float64 and whole numbers."""
    narrow, threshold = x.half().double(), layer.state.threshold
    outlying = [threshold > 0 and bool((column.abs() >= threshold).any()) for column in narrow.T]
    weight = eight_bits(layer)
    scale = layer.state.SCB if layer.state.SCB is not None else layer.weight.SCB
    y = torch.zeros(len(x), len(weight), dtype=torch.float64)
    for row, values in enumerate(narrow):
        largest = max(float(value.abs()) for value in values if not threshold or abs(value) < threshold)
        whole = torch.round(values * 127 / largest).long()
        whole[torch.tensor(outlying)] = 0
        y[row] = (layer.weight.data.long() @ whole).double() * largest * scale.double() / 127**2
        for column in torch.tensor(outlying).nonzero().flatten():
            y[row] += weight[:, column] * x[row, column].double()
    return y if layer.bias is None else y + layer.bias.double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 6.0])
@pytest.mark.parametrize("width", [96, 160, 128, 1100])
def test_int8_product_equals_its_definition(width, threshold, bias):
    """1e-4: release 0.50.2 writes 1/127^2 with 2e-5 of error; at 1100 the whole numbers outgrow float32."""
    layer = made(width, threshold, bias=bias)
    x = torch.randn(9, width, generator=torch.Generator().manual_seed(3))
    x[2, 5], x[7, 5], x[4, 40] = 9.0, -3.0, -11.0
    for rows in (x, x[:1], x[2:3]):
        wanted = defined(layer, rows)
        assert relative_error(layer(rows), wanted) < 1e-4
        assert relative_error(ours.product(layer, rows), wanted) < 1e-6
        assert relative_error(nn.functional.linear(rows.double(), eight_bits(layer)), wanted) > 1e-3


def test_input_of_four_dimensions_is_taken_as_rows():
    """DeepSeek's keys and values come from one; bitsandbytes 0.50.2 takes the largest of another dimension there."""
    layer = made(96)
    ours.replace_forward(layer)
    x = torch.randn(2, 1, 7, 96, generator=torch.Generator().manual_seed(3))
    assert torch.equal(layer(x), layer(x.reshape(14, 96)).reshape(2, 1, 7, 80))
    assert relative_error(layer(x).flatten(0, 2), defined(layer, x.reshape(14, 96))) < 1e-4


@pytest.mark.parametrize("width", [96, 160, 128])
def test_dequantised_weights_have_one_scale_per_row(width):
    layer = made(width)
    W = eight_bits(layer)
    for dtype, most in ((torch.float64, 1e-15), (torch.float32, 1e-7)):
        assert relative_error(ours.weights(layer, dtype), W) < most
        assert relative_error(storage.dense_copy(nn.Sequential(layer), dtype)[0].weight, W) < most
    layer(torch.ones(1, width))  # moves the scales from the weight to the layer's state
    assert relative_error(ours.weights(layer, torch.float64), W) < 1e-15


def test_a_wrong_product_is_refused_at_load(tmp_path):
    """A kernel that takes the scales of neighbouring rows, in the place of bitsandbytes' own."""
    tiny.save_llama(tmp_path)
    load_model(tmp_path, precision="int8")

    def shifted(A, row_stats, col_stats, dtype=None, bias=None):
        y = A * row_stats.view(-1, 1) * col_stats.roll(1) / 127**2
        return (y if bias is None else y + bias).to(dtype or torch.float16)

    message = r"product with \d+ x \d+ weights of 8 bits on cpu is \d+\.\d% off .*; take another precision, such as"
    with operator_in_place("int8_mm_dequant", shifted), pytest.raises(UntrustworthyResultError, match=message) as error:
        load_model(tmp_path, precision="int8")
    assert "\n" not in str(error.value)
    load_model(tmp_path, precision="int8")
