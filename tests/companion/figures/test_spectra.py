"""Figures of spectra: what is drawn is what was measured."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import spectra, style
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.errors import ParameterError
from tests.companion.figures.drawn import heights, words
from tests.companion.figures.made import made, networks


def both(n=2, count=5):
    """Spectra and the lines that are fitted to them."""
    sizes = {"prompt": count, "block": 6, "rank": 12, "whole": 2, "index": 24}
    drawn = dict.fromkeys(("stable_rank", "left_right_alignment", "exchanged_miscoupling"), ("prompt block", 0, 1))
    drawn |= dict.fromkeys(("slope", "intercept", "r_squared"), ("prompt", 0, 1))
    drawn |= {"singular_values": ("prompt block rank", 0.1, 2), "spectrum": ("prompt whole index", 1e-3, 2)}
    drawn |= {"decay_exponent": ("prompt whole", 0, 1)}
    return networks(n, lambda seed: made(seed, sizes, drawn, block=range(6), whole=[0, 4]).assign_attrs(first_block=2))


def inverse(n, names):
    ds = both(n, len(names)).assign_coords(prompt=names)
    return spectra.take_inverse(ds, ds)


CASES = {
    "draw_inverse of one prompt": (spectra.draw_inverse, lambda n: inverse(n, ["a"])),
    "draw_inverse of images of one name": (spectra.draw_inverse, lambda n: inverse(n, ["image", "image"])),
}
BOTH = both()
FITS, TRAINED = BOTH[["slope", "intercept", "r_squared"]], BOTH.sel(network="trained")
DRAWS = xr.DataArray(np.random.default_rng(0).uniform(0.9, 1, (2, 7, 6)), dims=("network", "sample", "block"))
NULLS = xr.Dataset({"exchanged_miscoupling": DRAWS, "left_right_alignment": 0.16}, BOTH[["network"]])


def test_top_values_are_medians_per_rank():
    lines = spectra.draw_top(spectra.take_top(BOTH)).axes[1].lines
    assert_allclose(np.transpose([line.get_ydata() for line in lines]), TRAINED.singular_values.median("prompt"))
    assert [line.get_color() == style.colour("trained") for line in lines] == [True] * 10 + [False] * 2
    assert list(lines[0].get_xdata()) == [1, 2, 3, 4, 5, 6]


def test_inverse_is_drawn_with_its_fitted_line():
    taken = spectra.take_inverse(BOTH, FITS)
    trained, each = taken.sel(network="trained"), 1 / TRAINED.singular_values.values[:, :, 0]
    slope, intercept, r_squared = (float(TRAINED[name].mean()) for name in ("slope", "intercept", "r_squared"))
    assert_allclose(trained["median"], np.median(each, axis=0))
    assert_allclose(trained.each.transpose("prompt", "block"), each)
    assert_allclose(trained.line, [np.nan, np.nan, *(intercept + slope * np.arange(3, 7))])
    (text,) = words(spectra.draw_inverse(taken).axes[1].texts)
    assert text.startswith(f"from block 3: slope {slope:.3f}")
    ends = mean_interval(TRAINED.r_squared.values)
    assert text.endswith(f"$R^2={r_squared:.2f}$  [{ends.low:.2f}, {ends.high:.2f}]")
    (text,) = words(spectra.draw_inverse(inverse(1, ["a"])).axes[0].texts)
    assert text.endswith("$") and "[" not in text
    message = "there are 2 networks and one set of theirs; expected fits = spectra_fits"
    with pytest.raises(ParameterError, match=message):
        spectra.take_inverse(BOTH, FITS.isel(network=0, drop=True))


def test_whole_spectrum_holds_all_singular_values():
    taken = spectra.take_whole(BOTH)
    found = taken.sel(network="untrained", block=[1, 5], rank=range(1, 25)).transpose("block", "rank", ...)
    quartiles = np.quantile(BOTH.spectrum.sel(network="untrained"), (0.5, 0.25, 0.75), axis=0)
    assert_allclose([found["median"], found.low, found.high], quartiles)
    assert taken["median"].size == 2 * 2 * 24
    exponents = TRAINED.decay_exponent.mean("prompt").values
    legend = words(spectra.draw_whole(taken).axes[1].get_legend().get_texts())
    assert legend == [f"block {block}  ($a={exponent:.2f}$)" for block, exponent in zip((1, 5), exponents, strict=True)]


def test_alignment_is_drawn_beside_its_null():
    taken = spectra.take_alignment(BOTH, NULLS)
    exchanged, aligned = (taken.sel(quantity=name) for name in ("exchanged coupling", "alignment"))
    draws = DRAWS.values
    mean, null = 1 - BOTH.exchanged_miscoupling.mean("prompt").values, 1 - draws.mean(axis=1)
    assert_allclose([exchanged["mean"], exchanged.null], [mean, null])
    assert_allclose(exchanged.null_error, draws.std(axis=1, ddof=1) / np.sqrt(7))
    assert (aligned.null == 0.16).all() and (aligned.null_error == 0).all()
    assert np.isnan(taken.sel(quantity="stable rank").null).all()
    drawn = heights(spectra.draw_alignment(taken).axes[2])
    assert_allclose([drawn["trained"], drawn["by chance"]], [mean[1], null[1]])


def test_quoted_numbers_match_the_summary():
    table, numbers = spectra.take_summary(BOTH, FITS, NULLS), spectra.numbers_of(BOTH, FITS, NULLS)
    assert table.index.tolist() == ["untrained", "trained", "by chance"] and table.loc["by chance", "alignment"] == 0.16
    own = table.loc["trained"]
    means = TRAINED[["stable_rank", "r_squared"]].mean()
    assert (own["stable rank"], own["R2"]) == approx((means.stable_rank.item(), means.r_squared.item()))
    assert own["low"] < own["alignment"] < own["high"]
    assert numbers["stable-rank-trained-low"] < own["stable rank"] < numbers["stable-rank-trained-high"]
    exact = {"alignment-trained-low": own["low"], "r2-untrained-high": table.loc["untrained", "R2 high"]}
    exact |= {"fit-from": "3", "prompts": 5, "alignment-null-error": 0.0}
    assert {name: numbers[name] for name in exact} == exact
    wanted = {"decay-trained": TRAINED.decay_exponent.values.mean(), "aligned": own["alignment"]}
    wanted |= {"r2-change": (TRAINED.r_squared - FITS.r_squared.sel(network="untrained")).values.mean()}
    assert {name: numbers[name] for name in wanted} == approx(wanted)
    assert len([name for name in numbers if not name.startswith(("aligned", "r2-change"))]) == 2 * 11 + 6
