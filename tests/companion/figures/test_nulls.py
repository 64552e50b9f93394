"""Figures of what coupling is by chance: curves, surrogates and points are those of their arrays."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import tiny
from matplotlib.colors import to_hex

import coupling_lib as cl
from companion.figures import nulls, style
from companion.figures.show import frame
from companion.tables.arrays import side_by_side
from companion.tables.statistics import width_curve
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.measures import nulls as measures
from coupling_lib.metrics.variants import VARIANTS

POINTS = pd.DataFrame({"model": ["a", "b", "c"], "width": [64, 1024, 4096], "coupling": [0.6, 0.9, 0.95]})


CASES = {"draw_figure_1a of digitised points alone": (nulls.draw_figure_1a, lambda n: nulls.take_figure_1a({}, POINTS))}


TEXTS = ["It was the best of times", "What is the capital of France?", "it was the worst of times, it was"]
K = 4


@pytest.fixture(scope="module")
def curves():
    return measures.null_curves(widths=(32, 64, 128), ks=(4,), decays=(0.0, 1.0), n_samples=2)


@pytest.fixture(scope="module")
def networks():
    return {
        name: cl.wrap_model(tiny.llama(seed), tiny.tokenizer()) for seed, name in enumerate(("untrained", "trained"))
    }


@pytest.fixture(scope="module")
def both(networks):
    return side_by_side(**{name: measures.measure_nulls(one, TEXTS, ks=(K, 8)) for name, one in networks.items()})


@pytest.fixture(scope="module")
def decisive(networks):
    found = {name: measures.measure_decisive(one, TEXTS[:2], ks=(K,)) for name, one in networks.items()}
    return {"tiny": side_by_side(**found)}


def test_curves_draw_closed_forms_and_simulation(curves):
    grid = np.array(nulls.draw_curves(nulls.take_curves(curves)).axes).reshape(len(curves.rule), len(nulls.CURVES))
    for rule, row in zip(curves["rule"].values, grid, strict=True):
        for variant, axes in zip(nulls.CURVES, row, strict=True):
            chosen = curves.sel(rule=rule, variant=variant)
            drawn = [line.get_ydata() for line in axes.lines]
            for decay in curves["decay"].values:
                for name in ("closed_form", "simulated"):
                    wanted = chosen[name].sel(decay=decay).values
                    assert any(len(line) == 3 and np.allclose(line, wanted) for line in drawn), (rule, variant, name)
    assert [label.get_text() for label in grid[-1, 0].get_xticklabels()] == ["32", "64", "128"]
    assert [axes.get_title().split()[-1] for axes in grid[0]] == list(nulls.CURVES)
    (legend,) = grid[0, 0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["flat spectrum", r"$\sigma_i \sim i^{-1}$"]
    table = frame(nulls.take_curves(curves))
    assert len(table) == 2 * 3 * 2 * len(VARIANTS) and set(table.variant) == set(VARIANTS)
    place = {"rule": "0.1 d", "width": 64, "decay": 1.0, "variant": "released_norm"}
    row = table[(table[list(place)] == pd.Series(place)).all(axis=1)].iloc[0]
    assert (row.closed_form, row.simulated) == tuple(float(curves[n].sel(place)) for n in ("closed_form", "simulated"))
    assert row.k == 6


def test_surrogates_are_means_relative_to_random_bases(both):
    table = frame(nulls.take_surrogates(both, K))
    assert len(table) == 2 * len(nulls.KINDS) * len(VARIANTS)
    row = table[(table.network == "trained") & (table.kind == "unpaired") & (table.variant == "mismatch")].iloc[0]
    values = both.sel(network="trained", k=K, variant="mismatch")
    relative = values["relative"].sel(kind="unpaired").values
    interval = mean_interval(relative)
    assert row.value == pytest.approx(float(values["value"].sel(kind="unpaired").mean()))
    assert row.null == pytest.approx(float(values["null"].mean()))
    assert (row.coupling, row.low, row.high) == pytest.approx(
        (relative.mean(), float(interval.low), float(interval.high))
    )


def test_surrogates_are_drawn_or_written_at_the_edge(both):
    table = frame(nulls.take_surrogates(both, K))
    panels = [axes for axes in nulls.draw_surrogates(nulls.take_surrogates(both, K)).axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["Untrained", "Trained"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == list(VARIANTS)
    for network, axes in zip(both.network.values, panels, strict=True):
        own = table[table.network == network]
        for kind, marker in (("measured", "o"), ("permuted", "s"), ("unpaired", "^")):
            (line,) = [line for line in axes.lines if line.get_marker() == marker and len(line.get_xdata()) > 1]
            np.testing.assert_allclose(
                line.get_xdata(), own[own.kind == kind].set_index("variant").coupling[list(VARIANTS)]
            )
            assert to_hex(line.get_color()) == style.colour(network if kind == "measured" else style.NULL)
        low, high = axes.get_xlim()
        inside = own[own.variant != "miscoupling"]
        assert low < inside[["coupling", "low"]].min().min() and high > inside[["coupling", "high"]].max().max()
    far = both.copy(deep=True)
    far["relative"].loc[{"network": "trained", "variant": "miscoupling", "kind": "measured", "k": K}] = -7.0
    panels = [axes for axes in nulls.draw_surrogates(nulls.take_surrogates(far, K)).axes if axes.get_title()]
    assert "← -7.00" in [text.get_text() for text in panels[1].texts]
    assert panels[1].get_xlim()[0] > -7


def test_both_parts_are_drawn_beside_random_bases(both):
    couplings = nulls.take_parts(both, K)
    panels = [axes for axes in nulls.draw_parts(couplings).axes if axes.get_title()]
    assert len(panels[0].get_yticklabels()) == 2 * len(nulls.SHOWN)
    for network, axes in zip(both.network.values, panels, strict=True):
        own = 1 - both.normalised.sel(network=network, k=K, span="all pairs", kind=list(nulls.SHOWN)).mean("prompt")
        drawn = [line.get_xdata()[0] for line in axes.lines if line.get_marker() in ("o", "s")]
        np.testing.assert_allclose(drawn, own.transpose("part", "kind").values.ravel())
        chance = 1 - both.normalised_null.sel(network=network, k=K).mean()
        (line,) = [line for line in axes.lines if line.get_label() == "by chance"]
        assert line.get_xdata()[0] == pytest.approx(float(chance))
    table = nulls.parts_table(both)
    assert table.columns.tolist() == ["measured", "by chance", *list(nulls.SHOWN)[1:]]
    row = table.loc["trained", K, "traceless"]
    assert row["conjugated"] == pytest.approx(
        float(couplings["mean"].sel(network="trained", part="traceless", kind="conjugated"))
    )
    assert row["by chance"] == pytest.approx(float(couplings.random_bases.sel(network="trained", part="traceless")))


def test_relative_coupling_is_drawn_against_k(both):
    couplings = nulls.take_across_k(both)
    assert couplings["mean"].size == 2 * len(nulls.REPORTED) * 2
    panels = [axes for axes in nulls.draw_across_k(couplings).axes if axes.lines]
    for variant, axes in zip(nulls.REPORTED, panels, strict=True):
        for network in both.network.values:
            found = couplings["mean"].sel(network=network, variant=variant)
            wanted = both["relative"].sel(network=network, kind="measured", variant=variant)
            np.testing.assert_allclose(found, wanted.mean("prompt"))
            (line,) = [line for line in axes.lines if line.get_label() == network]
            np.testing.assert_allclose(line.get_data(), [found.k, found])
            assert to_hex(line.get_color()) == style.colour(network)
        (chance,) = [line for line in axes.lines if line.get_label() == "by chance"]
        assert set(chance.get_ydata()) == {0}
    assert panels[0].get_ylabel() == "relative coupling"


def test_figure_1a_stands_beside_curve_and_measured_values(decisive):
    table = nulls.take_figure_1a(decisive, POINTS)
    axes = nulls.draw_figure_1a(table).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(lines["the paper's figure 1a, digitised"].get_data(), POINTS[["width", "coupling"]].T)
    (flat,) = [line for label, line in lines.items() if label.startswith("curve of width")]
    np.testing.assert_allclose(flat.get_ydata(), width_curve(flat.get_xdata()))
    assert to_hex(flat.get_color()) == style.colour(style.NULL)
    place = {"variant": "released_trace", "rule": "0.1 d", "pairs": "different"}
    means = 1 - decisive["tiny"][["value", "null"]].sel(place).mean("prompt")
    wanted = {name: float(means["value"].sel(network=name)) for name in ("untrained", "trained")}
    wanted["by chance"] = float(means["null"].sel(network="trained"))
    for name, value in wanted.items():
        assert table.loc[table.network == name, "coupling"].tolist() == pytest.approx([value])
        label = "by chance, with the trained spectra" if name == "by chance" else f"{name}, measured here"
        assert lines[label].get_data() == ([32], pytest.approx([value]))
    assert [text.get_text() for text in axes.texts] == ["tiny"]


def test_decisive_table_has_choices_beside_digitised_value(decisive):
    table = nulls.take_decisive(decisive, {"tiny": 0.7})
    assert table.K.tolist() == ["4", "4", "3 (0.1 d)", "3 (0.1 d)"] and table.pairs.tolist() == ["different", "all"] * 2
    assert set(table.c_digitised) == {0.7} and set(table.width) == {32}
    ds = decisive["tiny"].sel(network="untrained")
    value = ds["value"].sel(variant="released_norm", rule=ds["rule"].values[0], pairs="all").mean()
    assert table.c_norm_untrained[1] == pytest.approx(1 - float(value))
    assert table.c_flat.isna().tolist() == [True, True, False, False]
    assert table.c_flat[2] == pytest.approx(float(width_curve(32)))
    missing = nulls.take_missing(["tiny", "gpt2"], decisive, {"gpt2": 0.89})
    assert missing.values.tolist() == [["gpt2", 0.89, "not measured here", "python workflow/decisive.py gpt2"]]


def test_quoted_numbers_match_the_tables(curves, both, decisive):
    table, summary = frame(nulls.take_surrogates(both, K)), nulls.take_summary(both, K)
    assert summary.index.tolist() == [(name, variant) for name in both.network.values for variant in nulls.REPORTED]
    row = table[(table.network == "trained") & (table.kind == "permuted") & (table.variant == "basis_vv")].iloc[0]
    assert summary.loc[("trained", "basis_vv"), "permuted"] == row.coupling
    tenth = nulls.take_decisive(decisive)
    spectra = pd.DataFrame({"coupling": [0.05, 0.06]})
    quoted = nulls.numbers_of(curves, spectra, both, decisive["tiny"], K)
    assert (quoted["coupling-null-least"], quoted["coupling-null-largest"]) == (0.05, 0.06)
    null = both.null.sel(network="trained", k=K, variant="normalized_miscoupling")
    assert quoted["coupling-null"] == pytest.approx(1 - float(null.mean()))
    assert quoted["decisive-trace-null"] == tenth.c_trace_null[2]
    at = both.sel(network="trained", part="traceless", k=K)
    rest = 1 - at.normalised.sel(span="all pairs") / at.normalised_null
    for name, kind in (("rest", "measured"), ("rest-permuted", "permuted")):
        assert quoted[f"{name}-trained"] == pytest.approx(float(rest.sel(kind=kind).mean()))
        assert quoted[f"{name}-trained-low"] < quoted[f"{name}-trained"] < quoted[f"{name}-trained-high"]
    assert quoted["traceless-random-trained"] == pytest.approx(1 - float(at.normalised_null.mean()))
    other = at.normalised.sel(span="all pairs", kind="other prompt")
    assert quoted["traceless-other-prompt-trained"] == pytest.approx(1 - float(other.mean()))
    shares = both.isotropic_share.sel(network="untrained")
    assert quoted["isotropic-share-untrained"] == pytest.approx(float(shares.mean()))
    closed = frame(nulls.take_curves(curves))
    for variant in ("mismatch", "released_trace"):
        same = closed[closed.variant == variant]
        error = (same.simulated / same.closed_form - 1).abs().max()
        assert quoted[f"closed-form-error-{variant}"] == pytest.approx(error)
    values = both.singular_values.sel(network="trained").values[..., :K].reshape(-1, K)
    slopes = [-np.polyfit(np.log(np.arange(1, K + 1)), np.log(row), 1)[0] for row in values]
    assert quoted["decay"] == nulls.spectrum_decay(both.sel(network="trained"), K) == pytest.approx(np.median(slopes))
