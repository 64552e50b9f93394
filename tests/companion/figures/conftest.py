"""Made-up measurements with the shape of real ones, for tests of figures without a model."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

VARIANTS = ("miscoupling", "normalized_miscoupling", "mismatch", "mismatch_trace", "released_norm", "released_trace")


def make_depth(strength: float, seed: int, n_prompts: int = 5, n_blocks: int = 6, ks: tuple[int, ...] = (3, 4)):
    """A depth measurement whose off-diagonal mismatches lie around 1 - strength and grow with distance."""
    rng = np.random.default_rng(seed)
    index = np.arange(n_blocks)
    distance = np.abs(index[:, None] - index)
    shape = (n_prompts, len(ks), n_blocks, n_blocks)
    values = 1 - strength / (1 + 0.2 * distance) + 0.01 * rng.standard_normal(shape)
    values *= distance > 0
    size = max(ks)
    matrix = 0.05 * rng.standard_normal((n_blocks, n_blocks, size, size))
    singular_values = np.sort(rng.uniform(0.2, 2, (n_prompts, n_blocks, size)))[..., ::-1]
    matrix[index, index] = [np.diag(row) for row in singular_values[0]]
    dims = ("prompt", "k", "block_1", "block_2")
    apart = np.stack([values[..., distance == delta].mean(axis=-1) for delta in range(n_blocks)], axis=-1)
    by_distance = np.broadcast_to(apart[:, None], (n_prompts, len(VARIANTS), *apart.shape[1:]))
    return xr.Dataset(
        {name: (dims, values) for name in VARIANTS}
        | {
            "singular_values": (("prompt", "block_1", "rank"), singular_values),
            "matrix": (("block_1", "block_2", "row", "column"), matrix),
            "by_distance": (("prompt", "variant", "k", "distance"), by_distance),
        },
        coords={
            "k": list(ks),
            "block_1": index,
            "block_2": index,
            "prompt": [f"prompt {i}" for i in range(n_prompts)],
            "variant": list(VARIANTS),
            "distance": index,
        },
    )


@pytest.fixture
def datasets():
    """An untrained model, about as coupled as chance, and a trained one."""
    return {"untrained": make_depth(0.06, seed=1), "trained": make_depth(0.4, seed=2)}
