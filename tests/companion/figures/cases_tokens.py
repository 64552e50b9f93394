"""What the figures of coupling across tokens are drawn from in tests."""

from __future__ import annotations

import numpy as np
import xarray as xr

from companion.figures import tokens
from coupling_lib.metrics.summaries import side_by_side

NAME = "normalized_miscoupling"
K, FULL, TOKENS = 3, 4, 5
TEXTS = [["What", " is", "$", "\n"], ["It", " was", " unbelievable", "", ""]]


def make_tokens(strength: float, kind: str = "self", other: int = 3, seed: int = 0, texts: bool = True) -> xr.Dataset:
    """A comparison of two prompts, the first of 4 tokens and the second of 3, filled up to 5."""
    rng = np.random.default_rng(seed)
    count = np.array([FULL, 3])
    there = np.arange(TOKENS) < count[:, None]
    pairs = there[:, :, None] & there[:, None, :]
    values = np.where(pairs, 1 - strength + 0.02 * rng.standard_normal(pairs.shape), np.nan)
    matrix = np.where(pairs[0][..., None, None], rng.standard_normal((TOKENS, TOKENS, K, K)), np.nan)
    singular_values = np.sort(rng.uniform(1, 3, (2, TOKENS, K)))[..., ::-1]
    words = np.array([[*TEXTS[0], ""], TEXTS[1]]) if texts else np.full((2, TOKENS), "")
    both = ("prompt", "token_1")
    return xr.Dataset(
        {
            NAME: (("prompt", "token_1", "token_2"), values),
            "matrix": (("token_1", "token_2", "row", "column"), matrix),
            "singular_values": ((*both, "rank"), np.where(there[..., None], singular_values, np.nan)),
            "position": (both, np.where(there, np.arange(TOKENS) + 6, -1)),
            "text": (both, words),
            "fixed_text": (("prompt",), [" is" if texts else "", "It"]),
            "fixed_position": (("prompt",), [-1 if kind == "self" else 1, 0]),
        },
        coords={"prompt": ["a", "b"]},
        attrs={"kind": kind, "block": 2, "other": other, "k": K},
    )


def networks(n: int = 2, **changes) -> xr.Dataset:
    """A comparison in several networks, the trained one more coupled than the others."""
    names = ["untrained", "trained"] if n == 2 else [f"model {i}" for i in range(n)]
    strengths = (0.05, 0.3, 0.1)
    return side_by_side(**{name: make_tokens(strengths[i], seed=i + 1, **changes) for i, name in enumerate(names)})


def comparisons(n: int = 2, pair_other: int = 3) -> dict[str, xr.Dataset]:
    """Every kind of comparison, between two blocks and within one."""
    return {f"{kind} 3-{o + 1}": networks(n, kind=kind, other=o) for o in (pair_other, 2) for kind in tokens.KIND_NAMES}


NULL = {"value": ("jacobian", [0.94, 0.96]), "error": ("jacobian", [1e-5, 3e-5])}
DRAWN = {"draws": (("sample", "jacobian"), np.linspace(0.9, 1.0, 102).reshape(51, 2))}
NULLS = {name: xr.Dataset(NULL | DRAWN) for name in comparisons()}
CHANCE = 0.95

CASES = {
    "draw_grid": (tokens.draw_grid, lambda n: tokens.take_grid(networks(n), NAME, CHANCE)),
    "draw_grid of one block": (
        tokens.draw_grid, lambda n: tokens.take_grid(networks(n, other=2, kind="input"), NAME, CHANCE),
    ),
    "draw_grid without tokenizer": (
        tokens.draw_grid, lambda n: tokens.take_grid(networks(n, kind="output", texts=False), NAME, CHANCE),
    ),
    "draw_summary": (tokens.draw_summary, lambda n: tokens.take_summary(comparisons(n), NAME, NULLS)),
    "draw_summary of one block": (tokens.draw_summary, lambda n: tokens.take_summary(comparisons(n, 2), NAME, NULLS)),
}  # fmt: skip
