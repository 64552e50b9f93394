"""The grid of vision transformers: weight decay by stochastic depth, models beside their group's line or reference."""

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from companion.figures import parts, scatter, style
from companion.figures.labels import coupling_label
from companion.tables import effects, photographs
from companion.tables import vit_grid as table_of
from companion.tables.vit_grid import Reading
from coupling_lib.datasets.summaries import interval

CLASS = Reading()
"""Default reading of the grid: the class token, in the paper's variant."""
_NAMES = {"class": "class token", "patch": "last patch"}
_ACCURACY = "test accuracy (%)"
_REFERENCES = {"untrained": ("untrained", style.UNTRAINED, (1, 1.5)), "random_bases": ("by chance", style.NULL, (4, 3))}


def take_accuracy(
    grid: pd.DataFrame, reading: Reading = CLASS, stated: Mapping[float, float] | None = None,
    rates: Collection[float] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Select models of one seed, at all or some rates of stochastic depth, each with the line fitted to its rate."""
    models = table_of.first_seed(table_of.coupling_table(grid, reading))
    chosen = models if rates is None else models[models.drop_path.isin(rates)]
    fits = table_of.fits_by_rate(grid, reading, stated).query("drop_path != 'all'").astype({"drop_path": float})
    fits = fits.rename(columns={"low": "r_squared_low", "high": "r_squared_high"})
    return _labelled(chosen.merge(fits, on="drop_path", how="left"), reading)


def take_rates(grid: pd.DataFrame, reading: Reading = CLASS) -> pd.DataFrame:
    """Select the models of several seeds at both tokens, each with the mean over seeds at its rate."""
    of_tokens = {token: table_of.coupling_table(grid, reading._replace(token=token)) for token in table_of.TOKENS}
    models = pd.concat([table.assign(token=token) for token, table in of_tokens.items()])
    models = models.loc[models.weight_decay == table_of.SEEDED_DECAY, ["token", "drop_path", "seed", "coupling"]]
    means = table_of.seeds_table(grid, reading).rename(columns={"coupling": "mean"})
    return _labelled(models.merge(means, on=["token", "drop_path"]), reading)


def take_decays(grid: pd.DataFrame, reading: Reading = CLASS) -> pd.DataFrame:
    """Select the models of one seed."""
    return _labelled(table_of.first_seed(table_of.coupling_table(grid, reading)), reading)


def take_photographs(cells: pd.DataFrame) -> pd.DataFrame:
    """Select one model per cell, with its raw values and those centred within its rate."""
    table = cells[["weight_decay", "drop_path", "test_accuracy"]].assign(coupling=1 - cells[CLASS.column])
    values = table[["coupling", "test_accuracy"]]
    within = effects.group_centred(table, "drop_path", list(values)) + values.mean()
    panels = {"All models": values, "Each rate's mean taken out": within}
    found = pd.concat(
        [table.drop(columns=values.columns).join(part).assign(panel=name) for name, part in panels.items()]
    )
    return _labelled(found.reset_index(drop=True), CLASS)


def take_pairs(pairs: pd.DataFrame) -> pd.DataFrame:
    """Select the effect of stochastic depth within each pair on coupling and accuracy (points), mean and interval."""
    gains = photographs.gains(pairs).assign(accuracy=lambda found: 100 * found["accuracy"])
    ends = interval(xr.Dataset(gains).to_array("quantity"), "seed").to_dataframe()
    return _labelled(
        gains.reset_index().melt("seed", var_name="quantity", value_name="change").join(ends, "quantity"), CLASS
    )


def draw_accuracy(models: pd.DataFrame) -> Figure:
    """Draw test accuracy against coupling, a line per rate of stochastic depth (figure 6a)."""
    figure, axes, right = parts.one_panel(3.8)
    for position, (rate, part) in enumerate(models.groupby("drop_path")):
        ink, fit, label = style.dataset_colour("", position), part.iloc[0], f"rate {rate:g}"
        if np.isfinite(fit.slope):
            label += f":  {_fit_text(fit)}" + (f",  paper {fit.paper:.2f}" if np.isfinite(fit.paper) else "")
        _draw_models(axes, part, ink, style.marker(position), label)
    axes.set(xlabel=models.attrs["of_token"], ylabel=_ACCURACY)
    axes.grid()
    parts.legend_beside(right, [axes])
    return figure


def draw_accuracy_rates(models: pd.DataFrame) -> Figure:
    """Draw test accuracy against coupling, a panel per rate of stochastic depth (figure 11)."""
    groups = list(models.groupby("drop_path"))
    figure, panels = _rows_of_four(
        [f"rate {rate:g}" for rate, _ in groups], models.attrs["of_token"], _ACCURACY, sharex=True
    )
    for axes, (_, part) in zip(panels, groups, strict=True):
        _draw_models(axes, part, style.colour(style.TRAINED), "o", "one model per weight decay")
        if np.isfinite(part.iloc[0].slope):
            where = {"transform": axes.transAxes, "ha": "center", "va": "bottom", "fontsize": 8}
            axes.text(0.5, 1.02, _fit_text(part.iloc[0]), **where)
            axes.set_title(axes.get_title(), pad=16)
    panels[0].xaxis.set_major_locator(MaxNLocator(2))
    parts.legend_under(figure, panels)
    return figure


def draw_photographs(models: pd.DataFrame) -> Figure:
    """Draw test accuracy against coupling, raw and centred within rates, the darker the higher the rate."""
    groups = list(models.groupby("panel", sort=False))
    figure, row = parts.panels([name for name, _ in groups], 3.5, sharey=True, y=_ACCURACY)
    for axes, (_, part) in zip(row, groups, strict=True):
        rates = sorted(part["drop_path"].unique())
        for rate, ink in zip(rates, parts.shades(len(rates)), strict=True):
            own = part[part["drop_path"] == rate]
            parts.points(axes, own["coupling"], 100 * own["test_accuracy"], ink, label=f"{rate:g}")
        scatter.line(axes, part["coupling"], 100 * part["test_accuracy"], linewidth=1.2, zorder=2)
        axes.set_xlabel(models.attrs["of_token"])
    parts.legend_under(figure, row[:1], title="rate of stochastic depth")
    return figure


def draw_pairs(gains: pd.DataFrame) -> Figure:
    """Draw the change of coupling and of accuracy within pairs, with the 95 % interval of its mean."""
    figure, (left, right) = parts.panels(["", ""], 3.1)
    shown = {"whole": (left, 0, style.TRAINED), "traceless part": (left, 1, style.SHARED)}
    shown["accuracy"] = right, 0, style.TRAINED
    for quantity, (axes, place, role) in shown.items():
        own = gains[gains["quantity"] == quantity]
        summary = xr.Dataset(own[["mean", "low", "high"]].iloc[0].to_dict())
        parts.strip(axes, place, own["change"], style.colour(role), summary)
        axes.axhline(0, color=style.colour("text"), linewidth=0.8)
    left.set_xticks([0, 1], list(photographs.PARTS))
    left.set(xlim=(-0.5, 1.6), ylabel=f"change of {gains.attrs['label']}")
    right.set(xticks=[], xlim=(-0.5, 0.6), ylabel="change of test accuracy (points)")
    return figure


def draw_rates(models: pd.DataFrame) -> Figure:
    """Draw coupling against the rate of stochastic depth at one weight decay (figure 6b)."""
    groups = list(models.groupby("token", sort=False))
    figure, row = parts.panels([_NAMES[token] for token, _ in groups], 3.4, sharey=True, y=models.attrs["label"])
    ink = style.colour(style.TRAINED)
    for axes, (_, part) in zip(row, groups, strict=True):
        mean = part.drop_duplicates("drop_path")
        axes.fill_between(mean.drop_path, mean.image_low, mean.image_high, color=ink, alpha=0.22, linewidth=0)
        axes.plot(mean.drop_path, mean["mean"], color=ink, marker="o", markersize=4.5, label="mean over seeds")
        axes.plot(part.drop_path, part.coupling, "o", color=ink, markersize=2.5, alpha=0.6, label="one seed")
        _draw_references(axes, mean)
        axes.set(xlabel="rate of stochastic depth", ylim=(0, None))
    parts.legend_under(figure, row)
    return figure


def draw_decays(models: pd.DataFrame) -> Figure:
    """Draw coupling against the rate of stochastic depth, a panel per weight decay (figure 10)."""
    groups = list(models.groupby("weight_decay"))
    titles = [f"weight decay {decay:g}" for decay, _ in groups]
    figure, panels = _rows_of_four(titles, "rate of stochastic depth", models.attrs["of_token"])
    ink = style.colour(style.TRAINED)
    for axes, (_, part) in zip(panels, groups, strict=True):
        part = part.sort_values("drop_path")
        axes.fill_between(part.drop_path, part.low, part.high, color=ink, alpha=0.22, linewidth=0)
        axes.plot(part.drop_path, part.coupling, color=ink, marker="o", markersize=3.5, label="trained")
        _draw_references(axes, part)
    panels[0].set_ylim(bottom=0)
    parts.legend_under(figure, panels)
    return figure


def _labelled(models: pd.DataFrame, reading: Reading) -> pd.DataFrame:
    label = coupling_label(reading.variant, reading.k)
    models.attrs = {"label": label, "of_token": f"{label}, {_NAMES[reading.token]}"}
    return models


def _fit_text(fit: pd.Series) -> str:
    return f"$R^2={fit.r_squared:.2f}$ [{fit.r_squared_low:.2f}, {fit.r_squared_high:.2f}]"


def _draw_models(axes: Axes, part: pd.DataFrame, ink: str, marker: str, label: str) -> None:
    """Draw one dot per model with its interval over images, and the line fitted to them."""
    accuracy, fit = 100 * part.test_accuracy, part.iloc[0]
    if np.isfinite(fit.slope):
        ends = np.array([part.coupling.min(), part.coupling.max()])
        axes.plot(ends, 100 * (fit.intercept + fit.slope * ends), color=ink, linewidth=1.2, alpha=0.8)
    axes.hlines(accuracy, part.low, part.high, color=ink, linewidth=0.7, alpha=0.45)
    axes.plot(part.coupling, accuracy, marker, color=ink, markersize=5, markeredgewidth=0, alpha=0.85, label=label)


def _draw_references(axes: Axes, part: pd.DataFrame) -> None:
    """Draw the untrained models and random bases along the rates."""
    for column, (label, role, dashes) in _REFERENCES.items():
        axes.plot(part.drop_path, part[column], color=style.colour(role), linewidth=1.3, dashes=dashes, label=label)


def _rows_of_four(titles: list[str], x: str, y: str, **grid: object) -> tuple[Figure, list[Axes]]:
    """Create rows of four small panels on one scale, with shared axis labels."""
    rows = -(-len(titles) // 4)
    figure = Figure(figsize=(style.WIDTH, 1.85 * rows + 0.7), layout="constrained")
    # What is named here stands above the legend, which belongs to the figure.
    inner = figure.subfigures()
    panels = parts.in_rows(inner, len(titles), sharey=True, **grid)
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title)
        axes.grid(axis="y")
    inner.supxlabel(x, fontsize=9)
    inner.suptitle(y, fontsize=9, x=0.005, ha="left")
    return figure, panels
