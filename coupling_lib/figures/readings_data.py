"""What the figures of rival readings show, as tables, and the numbers that prose may quote.

The functions take what `coupling_lib.measures.readings` makes. Blocks count from 1.
"""

from __future__ import annotations

import pandas as pd
import xarray as xr

SHARES = ("share", "share_low", "share_high")
"""The way from random bases to perfect coupling: its mean and the ends of its interval, in a data set of means."""


def means_table(means: xr.Dataset) -> pd.DataFrame:
    """Tabulates what `values_by_k` and `beyond_chance` draw."""
    order = ["mean", "low", "high", "null", "null_error", *SHARES]
    return means[order].to_dataframe().reset_index()[["network", "variant", "k", *order]]


def agreement_table(agreement: xr.Dataset) -> pd.DataFrame:
    """Tabulates what `agreement_matrix` draws, with intervals."""
    return agreement[["mean", "low", "high"]].to_dataframe().reset_index()


def boundary_table(by_block: xr.Dataset) -> pd.DataFrame:
    """Tabulates what `boundary_figure` draws."""
    table = by_block[["mean", "low", "high"]].to_dataframe().reset_index()
    return table.assign(block=table["block"] + 1)


def summary_table(means: xr.Dataset, k: int) -> pd.DataFrame:
    """Tabulates the mean value of every variant, one line each."""
    networks = list(means["network"].values)
    chosen = means.sel(k=k)
    columns = {name: chosen["mean"].sel(network=name).values for name in networks}
    columns["random bases"] = chosen["null"].sel(network=networks[-1]).values
    columns["beyond chance"] = chosen["share"].sel(network=networks[-1]).values
    table = pd.DataFrame(columns, index=pd.Index(means["variant"].values, name="variant"))
    # Adding 0 takes the sign off a value that is rounded to zero.
    return table.round(2) + 0.0


def quotable(means: xr.Dataset, agreement: xr.Dataset, choices: pd.DataFrame, k: int) -> dict[str, float]:
    """Names the numbers that prose may quote."""
    found: dict[str, float] = {}
    for name in means["variant"].values:
        chosen = means.sel(variant=name, k=k)
        for network in means["network"].values:
            one = chosen.sel(network=network)
            found |= {f"{name}-{network}{end}": one[key].item() for end, key in _ENDS.items()}
        found[f"{name}-random-bases"] = one["null"].item()
        found[f"{name}-random-bases-error"] = one["null_error"].item()
        share = (one["share"].item(), one["share_low"].item(), one["share_high"].item())
        found |= {f"{name}-beyond-chance{end}": value for end, value in zip(("", "-low", "-high"), share, strict=True)}
        found[f"{name}-beyond-chance-error"] = (share[2] - share[1]) / (2 * 1.96)
        found[f"agreement-{name}"] = agreement["mean"].sel(variant=name, other="normalized_miscoupling").item()
    rows = list(dict.fromkeys(zip(choices["point"], choices["reading"], strict=True)))
    for row in choices.itertuples():
        key = f"choice-{rows.index((row.point, row.reading)) + 1}-{row.network}"
        found |= {key: row.coupling, f"{key}-low": row.low, f"{key}-high": row.high}
        found |= {f"{key}-null": row.null, f"{key}-null-error": row.null_error}
    return found


_ENDS = {"": "mean", "-low": "low", "-high": "high"}
