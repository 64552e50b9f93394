"""Figures of precision: what is selected is what NumPy gives, and what is drawn is what was selected."""

import numpy as np
import scipy.stats
import xarray as xr
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import precision
from tests.companion.figures.drawn import by_label, heights, titles, words
from tests.companion.figures.made import case, made, make_depth

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
    spreads = {"value_error": ("precision source example block rank", 0.5, 1.5)}
    spreads |= {"angle": ("precision source side example block order", 0.5, 1.5)}
    spreads |= {"coupling_error": ("precision source example block_1 block_2", 0.5, 1.5)}
    coords = {"precision": NAMES, "source": SOURCES, "side": ["U", "V"]}
    ds = made(seed, sizes | dict.fromkeys(("block", "block_1", "block_2"), L), spreads, **coords).drop_vars("prompt")
    ds *= xr.DataArray(np.stack([size, np.full(3, 2e-3), np.full(3, 2e-4)], axis=1), dims=("precision", "source"))
    off = xr.DataArray(~np.eye(L, dtype=bool), dims=("block_1", "block_2"))
    found = {"normalized_miscoupling": (("precision", "prompt", "block_1", "block_2"), mismatch)}
    found |= {"singular_values": (("precision", "prompt", "block", "rank"), values)}
    found |= {"angle": (ds.angle.dims, np.sort(300 * ds.angle)), "coupling_error": ds.coupling_error * off}
    found |= {"null": ("precision", [0.82, 0.82, 0.83]), "null_error": ("precision", [1e-5] * 3)}
    return ds.assign(found | {"random_angle": ("order", [50.0, 65.0, 80.0])}).assign_attrs(k=K)


NARROW = {1: ["nf4"], 2: ["int8", "nf4"], 3: ["bfloat16", "int8", "nf4", "fp4", "float16"]}


def measured(n):
    """Precisions of the made-up measurement; where there are five, all err as its last one does."""
    chosen = NARROW[n] if n == 2 else ["nf4"] * len(NARROW[n])
    return make_precision().sel(precision=["float32", *chosen]).assign_coords(precision=["float32", *NARROW[n]])


UNTRAINED = make_depth(0.1, seed=1)
CASES = {f"draw_{name}": case(precision, name, measured) for name in ("values", "vectors", "pairs", "sources")}
CASES["draw_coupling"] = case(precision, "coupling", measured, UNTRAINED)


DS, OFF = make_precision(), ~np.eye(L, dtype=bool)
COUPLING = 1 - DS.normalized_miscoupling.values
BLANK = 1 - UNTRAINED.normalized_miscoupling.sel(k=3).values.sum() / (5 * 30)


def test_value_errors_are_medians_over_prompts():
    values = precision.take_values(DS)
    assert values.precision.values.tolist() == ["int8", "nf4"]
    errors = np.abs(DS.singular_values.values[2] / DS.singular_values.values[0] - 1)
    left, right = precision.draw_values(values).axes
    assert_allclose(heights(left)["nf4"], np.median(errors, axis=(0, 1)))
    assert_allclose(heights(right)["nf4"], np.median(errors, axis=(0, 2)))
    alone = precision.draw_values(precision.take_values(DS.sel(precision=["float32", "nf4"]))).axes[0]
    assert by_label(alone)["nf4"].get_color() == by_label(left)["nf4"].get_color()  # in every comparison
    low = values.low.sel(against="rank", precision="nf4", place=range(1, K + 1))
    assert_allclose(low, np.quantile(errors, 0.25, axis=(0, 1)))


def test_vector_errors_show_angles_shares_kept_and_chance():
    spaces, angle = precision.take_vectors(DS), DS.angle.sel(source="weights")
    left, right = precision.draw_vectors(spaces).axes
    assert_allclose(heights(left)["int8"], angle.sel(precision="int8").median(("side", "example", "block")))
    assert_allclose(heights(left)["random spaces"], DS.random_angle)
    kept = (np.cos(np.deg2rad(angle.values)) ** 2).mean(axis=(2, 4))  # precision, side, block
    assert_allclose(spaces.kept.sel(precision=NAMES[1:], side=["U", "V"], block=range(1, L + 1)), kept[1:])
    assert_allclose(right.lines[0].get_ydata(), 100 * kept[1, 0])
    assert right.lines[-1].get_ydata()[0] == approx(100 * np.mean(np.cos(np.deg2rad([50, 65, 80])) ** 2))


