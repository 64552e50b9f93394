"""Figures of perturbations: what is drawn is what was measured."""

from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import perturbation
from coupling_lib.datasets.statistics import mean_interval
from tests.companion.figures import made
from tests.companion.figures.drawn import heights
from tests.companion.figures.test_dynamics import networks


def make_perturbation(seed, count=5):
    sizes = {"prompt": count, "carrier": 3, "noise": 2, "draw": 4, "level": 7}
    drawn = dict.fromkeys(("cosine", "amplification"), ("prompt carrier noise draw level", 0.01, 1))
    drawn |= {"linear_error": ("prompt noise draw level", 0.01, 1)}
    return made.made(seed, sizes, drawn, carrier=["network", "linear", "random"], noise=[0.1, 1.0], level=range(7))


BOTH = networks(2, make_perturbation)
TRAINED = BOTH.sel(network="trained")


def test_draws_are_averaged_within_prompts_before_the_interval():
    values = TRAINED.cosine.values[:, 1, 0].mean(axis=1)
    found = perturbation.take_depth(BOTH).sel(network="trained", carrier="linear", noise=0.1, level=range(7))
    assert_allclose([found["mean"], found.high], [values.mean(axis=0), mean_interval(values).high])


def test_ends_are_first_and_last_block():
    ends, cosines = perturbation.take_ends(BOTH), TRAINED.cosine.values.mean(axis=(0, 3))
    assert_allclose(ends["mean"].sel(network="trained", block="first", carrier="random"), cosines[2, :, 1])
    drawn = heights(perturbation.draw_ends(ends).axes[1])
    assert_allclose(drawn["last block, network"], cosines[0, :, 6])


def test_errors_are_those_after_the_last_block():
    errors = perturbation.take_error(BOTH)
    table = errors["mean"].to_dataframe().dropna().reset_index()
    own = table[(table.quantity == "error") & (table.network == "trained")]
    assert_allclose(own["mean"], TRAINED.linear_error.values[..., 6].mean(axis=(0, 2)))
    assert set(own.level) == {6} and set(table[table.quantity == "amplification"].noise) == {0.1}
    left, right = perturbation.draw_error(errors).axes
    amplified = TRAINED.amplification.values[:, 1, 0].mean(axis=(0, 1))
    assert_allclose(heights(left)["trained, linearised"], amplified)
    assert_allclose(right.lines[1].get_ydata(), own["mean"])


def test_axis_label_names_kind_of_noise():
    absolute = BOTH.assign_attrs(kind="absolute")
    for both, label in ((BOTH, "noise, relative to the embedding"), (absolute, "noise, standard deviation")):
        ends = perturbation.draw_ends(perturbation.take_ends(both)).axes[0]
        error = perturbation.draw_error(perturbation.take_error(both)).axes[1]
        assert (ends.get_xlabel(), error.get_xlabel()) == (label, label)


def test_quoted_numbers_match_the_summary():
    table, found = perturbation.take_summary(BOTH, 1.0), perturbation.numbers_of(BOTH, 1.0)
    values = TRAINED.cosine.sel(carrier="random", noise=1.0).values.mean(axis=(0, 1))
    row, network = table.loc["trained", "random"], table.loc["trained", "network"]
    assert row[["embedding", "first block", "last block"]].tolist() == approx(values[[0, 1, 6]].tolist())
    assert row["low"] < row["last block"] < row["high"]
    wanted = {"noise": "1", "noise-smallest": "0.1", "prompts": 5, "last-network-trained-high": network["high"]}
    wanted |= {"first-linear-untrained": table.loc[("untrained", "linear"), "first block"]}
    assert {name: found[name] for name in wanted} == wanted
    assert found["error-trained"] == approx(TRAINED.linear_error.values[:, 0, :, 6].mean())
    assert found["gap-trained"] == approx(network["last block"] - network["first block"])
