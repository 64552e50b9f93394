"""Figures of rival readings: what is drawn is what was compared."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import tiny
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.text import Text

import coupling_lib as cl
from companion.figures import readings, style
from companion.figures.show import frame
from companion.tables.arrays import each_network, side_by_side
from coupling_lib.metrics.variants import VARIANTS

NETWORKS = ["untrained", "trained"]


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


@pytest.fixture(scope="module")
def measured():
    """Both boundaries of the last block of two small networks."""
    networks = {name: cl.wrap_model(tiny.llama(seed), tiny.tokenizer()) for seed, name in enumerate(NETWORKS)}
    return {
        at: side_by_side(**{n: cl.measure_depth(one, tiny.TEXT, ks=(4, 8), boundary=at) for n, one in networks.items()})
        for at in ("block", "hidden_states")
    }


@pytest.fixture(scope="module")
def nulls(measured):
    return side_by_side(**{name: cl.null_of(ds, n_samples=20) for name, ds in each_network(measured["block"])})


def test_each_variant_has_its_own_panel(measured, nulls):
    means = readings.take_values(measured["block"], nulls)
    panels = [axes for axes in readings.draw_values(means).axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == list(VARIANTS)
    chosen = means.sel(variant="released_trace")
    drawn = [line.get_ydata() for line in panels[list(VARIANTS).index("released_trace")].lines]
    for wanted in (*chosen["mean"].values, *chosen["null"].values):
        assert any(np.array_equal(line, wanted) for line in drawn)


def test_coupling_beyond_chance_is_in_per_cent(measured, nulls):
    means = readings.take_beyond_chance(measured["block"], 4, nulls)
    axes = readings.draw_beyond_chance(means).axes[0]
    trained = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 17][1]
    np.testing.assert_allclose(trained.get_xdata(), 100 * means.share.sel(network="trained", k=4))
    assert sum(line.get_marker() == "." for line in axes.lines) == 2  # one other K of two networks
    assert [label.get_text().replace(" ", "_") for label in axes.get_yticklabels()] == list(VARIANTS)


def cells_of(figure: Figure, rows: int) -> list[Text]:
    """Numbers of the matrix row by row, from its three groups of columns."""
    groups = [np.array(list(axes.texts), dtype=object).reshape(rows, -1) for axes in figure.axes[:3]]
    return list(np.hstack(groups).ravel())


def test_agreement_is_written_short_in_readable_ink():
    agreement = make_agreement()
    for theme in ("light", "dark"):
        with style.theme(theme):
            cells = cells_of(readings.draw_agreement(agreement), 17)
            page, text = style.colour("page"), style.colour("text")
        assert len(cells) == 17**2 and cells[0].get_text() == "1"
        assert cells[0].get_color() == page  # full ink is as far from the page as can be
        low = int(agreement["mean"].values.argmin())
        assert cells[low].get_color() == text and cells[low].get_text().startswith("−")
    names = ["a", "b", "c", "d", "e", "f"]
    values = np.tile((1, 0.999, 0.256, -0.256, -0.001, -1), (6, 1))
    agreement = xr.Dataset({"mean": (("variant", "other"), values)}, {"variant": names, "other": names}, {"k": 4})
    texts = [text.get_text() for text in cells_of(readings.draw_agreement(agreement), 6)]
    assert texts == 6 * ["1", "1", ".26", "−.26", ".00", "−1"]


def test_choices_show_values_intervals_and_chance():
    choices = make_choices()
    axes, numbers = readings.draw_choices(choices).axes
    dots = [line.get_xdata() for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 3]
    for values, network in zip(dots, ("untrained", "trained"), strict=True):
        np.testing.assert_allclose(values, choices[choices.network == network].coupling)
    assert {text.get_text() for text in axes.texts} == {"coupling", "last block"}
    assert {"untrained", "chance", "−0.900", "0.300", "0.060"} <= {text.get_text() for text in numbers.texts}
    ticks = np.concatenate([c.get_offsets()[:, 0] for c in axes.collections if len(c.get_offsets()) == 3])
    np.testing.assert_allclose(sorted(ticks), sorted(choices.null))


def test_agreement_is_mean_spearman_of_trained_network(measured):
    table = frame(readings.take_agreement(measured["block"], 4)).set_index(["variant", "other"])
    ds, off = measured["block"].sel(network="trained", k=4), ~np.eye(3, dtype=bool)
    pairs = [(ds.basis_uu.values[i][off], ds.mismatch.values[i][off]) for i in range(2)]
    wanted = np.mean([scipy.stats.spearmanr(*pair).statistic for pair in pairs])
    assert len(table) == 17**2 and table.loc[("basis_uu", "mismatch"), "mean"] == pytest.approx(wanted)


def test_boundaries_count_blocks_from_one(measured, nulls):
    by_block = readings.take_boundaries(measured, k=4, nulls=nulls)
    axes = readings.draw_boundaries(by_block).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    own, after = lines["trained, the block's own output"], lines["trained, after the final norm"]
    np.testing.assert_allclose(own.get_ydata(), by_block["mean"].sel(network="trained", boundary="block"))
    assert own.get_color() == after.get_color() == style.colour(style.TRAINED)
    assert own.get_linestyle() != after.get_linestyle()
    np.testing.assert_allclose(axes.lines[-1].get_ydata(), 1 - by_block.null)
    table = frame(by_block)
    assert sorted(set(table.block)) == [1, 2, 3]
    row = table[(table.boundary == "hidden_states") & (table.network == "trained") & (table.block == 3)]
    values = measured["hidden_states"].sel(network="trained").normalized_miscoupling.sel(k=4).values
    wanted = [1 - np.mean([one[2, :2], one[:2, 2]]) for one in values]
    assert row["mean"].item() == pytest.approx(np.mean(wanted))
    chance = nulls.sel(network="trained", variant="normalized_miscoupling", k=4)
    assert (by_block.null, by_block.null.error) == pytest.approx(
        (chance.value.mean().item(), chance.error.mean().item())
    )


def test_choice_of_unmeasured_boundary_is_left_out(measured, nulls):
    both, alone = (readings.take_choices(given, 4, nulls) for given in (measured, measured["block"]))
    assert set(both.reading) - set(alone.reading) == {"includes final norm"}
    assert len(both) == 2 * 14 and both.merge(alone).shape == alone.shape


def test_summary_has_a_row_per_variant(measured, nulls):
    means = readings.take_values(measured["block"], nulls)
    table = readings.take_summary(measured["block"], 8, nulls)
    assert list(table.index) == list(VARIANTS)
    wanted = means["mean"].sel(network="untrained", variant="released_norm", k=8).item()
    assert table.loc["released_norm", "untrained"] == pytest.approx(wanted, abs=0.005)
    assert "-0.0" not in {str(value) for value in table.to_numpy().ravel()}


def test_quoted_numbers_match_the_tables(measured, nulls):
    means, agreement = readings.take_values(measured["block"], nulls), readings.take_agreement(measured["block"], 8)
    choices = readings.take_choices(measured, 8, nulls)
    found = readings.numbers_of(measured, 8, nulls)
    chosen = means.sel(network="trained", variant="mismatch", k=8)
    assert found["mismatch-trained"] == chosen["mean"].item() and found["mismatch-trained-low"] == chosen.low.item()
    assert found["mismatch-random-bases"] == chosen.null.item()
    assert found["mismatch-beyond-chance"] == chosen.share.item()
    assert found["mismatch-beyond-chance-error"] == pytest.approx((chosen.share_high - chosen.share_low).item() / 3.92)
    assert found["prompts"] == found["mismatch-beyond-chance-n"] == 2
    wanted = agreement["mean"].sel(variant="basis_vv", other="normalized_miscoupling").item()
    assert found["agreement-basis_vv"] == wanted
    second, third = (choices[choices.network == name].iloc[at] for name, at in (("untrained", 1), ("trained", 2)))
    assert (found["choice-2-untrained"], found["choice-3-trained-null"]) == (second.coupling, third.null)
