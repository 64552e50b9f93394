"""Growth of time with the prompt n, tokens T taken at once, the width d, blocks L and vectors K."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch

import coupling_lib as cl
from benchmarks import released
from benchmarks.machine import timed
from benchmarks.shapes import gpt2, model_from, prompt_ids
from coupling_lib.measures.common import depth_jacobians
from coupling_lib.svd.triplets import top_triplets_stacked


def growth(quick: bool = False, rounds: int = 3) -> list[dict[str, Any]]:
    """Measure the growth."""
    width, n, blocks = (96, 16, 4) if quick else (768, 64, 12)
    lengths, widths, depths = (
        ((8, 16), (64, 96), (2, 4)) if quick else ((16, 64, 128, 256), (384, 768, 1536), (6, 12, 24))
    )
    J = _decaying(blocks, width)
    found = top_triplets_stacked(J, max(released.KS))
    model = _model(width)
    return [
        _curve("n", "Jacobian of one block", f"d = {width}", lengths, rounds, lambda n: _jacobian(model, n)),
        *(
            _curve("T", "Jacobians of T tokens at once", f"d = {d}, one block", (1, 4, 16), rounds, _tokens(d))
            for d in ((64, 96) if quick else (96, 768))
        ),
        _curve("d", "Jacobian of one block", f"n = {n}", widths, rounds, lambda d: _jacobian(_model(d), n)),
        _curve("d", "top 50 of one block", "K = 50", widths, rounds, lambda d: _svd(_decaying(1, d), 50)),
        _curve("K", "top K of all blocks", f"d = {width}, L = {blocks}", released.KS, rounds, lambda k: _svd(J, k)),
        _curve("K", "all pairs", f"d = {width}, L = {blocks}", released.KS, rounds, lambda k: _pairs(J, found, k)),
        _curve("L", "all pairs", f"d = {width}, K = 50", depths, rounds, lambda L: _repeated(J[:1], L)),
    ]


def _curve(
    variable: str, stage: str, fixed: str, values: Iterable[int], rounds: int,
    prepare: Callable[[int], Callable[[], object]],
) -> dict[str, Any]:  # fmt: skip
    points = []
    for value in values:
        work = prepare(value)
        timed(work)
        points.append([value, statistics.median(timed(work)[0] for _ in range(rounds))])
    (first, start), (last, end) = points[0], points[-1]
    exponent = math.log(end / start) / math.log(last / first)
    return {"variable": variable, "stage": stage, "fixed": fixed, "points": points, "exponent": exponent}


def _model(width: int) -> cl.Model:
    return model_from(gpt2(width=width, blocks=1, vocabulary=256), f"gpt2 of width {width}")


def _jacobian(model: cl.Model, n_tokens: int) -> Callable[[], object]:
    traced = cl.trace(model, prompt_ids(model, n_tokens))
    return lambda: depth_jacobians(traced, -1)


def _tokens(width: int) -> Callable[[int], Callable[[], object]]:
    model = _model(width)
    traced = cl.trace(model, prompt_ids(model, 16))
    return lambda T: lambda: cl.block_jacobians(traced, 0, [(t, t) for t in range(T)])


def _svd(J: torch.Tensor, k: int) -> Callable[[], object]:
    return lambda: top_triplets_stacked(J, k)


def _pairs(J: torch.Tensor, found: cl.SingularTriplets, k: int) -> Callable[[], object]:
    return lambda: cl.measure_variants(J, found.U, found.S, found.Vh, (k,), released.READINGS)


def _repeated(J: torch.Tensor, blocks: int) -> Callable[[], object]:
    many = J.expand(blocks, -1, -1).contiguous()
    return _pairs(many, top_triplets_stacked(many, max(released.KS)), max(released.KS))


def _decaying(blocks: int, width: int) -> torch.Tensor:
    """Draw matrices with singular values near 1 / sqrt(i), as trained blocks roughly have."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(blocks, width, width, generator=generator)
    return noise * torch.arange(1, width + 1).rsqrt() / math.sqrt(width)
