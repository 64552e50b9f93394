"""Figures of what coupling is by chance: curves, surrogates and points are those of their arrays."""

import numpy as np
import pandas as pd
import pytest
import tiny
from matplotlib.colors import to_hex
from numpy.testing import assert_allclose
from pytest import approx

import coupling_lib as cl
from companion.figures import nulls, style
from companion.figures.show import frame
from companion.tables.arrays import side_by_side
from companion.tables.statistics import width_curve
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.measures import nulls as measures
from coupling_lib.metrics.variants import VARIANTS
from tests.companion.figures.drawn import by_label, titles, words

POINTS = pd.DataFrame({"model": ["a", "b", "c"], "width": [64, 1024, 4096], "coupling": [0.6, 0.9, 0.95]})
CASES = {"draw_figure_1a of digitised points alone": (nulls.draw_figure_1a, lambda n: nulls.take_figure_1a({}, POINTS))}
TEXTS = ["It was the best of times", "What is the capital of France?", "it was the worst of times, it was"]
K, NETWORKS = 4, ["untrained", "trained"]


@pytest.fixture(scope="module")
def curves():
    return measures.null_curves(widths=(32, 64, 128), ks=(4,), decays=(0.0, 1.0), n_samples=2)


@pytest.fixture(scope="module")
def networks():
    return {name: cl.wrap_model(tiny.llama(seed), tiny.tokenizer()) for seed, name in enumerate(NETWORKS)}


@pytest.fixture(scope="module")
def both(networks):
    return side_by_side(**{name: measures.measure_nulls(one, TEXTS, ks=(K, 8)) for name, one in networks.items()})


@pytest.fixture(scope="module")
def decisive(networks):
    found = {name: measures.measure_decisive(one, TEXTS[:2], ks=(K,)) for name, one in networks.items()}
    return {"tiny": side_by_side(**found)}


def panels_of(figure):
    return [axes for axes in figure.axes if axes.get_title()]


def test_curves_draw_closed_forms_and_simulation(curves):
    taken = nulls.take_curves(curves)
    figure = nulls.draw_curves(taken)
    grid = np.reshape(figure.axes, (2, len(nulls.CURVES)))
    for rule, row in zip(curves["rule"].values, grid, strict=True):
        for variant, axes in zip(nulls.CURVES, row, strict=True):
            drawn = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 3]
            both = curves[["closed_form", "simulated"]].sel(rule=rule, variant=variant).to_dataarray()
            for line in both.transpose(..., "width").values.reshape(-1, 3):
                assert any(np.allclose(one, line) for one in drawn), (rule, variant)
    assert words(grid[-1, 0].get_xticklabels()) == ["32", "64", "128"]
    assert [title.split()[-1] for title in titles(grid[0])] == list(nulls.CURVES)
    assert words(figure.legends[0].get_texts()) == ["flat spectrum", r"$\sigma_i \sim i^{-1}$"]
    table = frame(taken).set_index(["rule", "width", "decay", "variant"])
    assert len(table) == 2 * 3 * 2 * len(VARIANTS) and set(table.index.unique("variant")) == set(VARIANTS)
    row = table.loc["0.1 d", 64, 1.0, "released_norm"]
    one = curves.sel(rule="0.1 d", width=64, decay=1.0, variant="released_norm")
    assert (row.closed_form, row.simulated, row.k) == (one.closed_form.item(), one.simulated.item(), 6)


