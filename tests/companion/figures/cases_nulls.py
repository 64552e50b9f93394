"""Made-up nulls and surrogates, with the shape of real ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from companion.figures import nulls
from coupling_lib.metrics.variants import VARIANTS

NETWORKS = ["trained", "untrained", "nano-llama"]
POINTS = pd.DataFrame({"model": ["a", "b", "c"], "width": [64, 1024, 4096], "coupling": [0.6, 0.9, 0.95]})


def _filled(rng: np.random.Generator, names: list[str], **coords: list) -> xr.Dataset:
    shape = [len(values) for values in coords.values()]
    return xr.Dataset({name: (tuple(coords), rng.uniform(0.1, 1, shape)) for name in names}, coords)


def make_curves() -> xr.Dataset:
    place = {"rule": ["4", "0.1 d"], "width": [32, 64, 128], "decay": [0.0, 1.0], "variant": list(VARIANTS)}
    curves = _filled(np.random.default_rng(0), ["simulated", "error", "closed_form"], **place)
    return nulls.take_curves(curves.assign(error=curves.error / 100, k=("rule", [4, 6])))


def make_both(n: int) -> xr.Dataset:
    rng, prompts = np.random.default_rng(1), {"network": NETWORKS[:n], "prompt": ["a", "b", "c"]}
    own = {"kind": ["measured", "rotated", "permuted", "unpaired"], "variant": list(VARIANTS), "k": [4, 8]}
    null = _filled(rng, ["null", "null_error", "closed_form"], **prompts, variant=own["variant"], k=own["k"])
    shared = _filled(rng, ["without_isotropic"], **prompts, coordinates=["own", "permuted"], k=own["k"])
    return xr.merge([_filled(rng, ["value", "relative"], **prompts, **own), null, shared])


def make_decisive(n: int) -> xr.Dataset:
    place = {"variant": ["released_norm", "released_trace"], "rule": ["0.1 d"], "pairs": ["different"]}
    ds = _filled(np.random.default_rng(2), ["value", "null"], network=NETWORKS[:n], prompt=["a", "b"], **place)
    return ds.assign_attrs(width=96)


CASES = {
    "draw_curves": (nulls.draw_curves, lambda n: make_curves()),
    "draw_surrogates": (nulls.draw_surrogates, lambda n: nulls.take_surrogates(make_both(n), 4)),
    "draw_parts": (nulls.draw_parts, lambda n: nulls.take_parts(make_both(n)).sel(k=4)),
    "draw_across_k": (nulls.draw_across_k, lambda n: nulls.take_across_k(make_both(n))),
    "draw_figure_1a": (nulls.draw_figure_1a, lambda n: nulls.take_figure_1a(POINTS, {"tiny": make_decisive(n)})),
    "draw_figure_1a of digitised points alone": (nulls.draw_figure_1a, lambda n: nulls.take_figure_1a(POINTS, {})),
}
"""Each figure: what draws it, and what makes its data for a number of networks."""
