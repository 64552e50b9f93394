"""Whole numbers of compressed-tensors: a linear layer packed by hand, bit by bit, with one scale a group."""

import pytest
import torch
from safetensors.torch import save_file

from coupling_lib.models import dequantised

ROWS, COLUMNS, GROUP = 6, 40, 8


def packed(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Write each number, raised by half its range, behind the last one, the first in the lowest bits of 32."""
    each = 32 // bits
    words = torch.zeros(ROWS, -(-COLUMNS // each), dtype=torch.int64)
    for row in range(ROWS):
        for column in range(COLUMNS):
            words[row, column // each] |= (int(values[row, column]) + 2 ** (bits - 1)) << (bits * (column % each))
    return words.where(words < 2**31, words - 2**32).to(torch.int32)


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_what_was_packed(bits, tmp_path):
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (ROWS, COLUMNS), generator=generator)
    scales = torch.rand(ROWS, COLUMNS // GROUP, generator=generator)
    stored = {"a.weight_packed": packed(values, bits), "a.weight_scale": scales, "a.input_scale": torch.ones(1)}
    save_file(stored | {"a.weight_shape": torch.tensor([ROWS, COLUMNS])}, tmp_path / "model.safetensors")
    weights = {"num_bits": bits, "group_size": GROUP}
    given = {"format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}}
    found = dequantised.tensors(tmp_path, dequantised.Method("compressed-tensors", given), "a model")
    assert list(found) == ["a.weight"]
    wanted = torch.tensor([[float(values[i, j] * scales[i, j // GROUP]) for j in range(COLUMNS)] for i in range(ROWS)])
    assert torch.equal(found["a.weight"][...], wanted)


def test_widths_that_straddle_words_are_refused():
    weights = {"weights": {"num_bits": 3}}
    given = {"format": "pack-quantized", "config_groups": {"group_0": weights}}
    assert not dequantised.Method("compressed-tensors", given).is_read
