"""Values of every coupling variant without coupling, in networks and in surrogates of them.

Coupling is *relative* to random bases here, (null - value) / null: 0 is chance, 1 is perfect coupling. The decisive
test takes what `measure_decisive` made of one network or several, or of several models by name.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure

from companion.figures import parts, style, take
from companion.figures.labels import SYMBOLS
from companion.figures.take import VARIANT, K, of_models, of_networks
from companion.tables import effects, generalization
from companion.tables.arrays import cells, joined, with_ends
from companion.tables.statistics import width_curve
from coupling_lib.datasets.statistics import linear_fit
from coupling_lib.datasets.summaries import interval
from coupling_lib.measures.random_bases import null_spreads
from coupling_lib.metrics.nulls import gaussian_miscoupling

KINDS = {
    "measured": ("the model", {}),
    "permuted": ("coordinates permuted", {"marker": "s", "markersize": 3.8, "markerfacecolor": "none"}),
    "unpaired": ("partners exchanged", {"marker": "^", "markersize": 3.8, "markerfacecolor": "none"}),
}
"""The model and its surrogates, and how they are drawn; the surrogate `rotated` is a draw of the null, a check."""
SHOWN = {
    "measured": "its own",
    "conjugated": "conjugated",
    "permuted": "permuted",
    "outliers kept": "5 largest kept",
    "other prompt": "other prompt",
    "state directions": "states",
}
"""Labels of the vectors of the other block in the figure of both parts."""
REPORTED = ("normalized_miscoupling", "mismatch", "released_norm", "basis_vv")
"""Variants drawn against K: one for each of the paper, its project page, its code, and the bases alone."""
CURVES = ("normalized_miscoupling", "released_norm", "released_trace")
"""Variants whose null is drawn against width; the table under the figure holds all."""
_FIGURE_1A = {
    "digitised": ("the paper's figure 1a, digitised", "text", "x", 5, 1.0),
    "trained": ("trained, measured here", style.TRAINED, "o", 6, 1.6),
    "untrained": ("untrained, measured here", style.UNTRAINED, "o", 6, 1.6),
    "by chance": ("by chance, with the trained spectra", style.NULL, "_", 12, 1.6),
}
"""Label, role, marker, marker size and edge of each series drawn beside the value of no coupling."""


def take_curves(curves: xr.Dataset) -> xr.Dataset:
    """Select the null of every variant over width, rule for K and decay of the spectrum, as `null_curves` drew it."""
    return xr.broadcast(curves[["k", "closed_form", "simulated", "error"]])[0]


@of_networks
def take_surrogates(both: xr.Dataset, k: K = None) -> xr.Dataset:
    """Select each variant's value, its null, and its coupling relative to it, of networks and of their surrogates."""
    k = take.chosen_k(both, k)
    at = both.sel(k=k, kind=list(KINDS), drop=True)
    means = at[["value", "null", "null_error", "closed_form"]].mean("prompt")
    found = xr.broadcast(xr.merge([means, interval(at.relative).rename(mean="coupling")]))[0]
    return found.transpose("network", "variant", "kind").assign_attrs(k=k)


@of_networks
def take_across_k(both: xr.Dataset) -> xr.Dataset:
    """Select relative coupling against the number of singular vectors, with its interval over prompts."""
    return interval(both.relative.sel(kind="measured", variant=list(REPORTED), drop=True))


@of_models
def take_figure_1a(models: Mapping[str, xr.Dataset], points: pd.DataFrame | None = None) -> pd.DataFrame:
    """Select 1 - `released_trace` at K = 10 % of the width, or what may be that, of all models at hand."""
    points = generalization.figure_1a() if points is None else points
    rows = [(point.model, point.width, "digitised", point.coupling) for point in points.itertuples()]
    for model, both in models.items():
        tenth = both[["value", "null"]].sel(variant="released_trace", rule="0.1 d", pairs="different")
        width, means = int(both.attrs["width"]), 1 - tenth.mean("prompt")
        rows += [(model, width, name, means.value.sel(network=name).item()) for name in both.network.values]
        rows.append((model, width, "by chance", means.null.sel(network=take.main_network(both.network.values)).item()))
    table = pd.DataFrame(rows, columns=["model", "width", "network", "coupling"])
    flat = table.drop_duplicates("model").assign(network="flat", coupling=lambda one: width_curve(one.width))
    return pd.concat([table, flat], ignore_index=True)


