"""Made-up measurements with the shape of real ones, for tests of figures without a model."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import xarray as xr

from companion.tables.arrays import side_by_side

VARIANTS = ("miscoupling", "normalized_miscoupling", "mismatch", "mismatch_trace", "released_norm", "released_trace")


def networks(count: int, make: Callable[[int], xr.Dataset]) -> xr.Dataset:
    """So many networks side by side, each made from its place; two are the untrained and the trained network."""
    names = ["untrained", "trained"] if count == 2 else [f"model {i}" for i in range(count)]
    return side_by_side(**{name: make(place) for place, name in enumerate(names)})


def case(module: ModuleType, figure: str, data: Callable[[int], Any], *chosen: Any, **options: Any) -> tuple:
    """A case of `test_every_figure`: what draws, what takes its data of so many networks, and the drawing's options."""
    return getattr(module, f"draw_{figure}"), lambda n: getattr(module, f"take_{figure}")(data(n), *chosen), options


def made(
    seed: int, sizes: Mapping[str, int], drawn: Mapping[str, tuple[str, float, float]], **coords: Any
) -> xr.Dataset:
    """Variables drawn evenly between two ends, each with the dimensions that it names."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, (dimensions, low, high) in drawn.items():
        dims = dimensions.split()
        found[name] = (dims, rng.uniform(low, high, [sizes[dim] for dim in dims]))
    return xr.Dataset(found, {"prompt": [f"prompt {i}" for i in range(sizes["prompt"])]} | coords)


def matrices(rng: np.random.Generator, miscoupling: np.ndarray, k: int) -> np.ndarray:
    """Draw coupling matrices (..., k, k) of given normalised mis-couplings."""
    off = rng.standard_normal((*miscoupling.shape, k, k)) * (1 - np.eye(k))
    share = np.clip(miscoupling, 0, 1)[..., None, None]
    on = np.sqrt((1 - share**2) / k) * np.eye(k)
    return 0.2 * (on + share * off / np.linalg.norm(off, axis=(-2, -1), keepdims=True))


def make_depth(strength: float, seed: int, n_prompts: int = 5, n_blocks: int = 6, ks: tuple[int, ...] = (3, 4)):
    """A depth measurement whose off-diagonal mismatches lie around 1 - strength and grow with distance."""
    rng = np.random.default_rng(seed)
    index = np.arange(n_blocks)
    distance = np.abs(index[:, None] - index)
    shape = (n_prompts, len(ks), n_blocks, n_blocks)
    values = 1 - strength / (1 + 0.2 * distance) + 0.01 * rng.standard_normal(shape)
    values *= distance > 0
    size = max(ks)
    matrix = matrices(rng, values[0, -1], size)
    singular_values = np.sort(rng.uniform(0.2, 2, (n_prompts, n_blocks, size)))[..., ::-1]
    matrix[index, index] = [np.diag(row) for row in singular_values[0]]
    apart = np.stack([values[..., distance == delta].mean(axis=-1) for delta in range(n_blocks)], axis=-1)
    by_distance = np.broadcast_to(apart[:, None], (n_prompts, len(VARIANTS), *apart.shape[1:]))
    variables = {name: (("prompt", "k", "block_1", "block_2"), values) for name in VARIANTS}
    variables["singular_values"] = (("prompt", "block_1", "rank"), singular_values)
    variables["matrix"] = (("block_1", "block_2", "row", "column"), matrix)
    variables["by_distance"] = (("prompt", "variant", "k", "distance"), by_distance)
    coords = dict.fromkeys(("block_1", "block_2", "distance"), index) | {"k": list(ks), "variant": list(VARIANTS)}
    return xr.Dataset(variables, coords | {"prompt": [f"prompt {i}" for i in range(n_prompts)]})