def test_surrogates_are_drawn_or_written_at_the_edge(both):
    taken, at = nulls.take_surrogates(both, K), both.sel(k=K, variant=list(VARIANTS))
    table = frame(taken)
    assert len(table) == 2 * len(nulls.KINDS) * len(VARIANTS)
    panels = panels_of(nulls.draw_surrogates(taken))
    assert titles(panels) == ["Untrained", "Trained"] and words(panels[0].get_yticklabels()) == list(VARIANTS)
    for network, axes in zip(both.network.values, panels, strict=True):
        own = table[table.network == network].set_index(["kind", "variant"])
        for kind, marker in (("measured", "o"), ("permuted", "s"), ("unpaired", "^")):
            here = at.sel(network=network, kind=kind).transpose("prompt", ...)
            mean, (_, low, high) = here.mean("prompt"), mean_interval(here["relative"].values)
            found = own.loc[kind].loc[list(VARIANTS), ["value", "null", "coupling", "low", "high"]]
            assert_allclose(found.T, [mean["value"], mean["null"], mean["relative"], low, high])
            (line,) = [line for line in axes.lines if line.get_marker() == marker and len(line.get_xdata()) > 1]
            assert_allclose(line.get_xdata(), found.coupling)
            assert to_hex(line.get_color()) == style.colour(network if kind == "measured" else style.NULL)
        low, high = axes.get_xlim()
        inside = own.drop("miscoupling", level="variant")
        assert low < inside[["coupling", "low"]].min().min() and high > inside[["coupling", "high"]].max().max()
    far = both.copy(deep=True)
    far["relative"].loc[{"network": "trained", "variant": "miscoupling", "kind": "measured", "k": K}] = -7.0
    _, trained = panels_of(nulls.draw_surrogates(nulls.take_surrogates(far, K)))
    assert "← -7.00" in words(trained.texts) and trained.get_xlim()[0] > -7


def test_both_parts_are_drawn_beside_random_bases(both):
    couplings, shown = nulls.take_parts(both, K), list(nulls.SHOWN)
    panels = panels_of(nulls.draw_parts(couplings))
    assert len(panels[0].get_yticklabels()) == 2 * len(shown)
    for network, axes in zip(both.network.values, panels, strict=True):
        own = 1 - both.normalised.sel(network=network, k=K, span="all pairs", kind=shown).mean("prompt")
        drawn = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in ("o", "s")]
        assert_allclose(drawn, own.transpose("part", "kind").values.ravel())
        chance = 1 - both.normalised_null.sel(network=network, k=K).mean()
        assert by_label(axes)["by chance"].get_xdata()[0] == approx(float(chance))
    table, own = nulls.parts_table(both), couplings.sel(network="trained", part="traceless")
    assert table.columns.tolist() == ["measured", "by chance", *shown[1:]]
    wanted = (own["mean"].sel(kind="conjugated").item(), own.random_bases.item())
    assert tuple(table.loc[("trained", K, "traceless"), ["conjugated", "by chance"]]) == approx(wanted)


def test_relative_coupling_is_drawn_against_k(both):
    couplings = nulls.take_across_k(both)
    assert couplings["mean"].size == 2 * len(nulls.REPORTED) * 2
    panels = [axes for axes in nulls.draw_across_k(couplings).axes if axes.lines]
    for variant, axes in zip(nulls.REPORTED, panels, strict=True):
        lines = by_label(axes)
        for network in both.network.values:
            wanted = both["relative"].sel(network=network, kind="measured", variant=variant).mean("prompt")
            assert_allclose(couplings["mean"].sel(network=network, variant=variant), wanted)
            assert_allclose(lines[network].get_data(), [both.k, wanted])
            assert to_hex(lines[network].get_color()) == style.colour(network)
        assert set(lines["by chance"].get_ydata()) == {0}
    assert panels[0].get_ylabel() == "relative coupling"


