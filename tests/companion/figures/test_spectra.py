"""Figures of spectra: what is drawn is what was measured."""

import numpy as np
import pytest

from companion.figures import spectra, style
from companion.figures.show import frame
from coupling_lib.datasets.statistics import mean_interval
from coupling_lib.errors import ParameterError
from tests.companion.figures.made import made, networks


def both(n=2, count=5):
    sizes = {"prompt": count, "block": 6, "rank": 12, "whole": 2, "index": 24}
    drawn = {
        "singular_values": ("prompt block rank", 0.1, 2),
        "spectrum": ("prompt whole index", 1e-3, 2),
        "stable_rank": ("prompt block", 2, 9),
        "left_right_alignment": ("prompt block", 0, 1),
        "exchanged_miscoupling": ("prompt block", 0.5, 1),
        "decay_exponent": ("prompt whole", 0, 1),
    }

    def make(seed):
        ds = made(seed, sizes, drawn, block=range(6), whole=[0, 4])
        falling = {name: (1 + seed) * -np.sort(-ds[name]) for name in ("singular_values", "spectrum")}
        return ds.assign({name: (ds[name].dims, values) for name, values in falling.items()})

    return networks(n, make)


def fits(n=2, count=5):
    drawn = dict.fromkeys(("slope", "intercept", "r_squared"), ("prompt", 0, 1))
    return networks(n, lambda seed: made(seed, {"prompt": count}, drawn).assign_attrs(first_block=2))


def nulls(n=2):
    drawn = {"exchanged_miscoupling": ("sample block", 0.9, 1)}
    sizes = {"prompt": 0, "sample": 7, "block": 6}
    return networks(n, lambda seed: made(seed, sizes, drawn).drop_vars("prompt").assign(left_right_alignment=0.16))


CASES = {
    f"draw_inverse of {text}": (
        spectra.draw_inverse,
        lambda n, names=names: spectra.take_inverse(
            both(n, len(names)).assign_coords(prompt=names), fits(n, len(names))
        ),
    )
    for text, names in (("one prompt", ["a"]), ("images of one name", ["image", "image"]))
}


def test_top_values_are_medians_per_rank():
    axes = spectra.draw_top(spectra.take_top(both())).axes[1]
    values = both().sel(network="trained").singular_values.values
    assert len(axes.lines) == 12
    for rank, line in enumerate(axes.lines):
        np.testing.assert_allclose(line.get_ydata(), np.median(values[:, :, rank], axis=0))
        assert (line.get_color() == style.colour("trained")) == (rank < 10)
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3, 4, 5, 6]


def test_inverse_is_drawn_with_its_fitted_line():
    taken = spectra.take_inverse(both(), fits())
    trained, fit = taken.sel(network="trained"), fits().sel(network="trained")
    inverse = 1 / both().sel(network="trained").singular_values.values[:, :, 0]
    np.testing.assert_allclose(trained["median"], np.median(inverse, axis=0))
    np.testing.assert_allclose(trained.each.transpose("prompt", "block"), inverse)
    assert np.isnan(trained.line).values.tolist() == [True, True, False, False, False, False]
    np.testing.assert_allclose(trained.line.sel(block=5), float(fit.intercept.mean() + 5 * fit.slope.mean()))
    (text,) = [text.get_text() for text in spectra.draw_inverse(taken).axes[1].texts]
    assert text.startswith(f"from block 3: slope {float(fit.slope.mean()):.3f}")
    ends = mean_interval(fit.r_squared.values)
    assert text.endswith(f"$R^2={float(fit.r_squared.mean()):.2f}$  [{ends.low:.2f}, {ends.high:.2f}]")
    (text,) = spectra.draw_inverse(spectra.take_inverse(both(1, 1), fits(1, 1))).axes[0].texts
    assert text.get_text().endswith("$") and "[" not in text.get_text()


def test_whole_spectrum_holds_all_singular_values():
    taken = spectra.take_whole(both())
    table = frame(taken).dropna(subset=["rank"])
    assert len(table) == 2 * 2 * 24 and set(table.block) == {1, 5}
    row = table[(table.network == "untrained") & (table.block == 5) & (table["rank"] == 24)]
    values = both().sel(network="untrained").spectrum.values[:, 1, 23]
    expected = np.quantile(values, (0.5, 0.25, 0.75)).tolist()
    assert row[["median", "low", "high"]].values[0].tolist() == pytest.approx(expected)
    exponent = both().decay_exponent.sel(network="trained", whole=4).mean().item()
    legend = spectra.draw_whole(taken).axes[1].get_legend().get_texts()[1].get_text()
    assert legend == f"block 5  ($a={exponent:.2f}$)"


def test_alignment_is_drawn_beside_its_null():
    taken = spectra.take_alignment(both(), nulls())
    exchanged = taken.sel(network="trained", quantity="exchanged coupling")
    draws = nulls().sel(network="trained").exchanged_miscoupling.values
    measured = both().sel(network="trained").exchanged_miscoupling.values
    np.testing.assert_allclose(exchanged["mean"], 1 - measured.mean(axis=0))
    np.testing.assert_allclose(exchanged.null, 1 - draws.mean(axis=0))
    np.testing.assert_allclose(exchanged.null_error, draws.std(axis=0, ddof=1) / np.sqrt(7))
    aligned = taken.sel(quantity="alignment")
    assert (aligned.null == 0.16).all() and (aligned.null_error == 0).all()
    assert np.isnan(taken.sel(quantity="stable rank").null).all()
    lines = {line.get_label(): line.get_ydata() for line in spectra.draw_alignment(taken).axes[2].lines}
    np.testing.assert_allclose(lines["trained"], exchanged["mean"])
    np.testing.assert_allclose(lines["by chance"], exchanged.null)


def test_quoted_numbers_match_the_summary():
    table = spectra.take_summary(both(), fits(), nulls())
    assert table.index.tolist() == ["untrained", "trained", "by chance"]
    trained = both().sel(network="trained")
    assert table.loc["trained", "stable rank"] == pytest.approx(trained.stable_rank.values.mean())
    assert table.loc["trained", "R2"] == pytest.approx(fits().sel(network="trained").r_squared.values.mean())
    assert table.loc["trained", "low"] < table.loc["trained", "alignment"] < table.loc["trained", "high"]
    assert table.loc["by chance", "alignment"] == 0.16
    numbers = spectra.numbers_of(both(), fits(), nulls())
    assert numbers["alignment-trained-low"] == table.loc["trained", "low"]
    assert numbers["stable-rank-trained-low"] < table.loc["trained", "stable rank"]
    assert numbers["stable-rank-trained-high"] > table.loc["trained", "stable rank"]
    assert numbers["r2-untrained-high"] == table.loc["untrained", "R2 high"]
    assert numbers["decay-trained"] == pytest.approx(trained.decay_exponent.values.mean())
    assert (numbers["fit-from"], numbers["prompts"], numbers["alignment-null-error"]) == ("3", 5, 0.0)
    change = fits().r_squared.sel(network="trained") - fits().r_squared.sel(network="untrained")
    assert numbers["r2-change"] == pytest.approx(change.values.mean())
    assert numbers["aligned"] == pytest.approx(table.loc["trained", "alignment"])
    assert len([name for name in numbers if not name.startswith(("aligned", "r2-change"))]) == 2 * 11 + 6


def test_one_fit_for_two_networks_is_refused():
    with pytest.raises(
        ParameterError, match="there are 2 networks and one set of theirs; expected fits = spectra_fits"
    ):
        spectra.take_inverse(both(), fits(1).isel(network=0, drop=True))
