"""Made-up measurements of trajectories and of emergence, for tests of figures without a model."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tests.companion.figures.conftest import make_depth

STEPS = (0, 10, 100, 1000)
READINGS = ("line_shape_score", "expodistance", "equidistance")
STATES = ("default", "without embedding", "normed end", "both")


def make_trajectories(seed: int, n_prompts: int = 5, n_blocks: int = 6, width: int = 3) -> xr.Dataset:
    """A measurement of trajectories with random positive values."""
    rng = np.random.default_rng(seed)
    L, windows = n_blocks, n_blocks - width + 1

    def positive(*shape: int) -> np.ndarray:
        return rng.uniform(0.5, 3, shape)

    return xr.Dataset(
        {name: ("prompt", positive(n_prompts)) for name in ("line_shape_score", "expodistance", "equidistance")}
        | {name: (("prompt", "level"), positive(n_prompts, L + 1)) for name in ("norm", "entropy", "entropy_normed")}
        | {
            "step_length": (("prompt", "block"), positive(n_prompts, L)),
            "window_line_shape_score": (("prompt", "centre"), positive(n_prompts, windows)),
            "window_expodistance": (("prompt", "centre"), positive(n_prompts, windows)),
            "readings": (("prompt", "states", "reading"), positive(n_prompts, len(STATES), len(READINGS))),
            "path": (("level", "position", "component"), rng.standard_normal((L + 1, 4, 2))),
            "path_share": ("component", [0.5, 0.25]),
            "path_token": ("position", ["It", " was", " the", " best"]),
        },
        coords={
            "prompt": [f"prompt {i}" for i in range(n_prompts)],
            "level": range(L + 1),
            "block": range(L),
            "centre": np.arange(windows) + width // 2,
            "states": list(STATES),
            "reading": list(READINGS),
        },
        attrs={"window": width, "entropy_missing": ""},
    )


def make_emergence(
    strengths: tuple[float, ...] = (0.06, 0.06, 0.6, 0.3), n_prompts: int = 5, n_blocks: int = 6
) -> xr.Dataset:
    """A measurement of emergence: coupling around each strength, a null of 0.05, a falling loss."""
    parts = []
    for seed, strength in enumerate(strengths):
        depth = make_depth(strength, seed=seed, n_prompts=n_prompts).drop_vars(["matrix", "by_distance"])
        depth = depth.drop_vars(["variant", "distance"])
        paths = make_trajectories(seed, n_prompts=n_prompts, n_blocks=n_blocks)
        names = [
            "line_shape_score", "expodistance", "equidistance", "norm",
            "window_line_shape_score", "window_expodistance",
        ]  # fmt: skip
        null = ("k", np.full(depth.sizes["k"], 0.95 - 0.001 * seed))
        error = ("k", np.full(depth.sizes["k"], 1e-5))
        parts.append(depth.assign(paths[names]).assign(null=null, null_error=error))
    ds = xr.concat(parts, dim="step").assign_coords(step=list(STEPS[: len(strengths)]))
    ds["progress"] = ("step", 7.0 - np.arange(len(strengths)))
    # Made up as well: nine tenths of the coupling are of shared directions.
    shared = {"normalized_miscoupling": 0.1 + 0.9 * ds["normalized_miscoupling"], "null": ds["null"]}
    ds = ds.assign({f"shared_{name}": values for name, values in shared.items()})
    ds.attrs = {"window": 3, "progress_label": "validation loss (nats per token)"}
    return ds
