"""What a block is made of, and which changes of it count."""

import pytest
import torch
from torch import nn

from coupling_lib.blocks.makeup import makeups


class Kept(nn.Module):
    """A part that keeps a value between passes."""

    def __init__(self, kept: object) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (None, torch.ones(2), True),  # a state that a pass leaves
        (None, 2.0, False),
        (None, torch.sin, False),
        (2.0, None, False),
        (torch.cos, torch.sin, False),
        ("relu", "gelu", False),
    ],
)
def test_makeup_changes_with_settings_but_not_states(before, after, same):
    block = Kept(before)
    first = makeups([block])
    block.kept = after
    assert (makeups([block]) == first) is same
