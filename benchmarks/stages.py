"""One prompt, whole: states, Jacobians, top singular triplets, all pairs; each stage timed."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import coupling_lib as cl
from benchmarks import released
from benchmarks.machine import timed
from coupling_lib.measures.common import depth_jacobians
from coupling_lib.svd.triplets import top_triplets_stacked

STAGES = ("capture", "jacobians", "svd", "pairs")


class Measured(NamedTuple):
    """Results of one method and the seconds of each stage."""

    seconds: dict[str, float]
    J: Tensor
    values: dict[str, Tensor]


def ours(
    model: cl.Model, ids: Tensor, boundary: str = "block", jacobians: Callable[[cl.Trace], Tensor] | None = None
) -> Measured:
    """Measure one prompt with this library, its Jacobians in another way if one is given."""
    device, seconds = model.device, {}
    seconds["capture"], traced = timed(lambda: cl.trace(model, ids), device)
    jacobians = jacobians or (lambda traced: depth_jacobians(traced, -1, boundary, forget=True))
    seconds["jacobians"], J = timed(lambda: jacobians(traced), device)
    seconds["svd"], found = timed(lambda: top_triplets_stacked(J, max(released.KS)), device)
    seconds["pairs"], values = timed(
        lambda: cl.measure_variants(J, found.U, found.S, found.Vh, released.KS, released.READINGS), device
    )
    return Measured(seconds, J, values)


def theirs(model: cl.Model, ids: Tensor, kind: str, blocks: list[int], stand_in: Tensor) -> Measured:
    """Measure one prompt with the released method, its Jacobians for some blocks only."""
    # Singular vectors and pairs are computed for all blocks, because they are cheap enough.
    device, seconds = model.device, {}
    J = stand_in.clone()
    with released.attention_set_to(model.hf, kind):
        seconds["capture"], states = timed(lambda: released.hidden_states(model.hf, ids), device)
        spent = 0.0
        for block in blocks:
            once, J[block] = timed(lambda block=block: released.jacobian(states, block), device)
            spent += once
    seconds["jacobians"] = spent * model.n_blocks / len(blocks)
    seconds["svd"], decomposed = timed(lambda: released.decompose(J), device)
    seconds["pairs"], values = timed(lambda: released.couple(J, decomposed), device)
    return Measured(seconds, J, values)


def medians(runs: list[Measured]) -> dict[str, float]:
    """Return the median seconds of each stage, and of the whole."""
    seconds = {stage: statistics.median(run.seconds[stage] for run in runs) for stage in STAGES}
    return seconds | {"total": statistics.median(sum(run.seconds.values()) for run in runs)}


def in_float64(model: cl.Model) -> cl.Model:
    """Return a copy of a model in float64, as the reference for rounding errors."""
    return cl.wrap_model(copy.deepcopy(model.hf).double(), name=model.name)


def faster_attention(model: cl.Model, ids: Tensor) -> str:
    """Return the attention with which the released method is faster, on one Jacobian of the middle block."""
    seconds = {}
    for kind in ("eager", "sdpa"):
        with released.attention_set_to(model.hf, kind):
            states = released.hidden_states(model.hf, ids)
            seconds[kind], _ = timed(lambda states=states: released.jacobian(states, model.n_blocks // 2), model.device)
    return min(seconds, key=seconds.__getitem__)


def some_blocks(n_blocks: int, count: int) -> list[int]:
    """Choose blocks to measure: all of them, or a few spread over the depth without the last."""
    if count >= n_blocks:
        return list(range(n_blocks))
    return torch.linspace(0, n_blocks - 2, count).round().int().unique().tolist()


def agreement(one: Measured, other: Measured, blocks: list[int]) -> dict[str, float]:
    """Compare two methods' values on the pairs of some blocks; the last block is left out."""
    inner = [block for block in blocks if block != len(one.J) - 1]
    index = torch.tensor(inner)
    same = torch.eye(len(inner), dtype=torch.bool)
    found, wanted = (
        torch.cat([run.values[name].cpu()[:, index][:, :, index] for name in released.READINGS]) for run in (one, other)
    )
    difference = (found - wanted).abs()
    between = torch.linalg.matrix_norm(one.J[inner] - other.J[inner]) / torch.linalg.matrix_norm(other.J[inner])
    return {
        "pairs": len(inner) * (len(inner) - 1),
        "metric_relative": float((difference / wanted.abs())[:, ~same].max()) if len(inner) > 1 else 0.0,
        "metric_absolute_same_block": float(difference[:, same].max()),
        "jacobian_relative": float(between.max()),
    }
