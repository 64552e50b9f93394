"""Made-up readings, with the shape of real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.metrics.variants import VARIANTS

NETWORKS, KS = ["untrained", "trained", "nano-llama"], [5, 10, 30]


def _with_interval(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> list[np.ndarray]:
    mean = rng.uniform(low, high, shape)
    return [mean, mean - 0.01, mean + 0.02]


def make_means(n: int = 2) -> xr.Dataset:
    rng = np.random.default_rng(0)
    shape = (n, len(VARIANTS), len(KS))
    parts = dict(zip(("mean", "low", "high"), _with_interval(rng, shape, 0.3, 1.1), strict=True))
    parts |= dict(zip(("share", "share_low", "share_high"), _with_interval(rng, shape, -0.1, 0.3), strict=True))
    parts["null"] = rng.uniform(0.8, 1, shape)
    parts["null_error"] = np.full(shape, 1e-5)
    coords = {"network": NETWORKS[:n], "variant": list(VARIANTS), "k": KS}
    return xr.Dataset({name: (("network", "variant", "k"), part) for name, part in parts.items()}, coords, {"k": 10})


def make_agreement() -> xr.Dataset:
    rng = np.random.default_rng(1)
    values = np.corrcoef(rng.standard_normal((len(VARIANTS), 12)))
    names = list(VARIANTS)
    parts = {"mean": values, "low": values - 0.05, "high": values + 0.05}
    coords = {"variant": names, "other": names}
    return xr.Dataset({k: (("variant", "other"), v) for k, v in parts.items()}, coords, attrs={"k": 10})


def make_choices(n: int = 2) -> pd.DataFrame:
    rows = [
        (point, reading, "released_norm", network, value + 0.1 * i, value, value + 0.2, 0.05 + 0.01 * i, 1e-5)
        for point, reading, value in (
            ("coupling", "−m", -0.9),
            ("coupling", "1 − m", 0.1),
            ("last block", "its own", 0.2),
        )
        for i, network in enumerate(NETWORKS[:n])
    ]
    columns = ["point", "reading", "variant", "network", "coupling", "low", "high", "null", "null_error"]
    return pd.DataFrame(rows, columns=columns)


def make_by_block(n: int = 2) -> xr.Dataset:
    """As `take_boundaries` selects it: blocks count from 1."""
    rng = np.random.default_rng(2)
    parts = zip(("mean", "low", "high"), _with_interval(rng, (2, n, 6), 0.05, 0.3), strict=True)
    coords = {"boundary": ["block", "hidden_states"], "network": NETWORKS[:n], "block": range(1, 7)}
    attrs = {"variant": "normalized_miscoupling", "k": 10, "null": 0.95}
    return xr.Dataset({name: (("boundary", "network", "block"), part) for name, part in parts}, coords, attrs)
