"""Writes the table of model families: how the blocks of each are evaluated, and whether that grows with the prompt."""

from __future__ import annotations

import sys
from importlib import import_module

import torch
from markdown_table import table
from torch.utils.flop_counter import FlopCounterMode

import coupling_lib
from coupling_lib import paths
from coupling_lib.jacobian import derivatives, differentiate
from coupling_lib.models.model import Model

# Tokens of the two prompts that are compared.
SHORT, LONG = 12, 36
# What a cotangent costs for the longer prompt, over the shorter, from which it counts as growing with the tokens.
_GROWS = 1.9


def arithmetic(model: Model, block: int, n: int) -> int:
    """Count the floating-point operations of one column of a Jacobian at the last of n tokens."""
    traced = coupling_lib.trace(model, torch.arange(1, n + 1)[None])
    x, y = differentiate.evaluate(traced, block, [(n - 1, n - 1)], "block")
    with FlopCounterMode(display=False) as counter:
        derivatives.pulled_back(y, x, torch.ones(1, *y.shape, dtype=y.dtype))
    return counter.get_total_flops()


def growth(model: Model) -> str:
    """State where a column of a Jacobian costs more with the prompt, from counts."""
    ratios = [arithmetic(model, block, LONG) / arithmetic(model, block, SHORT) for block in range(model.n_blocks)]
    growing = sum(ratio >= _GROWS for ratio in ratios)
    if growing:
        return "yes" if growing == len(ratios) else "in its recurrent blocks"
    return "no" if max(ratios) == 1 else "attention alone"


def families_page() -> str:
    """Write the families that are tested, with the route to their blocks' maps, found anew."""
    sys.path.append(str(paths.ROOT / "tests" / "support"))
    tested = import_module("families")

    rows = []
    for family in tested.FAMILIES:
        model = tested.loaded(family, torch.float32)
        # An image has as many tokens as it has patches; its route is what matters.
        grows = growth(model) if model.hf.main_input_name == "input_ids" else "no"
        rows.append((family.name, f"`{model.hf.config.model_type}`", model.blocks.route, grows))
    return table(("family", "model type", "route", "grows with the prompt"), rows)
