"""Estimated cost of the paper's own measurement with this library. Part of `pages`, which writes it."""

from __future__ import annotations

import json
from functools import cache
from typing import NamedTuple

from markdown_table import table

from coupling_lib import paths
from coupling_lib.models.registry import Entry, entries
from coupling_lib.svd.operators import product_columns

PROMPTS, K = 1200, 10
# Bytes of a weight as it is published, and in 4 bits with its scales.
_PUBLISHED, _IN_4_BITS = 2, 4.5 / 8


class Cost(NamedTuple):
    """Cost of one model for all prompts, formed or by products alone; fetched as published, held in 4 bits."""

    formed: float
    products: float
    hours: float
    fetched: float
    held: float


def cost(entry: Entry) -> Cost:
    """Estimate the cost of a model from its depth, width and number of parameters."""
    L, d, weights = entry.blocks, entry.width, entry.parameters_b * 1e9
    # Half of a small model is embeddings: a block has 12 d^2 weights, and seldom more than 20 d^2.
    within = min(weights, 20 * d**2 * L)
    formed = 2 * d * within * PROMPTS
    products = 2 * product_columns(K, L) * within * PROMPTS
    hours = formed / measured_rate() / 3600
    return Cost(formed, products, hours, _PUBLISHED * weights, _IN_4_BITS * weights + 4 * within / L)


@cache
def measured_rate() -> float:
    """Return the operations a second that forming Jacobians of the widest benchmarked model came to on two cores."""
    run = json.loads((paths.ROOT / "benchmarks" / "latest.json").read_text(encoding="utf-8"))
    case = max(run["cases"], key=lambda case: case["d"])
    return case["complete_flop_per_block"] * case["L"] / case["seconds"]["ours"]["jacobians"]


def scale_page() -> str:
    """Format the table of the base models of the authors' list, and its sum."""
    models = sorted(
        (entry for entry in entries() if entry.in_paper and entry.kind == "base"), key=lambda entry: entry.parameters_b
    )
    costs = [cost(entry) for entry in models]
    rows = [
        (f"`{entry.alias}`", str(entry.blocks), f"{entry.width:,}", *_cells(each))
        for entry, each in zip(models, costs, strict=True)
    ]
    rows.append((f"all {len(models)}", "", "", *_cells(Cost(*map(sum, zip(*costs, strict=True))))[:-1], ""))
    head = ("model", "L", "d", "formed, PFLOP", "products, PFLOP", "hours here", "fetched, GB", "held, GB")
    return f"The rate is {measured_rate() / 1e9:.0f} GFLOP/s.\n\n{table(head, rows, align='lr')}"


@cache
def card_rate() -> float:
    """Return the operations a second that whole prompts of Llama-3-8B's shape came to on one card, at the slowest."""
    run = json.loads((paths.ROOT / "benchmarks" / "latest_gpu.json").read_text(encoding="utf-8"))
    whole = [prompt["seconds"]["total"] for prompt in run["prompts"] if prompt["arithmetic"] == "float32"]
    return run["model"]["complete_flop"] / max(whole)


NODE = 8
"""The number of cards in a node."""
SHAPES = ((12, 768), (24, 1024), (24, 2048), (32, 4096), (40, 5120), (80, 8192))
"""Depths and widths of the table for one prompt: GPT-2's, GPT-2 medium's, Pythia 1.4B's, and Llama's four sizes."""


def one_prompt_page() -> str:
    """Format the table of what one prompt takes, by depth and width."""
    rows = []
    for blocks, width in SHAPES:
        weights = 12 * width**2 * blocks
        work = 2 * width * weights
        times = map(_time, (work / measured_rate(), work / card_rate(), work / card_rate() / NODE))
        block = 4 * weights / blocks
        memory = (f"{(held * weights + block) / 1e9:.1f}" for held in (_IN_4_BITS, _PUBLISHED, 4))
        rows.append((str(blocks), f"{width:,}", f"{work / 1e12:,.1f}", *times, *memory))
    times, memory = ("two cores", "one H100", "a node"), ("GB in 4 bits", "GB in bfloat16", "GB in float32")
    head = ("blocks", "width", "TFLOP", *times, *memory)
    rates = f"Two cores do {measured_rate() / 1e9:.0f} GFLOP/s, and the card {card_rate() / 1e12:.0f} TFLOP/s."
    return f"{rates}\n\n{table(head, rows, align='r' * len(head))}"


def _time(seconds: float) -> str:
    if seconds >= 60:
        return f"{seconds / 60:.{0 if seconds > 600 else 1}f} min"
    # What is so short is no time of operations: starting them takes as long.
    return "< 1 s" if seconds < 0.95 else f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"


def _cells(each: Cost) -> tuple[str, ...]:
    work = (f"{amount / 1e15:,.1f}" for amount in (each.formed, each.products))
    hours = f"{each.hours:,.0f}" if each.hours >= 10 else f"{each.hours:.1f}"
    return (*work, hours, f"{each.fetched / 1e9:,.0f}", f"{each.held / 1e9:,.1f}")