@of_models
def take_decisive(models: Mapping[str, xr.Dataset], digitised: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Tabulate couplings beside the digitised ones: a row per model, number of vectors and choice of pairs."""
    digitised, rows = digitised or {}, []
    for model, both in models.items():
        means, width = both.mean("prompt"), int(both.attrs["width"])
        for rule, pairs in product(both.rule.values, ("different", "all")):
            at, tenth = means.sel(rule=rule, pairs=pairs), rule == "0.1 d"
            trained = at.sel(network=take.main_network(both.network.values))
            written = f"{trained.k.item()} (0.1 d)" if tenth else str(rule)
            row = {"model": model, "width": width, "K": written, "pairs": pairs}
            known = [name for name in (style.TRAINED, style.UNTRAINED) if name in both.network]
            for short in ("norm", "trace"):
                one = {"variant": f"released_{short}"}
                row |= {f"c_{short}_{n}": 1 - at.value.sel(network=n, **one).item() for n in known}
                row[f"c_{short}_null"] = 1 - trained.null.sel(one).item()
                row[f"c_{short}_null_error"] = trained.null_error.sel(one).item()
            flat = float(width_curve(width)) if tenth else np.nan
            rows.append(row | {"c_digitised": digitised.get(model, np.nan), "c_flat": flat})
    return pd.DataFrame(rows)


def take_missing(
    wanted: Sequence[str], measured: Mapping[str, xr.Dataset], digitised: Mapping[str, float]
) -> pd.DataFrame:
    """Return the models of the decisive test that have not been measured, and the commands that measure them."""
    table = pd.DataFrame({"model": [model for model in wanted if model not in measured]})
    command = "python workflow/decisive.py " + table.model
    return table.assign(c_digitised=table.model.map(digitised), measured="not measured here", command=command)


def take_summary(measured: xr.Dataset, k: K = None) -> pd.DataFrame:
    """Summarise relative coupling: the model with its interval over prompts, and the share that its surrogates keep."""
    surrogates = take_surrogates(measured, k)
    chosen = surrogates.sel(variant=list(REPORTED))
    own = chosen[["coupling", "low", "high"]].sel(kind="measured", drop=True).to_dataframe()
    return own.join(chosen.coupling.to_series().unstack("kind")[["permuted", "unpaired"]])


@of_networks
def take_parts(both: xr.Dataset, k: K = None) -> xr.Dataset:
    """Select the coupling of both parts with the vectors of each kind, over prompts, beside that of random bases."""
    k = take.chosen_k(both, k)
    found = interval(1 - both.normalised.sel(k=k, span="all pairs", kind=list(SHOWN), drop=True))
    chance = 1 - both.normalised_null.sel(k=k, drop=True).mean("prompt")
    return found.assign(random_bases=chance).transpose("network", "part", "kind").assign_attrs(k=k)


def parts_table(both: xr.Dataset) -> pd.DataFrame:
    """Tabulate coupling of both parts beside its value by chance, a row per network, number of vectors and part."""
    found = joined({k: take_parts(both, k) for k in both.k.values}, "k")
    table = found["mean"].to_dataframe("coupling")["coupling"].unstack("kind")[list(SHOWN)]
    chance = found.random_bases.to_dataframe().random_bases
    table.insert(1, "by chance", chance.reorder_levels(table.index.names).loc[table.index])
    return table.reorder_levels(["network", "k", "part"]).sort_index()


def stricter_table(both: xr.Dataset, k: int) -> pd.DataFrame:
    """Tabulate coupling beyond the larger of the two nulls, with its 95 % interval over prompts."""
    table = effects.tabulated(effects.of_stricter_nulls(both, k))
    return table[["question", "value", "low", "high", "error", "n"]]


def draw_curves(curves: xr.Dataset) -> Figure:
    """Draw the values of variants without coupling, against the width, for several decays of the spectrum."""
    rules, widths = curves.rule.values, curves.width.values
    figure, grid = parts.grid(len(rules), len(CURVES), 1.75 * len(rules) + 0.9, sharex=True, sharey="col")
    for (rule, variant), axes in zip(product(rules, CURVES), grid.flat, strict=True):
        for decay, ink in zip(curves.decay.values, parts.shades(curves.sizes["decay"]), strict=True):
            at = curves.sel(rule=rule, variant=variant, decay=decay)
            label = "flat spectrum" if decay == 0 else rf"$\sigma_i \sim i^{{-{decay:g}}}$"
            axes.plot(widths, at.closed_form, color=ink, linewidth=1.2, label=label)
            axes.errorbar(widths, at.simulated, at.error, color=ink, fmt="o", markersize=3.5)
        parts.plain_log(axes, widths, base=2)
    for rule, axes in zip(rules, grid[:, 0], strict=True):
        written = "$K = 0.1\\,d$" if rule == "0.1 d" else f"$K = {rule}$"
        axes.set_ylabel(f"{written}\nvalue without coupling")
    for variant, above, below in zip(CURVES, grid[0], grid[-1], strict=True):
        above.set_title(_title(variant), fontsize=9)
        below.set_xlabel("width $d$")
    parts.legend_under(figure, grid[0][:1])
    return figure


def draw_surrogates(surrogates: xr.Dataset) -> Figure:
    """Draw every variant relative to its null, for a model and its surrogates, on the scale of what is normalised."""
    variants = surrogates["variant"].values
    figure, row = parts.panels(
        surrogates.network.values, 0.245 * len(variants) + 1.25, named=True, sharex=True, sharey=True
    )
    # The unnormalised mis-coupling may lie beyond.
    normalised = surrogates[["coupling", "low", "high"]].drop_sel(variant="miscoupling").to_array()
    low, high = min(0.0, float(normalised.min())), max(0.0, float(normalised.max()))
    left, right, places = low - 0.08 * (high - low), high + 0.08 * (high - low), np.arange(len(variants))
    for axes, (network, ink, own) in zip(row, parts.networks(surrogates), strict=True):
        axes.axvline(0, **parts.null_style())
        axes.set_xlim(left, right)
        for offset, (kind, (label, properties)) in zip((0.0, -0.22, 0.22), KINDS.items(), strict=True):
            one, model = own.sel(kind=kind), kind == "measured"
            dot = {"label": f"{label} ({network})" if model else label} | properties
            colour = ink if model else style.colour(style.NULL)
            parts.dots(axes, places + offset, one.coupling, (one.low, one.high), colour, **dot)
        # Values that lie beyond the scale are written at its edge.
        for place, value in enumerate(own.coupling.sel(kind="measured").values):
            if not left <= value <= right:
                edge, side, text = (
                    (0.01, "left", f"← {value:.2f}") if value < left else (0.99, "right", f"{value:.2f} →")
                )
                where = {"xycoords": axes.get_yaxis_transform(), "ha": side, "va": "center"}
                axes.annotate(text, (edge, place), color=ink, fontsize=8, **where)
        axes.set_xlabel(f"relative coupling  $(K={surrogates.k})$")
        parts.rows_axis(axes, variants)
    parts.legend_under(figure, row, columns=4)
    return figure


def draw_parts(both: xr.Dataset) -> Figure:
    """Draw the coupling of both parts with the vectors of each kind, beside that of random bases."""
    rows = [f"{part}: {SHOWN[kind]}" for part, kind in product(both.part.values, both.kind.values)]
    figure, row = parts.panels(both.network.values, 0.2 * len(rows) + 1.2, named=True, sharex=True, sharey=True)
    for axes, (_, ink, own) in zip(row, parts.networks(both), strict=True):
        axes.axvline(float(own.random_bases.mean()), **parts.null_style("by chance"))
        for place, (part, kind) in enumerate(product(both.part.values, both.kind.values)):
            one = own.sel(part=part, kind=kind)
            properties = {} if kind == "measured" else {"marker": "s", "markersize": 3.8, "markerfacecolor": "none"}
            parts.dots(axes, [place], [one["mean"]], ([one.low], [one.high]), ink, **properties)
        axes.set_xlabel(f"coupling  $(K={both.k})$")
        parts.rows_axis(axes, rows)
    parts.legend_under(figure, row)
    return figure


def draw_across_k(couplings: xr.Dataset) -> Figure:
    """Draw relative coupling against the number of singular vectors, with 95 % intervals over prompts."""
    figure, row = parts.panels([_title(variant) for variant in REPORTED], 2.9, sharey=True, y="relative coupling")
    for variant, axes in zip(REPORTED, row, strict=True):
        axes.title.set_fontsize(7.8)
        parts.bands(axes, couplings.sel(variant=variant), "k", marker="o", markersize=3.5)
        axes.axhline(0, **parts.null_style("by chance"))
        axes.set_xlabel("$K$")
    parts.legend_under(figure, row)
    return figure


def draw_figure_1a(table: pd.DataFrame) -> Figure:
    """Draw the coupling of the paper's figure 1a against width, beside the value of no coupling at all."""
    figure, axes, right = parts.one_panel(3.4, beside=2.85)
    widths = np.unique(np.geomspace(table.width.min() * 0.85, table.width.max() * 1.15, 2000).astype(int))
    grey = style.colour(style.NULL)
    axes.plot(widths, width_curve(widths), color=grey, linewidth=1.2, label="curve of width")
    for name, (label, role, marker, size, edge) in _FIGURE_1A.items():
        one, properties = table[table.network == name], {"marker": marker, "markersize": size, "markeredgewidth": edge}
        parts.points(axes, one.width, one.coupling, style.colour(role), label=label, **properties)
    for model, both in table[table.network.isin(("trained", "untrained"))].groupby("model"):
        place = (both.width.iloc[0], both.coupling.mean())
        axes.annotate(model, place, xytext=(9, -9), textcoords="offset points", fontsize=8)
    parts.plain_log(axes, [width for width in 2 ** np.arange(5, 14) if widths[0] <= width <= widths[-1]])
    axes.set(xlabel="width $d$", ylabel=r"coupling $c = 1 - m_\mathrm{trace}$  $(K = 0.1\,d)$")
    parts.legend_beside(right, [axes])
    return figure


def _title(variant: str) -> str:
    return f"${SYMBOLS[variant]}$  {variant}" if variant in SYMBOLS else variant


def spectrum_decay(ds: xr.Dataset, k: int) -> float:
    r"""Return the exponent a with which the top K singular values decay, $\sigma_i \sim i^{-a}$."""
    logs = np.log(ds.singular_values.isel(rank=slice(k)).values).reshape(-1, k)
    return float(np.median([-linear_fit(np.log(np.arange(1, k + 1)), row).slope for row in logs]))


def numbers_of(
    curves: xr.Dataset, spectra: pd.DataFrame, both: xr.Dataset, tested: xr.Dataset, k: int
) -> dict[str, float]:
    """Collect the numbers that the book quotes: of simulated nulls, by width and by spectrum, and of one model."""
    trained, blocks = both.sel(network="trained"), both.sizes["block_1"]
    found = {"prompts": both.sizes["prompt"], "k": k, "decisive-prompts": tested.sizes["prompt"]}
    found["spread"] = null_spreads(k, blocks)["all pairs"]
    chance = trained.sel(k=k, variant=VARIANT).mean("prompt")
    found |= {"coupling-null": 1 - chance.null, "coupling-null-error": chance.null_error}
    found |= {"coupling-null-least": spectra.coupling.min(), "coupling-null-largest": spectra.coupling.max()}
    found |= {"coupling-null-gaussian": 1 - gaussian_miscoupling(k), "coupling-null-root": 1 - (1 - 1 / k) ** 0.5}
    names = {kind: f"{kind}-{{1}}-{{0}}" for kind in ("permuted", "unpaired")}
    names |= with_ends("relative-{1}-{0}", "coupling")
    found |= cells(take_summary(both, k), names)
    errors = abs(curves.simulated / curves.closed_form - 1).max(["rule", "width", "decay"]).to_series().dropna()
    found |= {f"closed-form-error-{variant}": error for variant, error in errors.items()}
    table = take_decisive(tested)
    tenth = table[table.K.str.endswith("(0.1 d)") & (table.pairs == "different")].iloc[0]
    for short, part in product(("trace", "norm"), ("trained", "untrained", "null", "null_error")):
        found[f"decisive-{short}-{part.replace('_', '-')}"] = tenth[f"c_{short}_{part}"]
    relative = 1 - both.normalised.sel(part="traceless", span="all pairs") / both.normalised_null.sel(part="traceless")
    for kind, name in (("measured", "rest"), ("permuted", "rest-permuted")):
        rest = interval(relative.sel(kind=kind, k=k, drop=True)).to_dataframe()[["mean", "low", "high"]]
        found |= cells(rest, with_ends(f"{name}-{{}}", "mean"))
    of_kinds = take_parts(both, k).to_dataframe(dim_order=["network", "part", "kind"])
    found |= cells(of_kinds, {"random_bases": "{1}-random-{0}"} | with_ends("{1}-{2}-{0}"))
    share = both.isotropic_share.mean(["prompt", "block_1"])
    found |= {f"isotropic-share-{name}": share.sel(network=name) for name in both.network.values}
    found |= {"decisive-flat": tenth.c_flat, "decay": spectrum_decay(trained, k)}
    others = effects.of_rest(trained, k) | effects.of_decisive(tested) | effects.of_stricter_nulls(both, k)
    found |= effects.numbers(effects.of_nulls(trained, k, REPORTED) | others)
    return {name: float(value) for name, value in found.items()}
