"""Emergence in made-up measurements: the figures, and what they are drawn of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import xarray as xr

from companion.figures import emergence
from tests.companion.figures.trajectory_cases import make_emergence

NAME, K = "normalized_miscoupling", 4
TAKE: dict[str, Callable[[xr.Dataset], xr.Dataset | xr.DataArray]] = {
    "draw_coupling": partial(emergence.take_coupling, variant=NAME, k=K),
    "draw_locality": partial(emergence.take_locality, variant=NAME, k=K),
    "draw_graphs": partial(emergence.take_graphs, variant=NAME, k=K),
    "draw_scores": emergence.take_scores,
    "draw_profiles": emergence.take_profiles,
}
MEASURED = make_emergence()
MEASUREMENTS = {
    "": MEASURED,
    "two steps": MEASURED.isel(step=[0, 3]),
    "no step 0": MEASURED.isel(step=[1, 2, 3]),
    "one prompt": MEASURED.isel(prompt=[0]),
    "whole Jacobians alone": MEASURED.drop_vars(["shared_normalized_miscoupling", "shared_null"]),
    "nothing known": MEASURED.assign(progress=MEASURED.progress * float("nan")).assign_attrs(progress_label=""),
    "no score": MEASURED.assign(
        {name: MEASURED[name] * float("nan") for name in ("expodistance", "window_expodistance")}
    ),
}


def _make(name: str, case: str, n: int) -> xr.Dataset | xr.DataArray:
    return TAKE[name](MEASUREMENTS[case])


WIDE = make_emergence(n_blocks=7)
MODELS = {"pythia-12b": MEASURED, "a/small-one": MEASURED.isel(step=[1, 3]), "pythia-70m": MEASURED.isel(prompt=[0])}


def _models(n: int) -> dict[str, xr.Dataset]:
    return emergence.take_models(dict(list(MODELS.items())[:n]), NAME, K)


CASES = {
    f"{name} {case}".rstrip(): (getattr(emergence, name), partial(_make, name, case))
    for name in TAKE
    for case in MEASUREMENTS
    if case
} | {
    "draw_models": (emergence.draw_models, _models),
    "draw_scores five windows": (emergence.draw_scores, lambda n: emergence.take_scores(WIDE, range(1, 6))),
}
"""Each figure, what draws it and what makes its data, with any steps; all but one are of one model."""