def test_pairs_are_drawn_against_the_reference_coupling():
    pairs = precision.take_pairs(DS)
    places = {name: range(1, L + 1) for name in ("block_jacobian", "block_vectors")}
    each = np.where(OFF, COUPLING.mean(axis=1), np.nan)
    found = pairs.sel(precision=NAMES[1:], **places)
    assert_allclose([found.reference, found.coupling], [[each[0], each[0]], each[1:]])
    panels = precision.draw_pairs(pairs).axes
    assert titles(panels) == ["int8", "nf4"] and len({(axes.get_xlim(), axes.get_ylim()) for axes in panels}) == 1
    shown = panels[1].collections[0].get_offsets().filled(np.nan)
    assert_allclose(shown[~np.isnan(shown).any(axis=1)], np.transpose([each[0][OFF], each[2][OFF]]))
    assert all(any(np.allclose(line.get_ydata(), 0.18) for line in axes.lines) for axes in panels)


def test_coupling_difference_is_paired_by_prompt():
    found, means = precision.take_coupling(DS, UNTRAINED), COUPLING[..., OFF].mean(axis=-1)
    assert_allclose(found.coupling, means.mean(axis=1))
    difference, nf4 = means[2] - means[0], found.sel(precision="nf4")
    low, high = scipy.stats.t.interval(0.95, 3, difference.mean(), scipy.stats.sem(difference))
    assert_allclose([nf4.difference, nf4.difference_low, nf4.difference_high], [difference.mean(), low, high])
    assert high - low < 0.2 * (nf4.high - nf4.low)  # what prompts share is taken out
    pairs = COUPLING[..., OFF].mean(axis=1)
    assert nf4.correlation.item() == approx(np.corrcoef(pairs[0], pairs[2])[0, 1])
    left, right = precision.draw_coupling(found).axes
    drawn = heights(left)
    assert (drawn["by chance 0.180"][0], drawn["untrained, float32"][0]) == approx((0.18, BLANK))
    assert words(right.get_xticklabels()) == ["int8\n", "nf4\n"]
    assert right.lines[1].get_ydata()[0] == approx(difference.mean())
    xr.testing.assert_equal(precision.take_coupling(DS), found)


def test_reference_stored_in_four_bits_is_named():
    stored = DS.assign_attrs(source="package==1:model.gguf (Q4_1, sha256 b179c9523d0e)")
    left, right = precision.draw_coupling(precision.take_coupling(stored)).axes
    assert left.get_xticklabels()[0].get_text() == "float32\nof Q4_1"
    assert right.get_ylabel() == "difference from float32 of Q4_1"
    pairs = precision.draw_pairs(precision.take_pairs(stored)).axes[0]
    assert pairs.get_xlabel() == "coupling in float32 of Q4_1"
    legends = [precision.draw_values(precision.take_values(ds)).legends[0].get_title() for ds in (stored, DS)]
    assert words(legends) == ["against float32 of Q4_1", "against float32"]


def test_sources_leave_out_diagonal_and_reference():
    errors = precision.take_sources(DS)
    wanted = np.median(DS.coupling_error.sel(precision="nf4", source="weights").values[:, OFF])
    at = {"quantity": "coupling_error", "precision": "nf4", "source": "weights"}
    assert errors["median"].sel(at).item() == approx(wanted)
    gap = DS.assign(angle=DS.angle.where(DS.source != "float16 arithmetic"))
    gaps = precision.take_sources(gap)["median"].sel(quantity="angle")
    assert gaps.sel(source="float16 arithmetic").isnull().all() and gaps.sel(source="weights").notnull().all()
    shown = {label: line.get_xdata() for label, line in by_label(precision.draw_sources(errors).axes[0]).items()}
    weights = errors["median"].sel(quantity="value_error", source="weights", precision=["int8", "nf4"])
    assert_allclose(shown["weights"], weights)
    assert len(shown["float16 arithmetic"]) == 3


def test_quoted_numbers_match_the_summary():
    summary, coupling = precision.take_summary(DS), precision.take_coupling(DS).to_dataframe()
    nf4, errors = summary.loc["nf4"], np.abs(DS.singular_values.values[2] / DS.singular_values.values[0] - 1)
    lost = -100 * coupling.difference["nf4"] / (coupling.coupling["float32"] - 0.18)
    assert (nf4["lost %"], nf4["values %"]) == approx((lost, 100 * np.median(errors)))
    assert summary.loc["float32", "kept %"] == approx(100, abs=1e-6)
    found = precision.numbers_of(DS, UNTRAINED)
    assert (found["difference-nf4-low"], found["lost-int8"]) == (nf4["difference_low"], summary.loc["int8", "lost %"])
    wanted = {"coupling-untrained": BLANK, "coupling-null": 0.18, "coupling-null-error": 1e-5, "prompts": 4}
    wanted |= {"change-nf4": nf4["difference"]}
    assert {name: found[name] for name in wanted} == approx(wanted)
    assert all(f"lost-{name}" in found for name in summary.index)
    assert len([key for key in found if key.startswith(("values", "kept", "difference", "lost", "correlation"))]) == 21
