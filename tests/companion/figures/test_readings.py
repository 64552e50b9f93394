"""Figures of rival readings: what is drawn is what was compared."""

import numpy as np
import pytest
import tiny
import xarray as xr
from matplotlib.text import Text
from numpy.testing import assert_allclose
from pytest import approx
from scipy.stats import spearmanr

import coupling_lib as cl
from companion.figures import readings, style
from companion.tables.arrays import each_network, side_by_side
from coupling_lib.metrics.variants import VARIANTS
from tests.companion.figures.drawn import by_label, words

NETWORKS = ["untrained", "trained"]


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
    table = readings.take_summary(measured["block"], 8, nulls)
    assert list(table.index) == list(VARIANTS)
    wanted = means["mean"].sel(network="untrained", variant="released_norm", k=8).item()
    assert table.loc["released_norm", "untrained"] == approx(wanted, abs=0.005)
    assert "-0.0" not in {str(value) for value in table.to_numpy().ravel()}


def test_coupling_beyond_chance_is_in_per_cent(measured, nulls):
    means = readings.take_beyond_chance(measured["block"], 4, nulls)
    axes = readings.draw_beyond_chance(means).axes[0]
    _, trained = (line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 17)
    assert_allclose(trained.get_xdata(), 100 * means.share.sel(network="trained", k=4))
    assert sum(line.get_marker() == "." for line in axes.lines) == 2  # one other K of two networks
    assert [word.replace(" ", "_") for word in words(axes.get_yticklabels())] == list(VARIANTS)


def cells_of(agreement: xr.Dataset) -> list[Text]:
    """Numbers of the matrix row by row, from its three groups of columns."""
    panels = readings.draw_agreement(agreement).axes[:3]
    return list(np.hstack([np.reshape(list(axes.texts), (agreement.sizes["variant"], -1)) for axes in panels]).ravel())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_agreement_is_mean_spearman_in_readable_ink(measured, theme):
    agreement = readings.take_agreement(measured["block"], 4)
    mean, ds, off = agreement["mean"], measured["block"].sel(network="trained", k=4), ~np.eye(3, dtype=bool)
    each = [spearmanr(ds.basis_uu.values[i][off], ds.mismatch.values[i][off]).statistic for i in range(2)]
    assert mean.size == 17**2 and mean.sel(variant="basis_uu", other="mismatch") == approx(np.mean(each))
    with style.theme(theme):
        cells = cells_of(agreement)
        page, text = style.colour("page"), style.colour("text")
    # Full ink is as far from the page as can be.
    assert len(cells) == 17**2 and (cells[0].get_text(), cells[0].get_color()) == ("1", page)
    low = cells[int(mean.values.argmin())]
    assert low.get_color() == text and low.get_text().startswith("−")


def test_agreement_is_written_short():
    names = {"variant": [*"abcdef"], "other": [*"abcdef"]}
    values = np.tile((1, 0.999, 0.256, -0.256, -0.001, -1), (6, 1))
    cells = cells_of(xr.Dataset({"mean": (("variant", "other"), values)}, names, {"k": 4}))
    assert words(cells) == 6 * ["1", "1", ".26", "−.26", ".00", "−1"]


def test_choices_show_values_intervals_and_chance(measured, nulls):
    choices, alone = (readings.take_choices(given, 4, nulls) for given in (measured, measured["block"]))
    assert set(choices.reading) - set(alone.reading) == {"includes final norm"}
    assert len(choices) == 2 * 14 and choices.merge(alone).shape == alone.shape
    axes, numbers = readings.draw_choices(choices).axes
    dots = [line.get_xdata() for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 14]
    assert_allclose(dots, [choices[choices.network == network].coupling for network in NETWORKS])
    assert set(words(axes.texts)) == set(choices.point)
    shown = [*choices.coupling, *choices.null[choices.network == "trained"]]
    written = {f"{value:.3f}".replace("-", "−") for value in shown}
    assert {"untrained", "chance"} | written <= set(words(numbers.texts))
    ticks = np.concatenate([c.get_offsets()[:, 0] for c in axes.collections if len(c.get_offsets()) == 14])
    assert_allclose(sorted(ticks), sorted(choices.null))


def test_boundaries_count_blocks_from_one(measured, nulls):
    found = readings.take_boundaries(measured, k=4, nulls=nulls)
    values = measured["hidden_states"].sel(network="trained", k=4).normalized_miscoupling.values
    wanted = 1 - np.mean([values[:, 2, :2], values[:, :2, 2]])
    assert found.block.values.tolist() == [1, 2, 3]
    assert found["mean"].sel(boundary="hidden_states", network="trained", block=3).item() == approx(wanted)
    chance = nulls.sel(network="trained", variant="normalized_miscoupling", k=4).mean()
    assert (found.null, found.null.error) == approx((chance.value.item(), chance.error.item()))
    axes = readings.draw_boundaries(found).axes[0]
    own, after = (by_label(axes)[f"trained, {word}"] for word in ("the block's own output", "after the final norm"))
    assert_allclose(own.get_ydata(), found["mean"].sel(network="trained", boundary="block"))
    assert own.get_color() == after.get_color() == style.colour(style.TRAINED)
    assert own.get_linestyle() != after.get_linestyle()
    assert_allclose(axes.lines[-1].get_ydata(), 1 - found.null)


def test_quoted_numbers_match_the_tables(measured, nulls):
    means, agreement = readings.take_values(measured["block"], nulls), readings.take_agreement(measured["block"], 8)
    choices, found = readings.take_choices(measured, 8, nulls), readings.numbers_of(measured, 8, nulls)
    chosen = means.sel(network="trained", variant="mismatch", k=8)
    wanted = {"trained": chosen["mean"], "trained-low": chosen.low, "random-bases": chosen.null}
    wanted = {f"mismatch-{name}": value.item() for name, value in (wanted | {"beyond-chance": chosen.share}).items()}
    wanted |= {"prompts": 2, "mismatch-beyond-chance-n": 2}
    wanted |= {"agreement-basis_vv": agreement["mean"].sel(variant="basis_vv", other="normalized_miscoupling").item()}
    second, third = (choices[choices.network == name].iloc[at] for name, at in (("untrained", 1), ("trained", 2)))
    wanted |= {"choice-2-untrained": second.coupling, "choice-3-trained-null": third.null}
    assert {name: found[name] for name in wanted} == wanted
    assert found["mismatch-beyond-chance-error"] == approx((chosen.share_high - chosen.share_low).item() / 3.92)
