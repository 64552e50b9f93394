"""Figures of precision: what is selected is what loops written out give, and what is drawn is what was selected."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import xarray as xr

from companion.figures import precision
from tests.companion.figures.made import made, make_depth

NAMES, SOURCES = ["float32", "int8", "nf4"], ["weights", "bfloat16 arithmetic", "float16 arithmetic"]
PROMPTS, EXAMPLES, L, K = 4, 2, 5, 3


def make_precision(seed: int = 0) -> xr.Dataset:
    """A reference, eight bits that err by about 0.1 %, and four that err by about 10 % and hide coupling."""
    rng = np.random.default_rng(seed)
    size = np.array([0, 1e-3, 1e-1])
    values = np.sort(rng.uniform(0.5, 2, (PROMPTS, L, K)))[..., ::-1]
    values = values * (1 + size[:, None, None, None] * rng.standard_normal((3, PROMPTS, L, K)))
    mismatch = rng.uniform(0.75, 0.95, (PROMPTS, L, L))
    mismatch = mismatch + np.array([0, 1e-4, 0.03])[:, None, None, None] * rng.uniform(0.5, 1.5, (3, PROMPTS, L, L))
    mismatch[..., np.arange(L), np.arange(L)] = 0
    sizes = {"prompt": PROMPTS, "precision": 3, "source": 3, "side": 2, "example": EXAMPLES, "rank": K, "order": K}
    drawn = {
        "value_error": "precision source example block rank",
        "angle": "precision source side example block order",
        "coupling_error": "precision source example block_1 block_2",
    }
    spreads = {name: (dims, 0.5, 1.5) for name, dims in drawn.items()}
    coords = {"precision": NAMES, "source": SOURCES, "side": ["U", "V"]}
    ds = made(seed, sizes | dict.fromkeys(("block", "block_1", "block_2"), L), spreads, **coords).drop_vars("prompt")
    ds *= xr.DataArray(np.stack([size, np.full(3, 2e-3), np.full(3, 2e-4)], axis=1), dims=("precision", "source"))
    return ds.assign(
        normalized_miscoupling=(("precision", "prompt", "block_1", "block_2"), mismatch),
        singular_values=(("precision", "prompt", "block", "rank"), values),
        angle=(ds.angle.dims, np.sort(300 * ds.angle)),
        coupling_error=ds.coupling_error * xr.DataArray(~np.eye(L, dtype=bool), dims=("block_1", "block_2")),
        null=("precision", [0.82, 0.82, 0.83]),
        null_error=("precision", [1e-5] * 3),
        random_angle=("order", [50.0, 65.0, 80.0]),
    ).assign_attrs(k=K)


NARROW = {1: ["nf4"], 2: ["int8", "nf4"], 3: ["bfloat16", "int8", "nf4", "fp4", "float16"]}


def measured(n):
    """Precisions of the made-up measurement; where there are five, all err as its last one does."""
    chosen = NARROW[n] if n == 2 else ["nf4"] * len(NARROW[n])
    return make_precision().sel(precision=["float32", *chosen]).assign_coords(precision=["float32", *NARROW[n]])


CASES = {
    "draw_values": (precision.draw_values, lambda n: precision.take_values(measured(n))),
    "draw_vectors": (precision.draw_vectors, lambda n: precision.take_vectors(measured(n))),
    "draw_pairs": (precision.draw_pairs, lambda n: precision.take_pairs(measured(n))),
    "draw_coupling": (precision.draw_coupling, lambda n: precision.take_coupling(measured(n), make_depth(0.1, seed=1))),
    "draw_sources": (precision.draw_sources, lambda n: precision.take_sources(measured(n))),
}


DS, UNTRAINED = make_precision(), make_depth(0.1, seed=1)
BLANK = 1 - UNTRAINED.normalized_miscoupling.sel(k=3).values.sum() / (5 * 30)
OFF = [(i, j) for i in range(L) for j in range(L) if i != j]


def lines(axes):
    return {line.get_label(): line.get_ydata() for line in axes.lines}


def test_value_errors_are_medians_over_prompts():
    values = precision.take_values(DS)
    assert values.precision.values.tolist() == ["int8", "nf4"]
    left, right = precision.draw_values(values).axes
    errors = np.abs(DS.singular_values.values[2] / DS.singular_values.values[0] - 1)
    np.testing.assert_allclose(lines(left)["nf4"], np.median(errors, axis=(0, 1)))
    np.testing.assert_allclose(lines(right)["nf4"], np.median(errors, axis=(0, 2)))
    low = values.low.sel(against="rank", precision="nf4", place=3).item()
    assert low == pytest.approx(np.quantile(errors[..., 2], 0.25))


def test_vector_errors_show_angles_shares_kept_and_chance():
    spaces = precision.take_vectors(DS)
    left, right = precision.draw_vectors(spaces).axes
    wanted = DS.angle.sel(precision="int8", source="weights").median(("side", "example", "block"))
    np.testing.assert_allclose(lines(left)["int8"], wanted)
    np.testing.assert_allclose(lines(left)["random spaces"], DS.random_angle)
    kept = np.mean(np.cos(np.deg2rad(DS.angle.values[1, 0, 0])) ** 2, axis=(0, -1))
    np.testing.assert_allclose(right.lines[0].get_ydata(), 100 * kept)
    assert right.lines[-1].get_ydata()[0] == pytest.approx(100 * np.mean(np.cos(np.deg2rad([50, 65, 80])) ** 2))
    wanted = np.mean(np.cos(np.deg2rad(DS.angle.values[2, 0, 0, :, 3])) ** 2)
    assert spaces.kept.sel(precision="nf4", side="U", block=4).item() == pytest.approx(wanted)


def test_pairs_are_drawn_against_the_reference_coupling():
    pairs = precision.take_pairs(DS)
    table = pairs.to_dataframe().dropna().reset_index()
    assert len(table) == 2 * len(OFF) and not (table.block_jacobian == table.block_vectors).any()
    one = pairs.sel(precision="nf4", block_jacobian=2, block_vectors=5)
    values = 1 - DS.normalized_miscoupling.values[:, :, 1, 4].mean(axis=1)
    assert (one.reference.item(), one.coupling.item()) == pytest.approx((values[0], values[2]))
    panels = precision.draw_pairs(pairs).axes
    assert [axes.get_title() for axes in panels] == ["int8", "nf4"]
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in panels}) == 1
    shown = np.ma.compress_rows(np.ma.masked_invalid(panels[1].collections[0].get_offsets().filled(np.nan)))
    np.testing.assert_allclose(shown, table[table.precision == "nf4"][["reference", "coupling"]])
    assert all(any(np.allclose(line.get_ydata(), 0.18) for line in axes.lines) for axes in panels)


def test_coupling_difference_is_paired_by_prompt():
    found = precision.take_coupling(DS)
    values = 1 - DS.normalized_miscoupling.values
    means = np.array([[np.mean([prompt[i, j] for i, j in OFF]) for prompt in one] for one in values])
    assert found.coupling.values.tolist() == pytest.approx(means.mean(axis=1).tolist())
    difference, nf4 = means[2] - means[0], found.sel(precision="nf4")
    assert nf4.difference.item() == pytest.approx(difference.mean())
    expected = scipy.stats.t.interval(0.95, 3, difference.mean(), scipy.stats.sem(difference))
    assert (nf4.difference_low.item(), nf4.difference_high.item()) == pytest.approx(expected)
    # What prompts share is taken out.
    assert nf4.difference_high - nf4.difference_low < 0.2 * (nf4.high - nf4.low)
    pairs = [[one[:, i, j].mean() for i, j in OFF] for one in values]
    assert nf4.correlation.item() == pytest.approx(np.corrcoef(pairs[0], pairs[2])[0, 1])
    found = precision.take_coupling(DS, UNTRAINED)
    left, right = precision.draw_coupling(found).axes
    levels = {label: values[0] for label, values in lines(left).items()}
    assert levels["by chance 0.180"] == pytest.approx(0.18)
    assert levels["untrained, float32"] == pytest.approx(BLANK)
    assert [tick.get_text() for tick in right.get_xticklabels()] == ["int8\n", "nf4\n"]
    assert right.lines[1].get_ydata()[0] == pytest.approx(found.difference.values[2])


def test_reference_stored_in_four_bits_is_named():
    stored = DS.assign_attrs(source="package==1:model.gguf (Q4_1, sha256 b179c9523d0e)")
    left, right = precision.draw_coupling(precision.take_coupling(stored)).axes
    assert left.get_xticklabels()[0].get_text() == "float32\nof Q4_1"
    assert right.get_ylabel() == "difference from float32 of Q4_1"
    pairs = precision.draw_pairs(precision.take_pairs(stored)).axes[0]
    assert pairs.get_xlabel() == "coupling in float32 of Q4_1"
    titles = [precision.draw_values(precision.take_values(ds)).legends[0].get_title().get_text() for ds in (stored, DS)]
    assert titles == ["against float32 of Q4_1", "against float32"]


def test_sources_leave_out_diagonal_and_reference():
    errors = DS.coupling_error.sel(precision="nf4", source="weights").values
    wanted = np.median([one[i, j] for one in errors for i, j in OFF])
    found = precision.take_sources(DS)["median"]
    assert found.sel(quantity="coupling_error", precision="nf4", source="weights").item() == pytest.approx(wanted)
    gap = DS.assign(angle=DS.angle.where(DS.source != "float16 arithmetic"))
    gaps = precision.take_sources(gap)["median"].sel(quantity="angle")
    assert gaps.sel(source="float16 arithmetic").isnull().all() and gaps.sel(source="weights").notnull().all()
    errors = precision.take_sources(DS)
    shown = {line.get_label(): line.get_xdata() for line in precision.draw_sources(errors).axes[0].lines}
    assert len(shown["weights"]) == 2 and len(shown["float16 arithmetic"]) == 3
    wanted = errors["median"].sel(quantity="value_error", source="weights", precision=["int8", "nf4"])
    np.testing.assert_allclose(shown["weights"], wanted)


def test_precision_keeps_its_colour_in_every_comparison():
    alone = DS.sel(precision=["float32", "nf4"])
    figures = [precision.draw_values(precision.take_values(one)) for one in (DS, alone)]
    colours = [
        next(line.get_color() for line in figure.axes[0].lines if line.get_label() == "nf4") for figure in figures
    ]
    assert colours[0] == colours[1]


def test_quoted_numbers_match_the_summary():
    summary, found = precision.take_summary(DS), precision.take_coupling(DS).to_dataframe()
    excess = found.coupling["float32"] - 0.18
    assert summary.loc["nf4", "lost %"] == pytest.approx(-100 * found.difference["nf4"] / excess)
    assert summary.loc["float32", "kept %"] == pytest.approx(100, abs=1e-6)
    errors = np.abs(DS.singular_values.values[2] / DS.singular_values.values[0] - 1)
    assert summary.loc["nf4", "values %"] == pytest.approx(100 * np.median(errors))
    found = precision.numbers_of(DS, UNTRAINED)
    assert all(f"lost-{name}" in found for name in summary.index)
    assert found["difference-nf4-low"] == summary.loc["nf4", "difference_low"]
    assert found["lost-int8"] == summary.loc["int8", "lost %"]
    named = (found["coupling-untrained"], found["coupling-null-error"], found["prompts"])
    assert named == pytest.approx((BLANK, 1e-5, 4))
    assert found["coupling-null"] == pytest.approx(0.18)
    assert found["change-nf4"] == pytest.approx(summary.loc["nf4", "difference"])
    assert len([key for key in found if key.startswith(("values", "kept", "difference", "lost", "correlation"))]) == 21
