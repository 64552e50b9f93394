"""A made-up measurement of precisions, with the shape of a real one."""

from __future__ import annotations

import numpy as np
import xarray as xr

NAMES, SOURCES = ["float32", "int8", "nf4"], ["weights", "bfloat16 arithmetic", "float16 arithmetic"]
PROMPTS, EXAMPLES, L, K = 4, 2, 5, 3


def make_precision(seed: int = 0) -> xr.Dataset:
    """A reference, eight bits that err by about 0.1 %, and four that err by about 10 % and hide coupling."""
    rng = np.random.default_rng(seed)
    size = np.array([0, 1e-3, 1e-1])
    values = np.sort(rng.uniform(0.5, 2, (PROMPTS, L, K)))[..., ::-1]
    values = values * (1 + size[:, None, None, None] * rng.standard_normal((3, PROMPTS, L, K)))
    mismatch = rng.uniform(0.75, 0.95, (PROMPTS, L, L))
    mismatch = mismatch + np.array([0, 1e-4, 0.03])[:, None, None, None] * rng.uniform(0.5, 1.5, (3, PROMPTS, L, L))
    mismatch[..., np.arange(L), np.arange(L)] = 0
    by_source = np.stack([size, np.full(3, 2e-3), np.full(3, 2e-4)], axis=1)
    shape = (3, 3, EXAMPLES, L)
    spread = rng.uniform(0.5, 1.5, (*shape, K))
    return xr.Dataset(
        {
            "normalized_miscoupling": (("precision", "prompt", "block_1", "block_2"), mismatch),
            "singular_values": (("precision", "prompt", "block", "rank"), values),
            "value_error": (
                ("precision", "source", "example", "block", "rank"),
                by_source[..., None, None, None] * spread,
            ),
            "angle": (
                ("precision", "source", "side", "example", "block", "order"),
                np.sort(
                    300 * by_source[..., None, None, None, None] * rng.uniform(0.5, 1.5, (3, 3, 2, EXAMPLES, L, K))
                ),
            ),
            "coupling_error": (
                ("precision", "source", "example", "block_1", "block_2"),
                by_source[..., None, None, None] * rng.uniform(0.5, 1.5, (*shape, L)) * ~np.eye(L, dtype=bool),
            ),
            "null": ("precision", [0.82, 0.82, 0.83]),
            "null_error": ("precision", [1e-5, 1e-5, 1e-5]),
            "random_angle": ("order", [50.0, 65.0, 80.0]),
        },
        coords={"precision": NAMES, "source": SOURCES, "side": ["U", "V"]},
        attrs={"k": K},
    )
