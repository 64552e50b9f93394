"""Weights that are no numbers are said to be that, before they show as something else.

A NaN differs from itself, so a model that holds one seems to answer differently each time it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from coupling_lib.blocks import precision
from coupling_lib.blocks.record import BlockCall, Blocks
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError


def check_outputs(hf: PreTrainedModel, blocks: Blocks, calls: Sequence[BlockCall], name: str) -> None:
    """Refuse a model whose blocks gave values that are not finite, and name the weights that do it."""
    # Weights are read only after that was seen, so a sound model costs one look at its states.
    bad = [number for number, call in enumerate(calls, start=1) if not bool(call.output.isfinite().all())]
    if not bad:
        return
    wrong = [(place, weight) for place, weight in _weights(hf, blocks) if not bool(weight.isfinite().all())]
    if not wrong:
        raise UnsupportedModelError(
            f"model {name!r}: block {bad[0]} gives values that are not finite, and all weights are finite: they are "
            "too large for the number format; take precision='float32'"
        )
    place, weight = wrong[0]
    counts = {"NaN": int(weight.isnan().sum()), "infinite": int(weight.isinf().sum())}
    seen = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    others = f" (and {len(wrong) - 1} other tensors are not finite)" if len(wrong) > 1 else ""
    raise ModelUnavailableError(
        f"model {name!r}: weights {place} hold {seen} of {weight.numel():,} entries{others}; "
        "fetch it again or choose another revision"
    )


def _weights(hf: PreTrainedModel, blocks: Blocks) -> Iterator[tuple[str, torch.Tensor]]:
    """Give all weights as plain numbers by their names; blocks that are quantised or on disk one at a time."""
    within = tuple(f"{blocks.path}.{number}." for number in range(len(blocks)))
    for name, weight in hf.named_parameters():
        if not name.startswith(within) and weight.is_floating_point() and weight.device.type != "meta":
            yield name, weight
    for prefix, module in zip(within, blocks.modules, strict=True):
        for name, weight in precision.dense_copy(module, precision.arithmetic(hf)).named_parameters():
            yield prefix + name, weight