def test_figure_1a_stands_beside_curve_and_measured_values(decisive):
    table = nulls.take_figure_1a(decisive, POINTS)
    axes = nulls.draw_figure_1a(table).axes[0]
    lines = by_label(axes)
    assert_allclose(lines["the paper's figure 1a, digitised"].get_data(), POINTS[["width", "coupling"]].T)
    (flat,) = [line for label, line in lines.items() if label.startswith("curve of width")]
    assert_allclose(flat.get_ydata(), width_curve(flat.get_xdata()))
    assert to_hex(flat.get_color()) == style.colour(style.NULL)
    means = 1 - decisive["tiny"].sel(variant="released_trace", rule="0.1 d", pairs="different").mean("prompt")
    wanted = {name: ("value", name, f"{name}, measured here") for name in ("untrained", "trained")}
    wanted["by chance"] = ("null", "trained", "by chance, with the trained spectra")
    for name, (quantity, network, label) in wanted.items():
        value = means[quantity].sel(network=network).item()
        assert table.loc[table.network == name, "coupling"].tolist() == approx([value])
        assert lines[label].get_data() == ([32], approx([value]))
    assert words(axes.texts) == ["tiny"]


def test_decisive_table_has_choices_beside_digitised_value(decisive):
    table = nulls.take_decisive(decisive, {"tiny": 0.7})
    assert table.K.tolist() == ["4", "4", "3 (0.1 d)", "3 (0.1 d)"] and table.pairs.tolist() == ["different", "all"] * 2
    assert set(table.c_digitised) == {0.7} and set(table.width) == {32}
    ds = decisive["tiny"].sel(network="untrained", variant="released_norm", pairs="all").isel(rule=0)
    assert table.c_norm_untrained[1] == approx(1 - float(ds["value"].mean()))
    assert table.c_flat.tolist() == approx([np.nan, np.nan, *[float(width_curve(32))] * 2], nan_ok=True)
    missing = nulls.take_missing(["tiny", "gpt2"], decisive, {"gpt2": 0.89})
    assert missing.values.tolist() == [["gpt2", 0.89, "not measured here", "python workflow/decisive.py gpt2"]]


def test_quoted_numbers_match_the_tables(curves, both, decisive):
    surrogates, summary = nulls.take_surrogates(both, K), nulls.take_summary(both, K)
    assert summary.index.tolist() == [(name, variant) for name in both.network.values for variant in nulls.REPORTED]
    row = frame(surrogates).set_index(["network", "kind", "variant"]).loc["trained", "permuted", "basis_vv"]
    assert summary.loc[("trained", "basis_vv"), "permuted"] == row.coupling
    quoted = nulls.numbers_of(curves, pd.DataFrame({"coupling": [0.05, 0.06]}), both, decisive["tiny"], K)
    trained = both.sel(network="trained")
    at = trained.sel(part="traceless", k=K)
    normalised = at.normalised.sel(span="all pairs")
    rest = 1 - normalised / at.normalised_null
    null = trained.null.sel(k=K, variant="normalized_miscoupling")
    wanted = {"coupling-null-least": 0.05, "coupling-null-largest": 0.06, "coupling-null": 1 - null.mean()}
    wanted |= {"decisive-trace-null": nulls.take_decisive(decisive).c_trace_null[2]}
    for name, kind in (("rest", "measured"), ("rest-permuted", "permuted")):
        wanted[f"{name}-trained"] = rest.sel(kind=kind).mean()
        assert quoted[f"{name}-trained-low"] < quoted[f"{name}-trained"] < quoted[f"{name}-trained-high"]
    wanted["traceless-random-trained"] = 1 - at.normalised_null.mean()
    wanted["traceless-other-prompt-trained"] = 1 - normalised.sel(kind="other prompt").mean()
    wanted["isotropic-share-untrained"] = both.isotropic_share.sel(network="untrained").mean()
    for variant in ("mismatch", "released_trace"):
        errors = abs(curves.simulated / curves.closed_form - 1).sel(variant=variant)
        wanted[f"closed-form-error-{variant}"] = errors.max()
    values = trained.singular_values.values[..., :K].reshape(-1, K)
    slopes = np.polyfit(np.log(np.arange(1, K + 1)), np.log(values).T, 1)[0]
    wanted["decay"] = np.median(-slopes)
    assert {name: quoted[name] for name in wanted} == approx({name: float(value) for name, value in wanted.items()})
    assert quoted["decay"] == nulls.spectrum_decay(trained, K)
