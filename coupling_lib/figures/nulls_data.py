r"""What the figures of `coupling_lib.figures.nulls` show, as tables.

All take data sets of `coupling_lib.measures.nulls`: `curves` of `null_curves`, and mappings from a network's name
("untrained", "trained") to what `measure_nulls` or `measure_decisive` made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr

from coupling_lib.figures.curves import mean_interval
from coupling_lib.figures.depth_data import Datasets
from coupling_lib.metrics.nulls import gaussian_miscoupling
from coupling_lib.metrics.statistics import linear_fit, width_curve

KINDS = ("measured", "permuted", "unpaired")
"""What the model itself and its surrogates are called; the surrogate `rotated` is a draw of the null, a check."""

REPORTED = ("normalized_miscoupling", "mismatch", "released_norm", "basis_vv")
"""Variants drawn against K: one for each of the paper, its project page, its code, and the bases alone."""


def curve_table(curves: xr.Dataset) -> pd.DataFrame:
    """Tabulates the null of every variant over width, rule for K and decay."""
    frame = curves.to_dataframe().reset_index()
    return frame[["rule", "width", "k", "decay", "variant", "closed_form", "simulated", "error"]]


def closed_form_errors(curves: xr.Dataset) -> pd.Series:
    """Compares the closed forms with the simulation, variant by variant."""
    difference = abs(curves["simulated"] / curves["closed_form"] - 1)
    return difference.max([dim for dim in difference.dims if dim != "variant"]).to_series()


def surrogate_table(datasets: Datasets, k: int) -> pd.DataFrame:
    """Tabulates coupling relative to its null, of a model and of its surrogates."""
    rows = []
    for network, ds in datasets.items():
        at_k = ds.sel(k=k)
        null, error = at_k["null"].mean("prompt"), at_k["null_error"].mean("prompt")
        closed = at_k["closed_form"].mean("prompt")
        for kind in KINDS:
            value = at_k["value"].sel(kind=kind).mean("prompt")
            interval = mean_interval(at_k["relative"].sel(kind=kind).transpose("prompt", "variant").values)
            for at, variant in enumerate(at_k["variant"].values):
                found = [float(x[at]) for x in (value, null, error, closed, *interval)]
                rows.append((network, str(variant), kind, *found))
    columns = ["network", "variant", "kind", "value", "null", "null_error", "closed_form", "coupling", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def k_table(datasets: Datasets, variants: Sequence[str] = REPORTED) -> pd.DataFrame:
    """Tabulates relative coupling against the number of singular vectors."""
    rows = []
    for network, ds in datasets.items():
        measured = ds["relative"].sel(kind="measured")
        for variant in variants:
            interval = mean_interval(measured.sel(variant=variant).transpose("prompt", "k").values)
            for at, k in enumerate(ds["k"].values):
                rows.append((network, variant, int(k), *(float(part[at]) for part in interval)))
    return pd.DataFrame(rows, columns=["network", "variant", "k", "coupling", "low", "high"])


def spectrum_decay(ds: xr.Dataset, k: int) -> float:
    r"""Gives the exponent a with which the top K singular values decay, $\sigma_i \sim i^{-a}$."""
    logs = np.log(ds["singular_values"].isel(rank=slice(k)).values).reshape(-1, k)
    ranks = np.log(np.arange(1, k + 1))
    return float(np.median([-linear_fit(ranks, row).slope for row in logs]))


def decisive_table(measured: Mapping[str, Datasets], digitised: Mapping[str, float]) -> pd.DataFrame:
    """Sets measured couplings beside the digitised ones, one line per model, number of vectors and choice of pairs."""
    rows = []
    for model, both in measured.items():
        trained = both["trained"]
        width = int(trained.attrs["width"])
        for rule in trained["rule"].values:
            for pairs in ("different", "all"):
                row = {"model": model, "width": width, "K": str(rule), "pairs": pairs}
                for short, variant in (("norm", "released_norm"), ("trace", "released_trace")):
                    place = {"variant": variant, "rule": rule, "pairs": pairs}
                    for name in ("trained", "untrained"):
                        row[f"c_{short}_{name}"] = 1 - float(both[name]["value"].sel(place).mean())
                    row[f"c_{short}_null"] = 1 - float(trained["null"].sel(place).mean())
                    row[f"c_{short}_null_error"] = float(trained["null_error"].sel(place).mean())
                row["c_digitised"] = digitised.get(model, np.nan)
                row["c_flat"] = float(width_curve(width)) if rule == "0.1 d" else np.nan
                if rule == "0.1 d":
                    row["K"] = f"{int(trained['k'].sel(rule=rule))} (0.1 d)"
                rows.append(row)
    return pd.DataFrame(rows)


def overview_table(points: pd.DataFrame, measured: Mapping[str, Datasets]) -> pd.DataFrame:
    """Collects 1 - `released_trace` at K = 10 % of the width, or what may be that, over all models at hand."""
    rows = [(point.model, point.width, "digitised", point.coupling) for point in points.itertuples()]
    rows += [(point.model, point.width, "flat", float(width_curve(point.width))) for point in points.itertuples()]
    for model, both in measured.items():
        width = int(both["trained"].attrs["width"])
        place = {"variant": "released_trace", "rule": "0.1 d", "pairs": "different"}
        for name, ds in both.items():
            rows.append((model, width, name, 1 - float(ds["value"].sel(place).mean())))
        rows.append((model, width, "random bases", 1 - float(both["trained"]["null"].sel(place).mean())))
        rows.append((model, width, "flat", float(width_curve(width))))
    return pd.DataFrame(rows, columns=["model", "width", "network", "coupling"])


def missing_table(
    wanted: Sequence[str], measured: Mapping[str, Datasets], digitised: Mapping[str, float]
) -> pd.DataFrame:
    """Names the models of the decisive test that have not been measured, and what measures them."""
    rows = [
        (model, digitised.get(model, np.nan), "not measured here", f"python workflow/decisive.py {model}")
        for model in wanted
        if model not in measured
    ]
    return pd.DataFrame(rows, columns=["model", "c_digitised", "measured", "command"])


def summary_table(datasets: Datasets, k: int) -> pd.DataFrame:
    """Sums up relative coupling: the model, what its surrogates keep, and the interval over prompts."""
    table = surrogate_table(datasets, k)
    table = table[table["variant"].isin(REPORTED)]
    measured = table[table["kind"] == "measured"].set_index(["network", "variant"])
    for kind in KINDS[1:]:
        other = table[table["kind"] == kind].set_index(["network", "variant"])["coupling"]
        measured = measured.join(other.rename(kind))
    return measured[["coupling", "low", "high", *KINDS[1:]]]


def records(
    curves: xr.Dataset, datasets: Datasets, k: int, decisive: pd.DataFrame, spectra: pd.DataFrame
) -> dict[str, float]:
    """Collects the numbers that the book quotes."""
    found: dict[str, float] = {"prompts": float(datasets["trained"].sizes["prompt"]), "k": float(k)}
    chance = datasets["trained"].sel(k=k, variant="normalized_miscoupling").mean("prompt")
    found |= {"coupling-null": 1 - chance["null"], "coupling-null-error": chance["null_error"]}
    found |= {"coupling-null-least": spectra["coupling"].min(), "coupling-null-largest": spectra["coupling"].max()}
    found |= {"coupling-null-gaussian": 1 - gaussian_miscoupling(k), "coupling-null-root": 1 - (1 - 1 / k) ** 0.5}
    for (network, variant), row in summary_table(datasets, k).iterrows():
        stem = f"{variant}-{network}"
        found |= {f"relative-{stem}": row["coupling"], f"relative-{stem}-low": row["low"]}
        found |= {f"relative-{stem}-high": row["high"], f"unpaired-{stem}": row["unpaired"]}
        found |= {f"permuted-{stem}": row["permuted"]}
    for variant, error in closed_form_errors(curves).items():
        found[f"closed-form-error-{variant}"] = error
    tenth = decisive[decisive["K"].str.endswith("(0.1 d)") & (decisive["pairs"] == "different")].iloc[0]
    for name in ("trained", "untrained", "null"):
        found[f"decisive-trace-{name}"] = tenth[f"c_trace_{name}"]
        found[f"decisive-norm-{name}"] = tenth[f"c_norm_{name}"]
    for short in ("trace", "norm"):
        found[f"decisive-{short}-null-error"] = tenth[f"c_{short}_null_error"]
    found["decisive-flat"] = tenth["c_flat"]
    found["decay"] = spectrum_decay(datasets["trained"], k)
    return {name: float(value) for name, value in found.items()}
