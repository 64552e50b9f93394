"""Made-up measurements of spectra, dynamics and perturbations, with the shape of real ones."""

from __future__ import annotations

import numpy as np
import xarray as xr

PROMPTS, BLOCKS, K, WIDTH = 5, 6, 12, 24


def prompts(count: int) -> list[str]:
    return [f"prompt {i}" for i in range(count)]


def make_spectra(scale: float, seed: int, count: int = PROMPTS) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    values = scale * np.sort(rng.uniform(0.1, 2, (count, BLOCKS, K)))[..., ::-1]
    spectrum = scale * np.sort(rng.uniform(1e-3, 2, (count, 2, WIDTH)))[..., ::-1]
    return xr.Dataset(
        {
            "singular_values": (("prompt", "block", "rank"), values),
            "frobenius_norm": (("prompt", "block"), np.sqrt((values**2).sum(-1)) * 1.2),
            "stable_rank": (("prompt", "block"), rng.uniform(2, 9, (count, BLOCKS))),
            "left_right_alignment": (("prompt", "block"), rng.uniform(0, 1, (count, BLOCKS))),
            "exchanged_miscoupling": (("prompt", "block"), rng.uniform(0.5, 1, (count, BLOCKS))),
            "spectrum": (("prompt", "whole", "index"), spectrum),
            "decay_exponent": (("prompt", "whole"), rng.uniform(0, 1, (count, 2))),
        },
        coords={"prompt": prompts(count), "block": range(BLOCKS), "whole": [0, 4]},
        attrs={"width": WIDTH},
    )


def make_fits(seed: int, count: int = PROMPTS) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    names = ("slope", "intercept", "r_squared")
    values = {name: (("prompt",), rng.uniform(0, 1, count)) for name in names}
    return xr.Dataset(values, coords={"prompt": prompts(count)}, attrs={"first_block": 2})


def make_null(seed: int) -> xr.Dataset:
    exchanged = np.random.default_rng(seed).uniform(0.9, 1, (7, BLOCKS))
    return xr.Dataset({"left_right_alignment": 0.16, "exchanged_miscoupling": (("sample", "block"), exchanged)})


def make_dynamics(seed: int, count: int = PROMPTS) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    levels = BLOCKS + 1
    below = np.tril(np.ones((levels, levels), dtype=bool), -1)
    triangle = {
        "carried_cosine": np.where(below, np.nan, rng.uniform(-1, 1, (count, levels, levels))),
        "carried_norm_ratio": np.where(below, np.nan, rng.uniform(0.05, 1, (count, levels, levels))),
    }
    readings = ["embedding", "product", "released", "product with final norm", "affine"]
    growth = {f"growth_{kind}": rng.normal(0, 2, (count, levels, 3)) for kind in GROWTH_KINDS}
    variables = (
        {name: (("prompt", "start", "level"), values) for name, values in triangle.items()}
        | {name: (("prompt", "level", "direction"), values) for name, values in growth.items()}
        | {
            "null_cosine": (("prompt", "level"), rng.uniform(-0.1, 0.1, (count, levels))),
            "null_norm_ratio": (("prompt", "level"), rng.uniform(0.1, 1, (count, levels))),
            "null_cosine_error": (("prompt", "level"), np.full((count, levels), 0.003)),
            "end_cosine": (("prompt", "reading"), rng.uniform(-1, 1, (count, 5))),
            "end_norm_ratio": (("prompt", "reading"), rng.uniform(0.01, 1, (count, 5))),
            "linear_norm_ratio": (("prompt", "block"), rng.uniform(1e-4, 0.1, (count, BLOCKS))),
            "contribution": (("prompt", "level"), rng.dirichlet(np.ones(levels), count)),
            "left_right_cosine": (("prompt", "block", "rank"), rng.uniform(-1, 1, (count, BLOCKS, 4))),
        }
    )
    return xr.Dataset(
        variables,
        coords={"prompt": prompts(count), "block": range(BLOCKS), "level": range(levels), "reading": readings},
        attrs={"width": WIDTH},
    )


GROWTH_KINDS = ("state", "response", "along", "singular", "null")


def make_perturbation(seed: int, count: int = PROMPTS) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    shape, dims = (count, 3, 2, 4, BLOCKS + 1), ("prompt", "carrier", "noise", "draw", "level")
    return xr.Dataset(
        {
            "cosine": (dims, rng.uniform(0, 1, shape)),
            "amplification": (dims, rng.uniform(1, 20, shape)),
            "linear_error": (("prompt", "noise", "draw", "level"), rng.uniform(0.01, 1, (count, 2, 4, BLOCKS + 1))),
        },
        coords={
            "prompt": prompts(count),
            "carrier": ["network", "linear", "random"],
            "noise": [0.1, 1.0],
            "level": range(BLOCKS + 1),
        },
    )
