"""Figures of perturbations: what is drawn is what was measured."""

import numpy as np
import pytest

from companion.figures import perturbation
from coupling_lib.datasets.statistics import mean_interval
from tests.companion.figures import made
from tests.companion.figures.test_dynamics import networks


def make_perturbation(seed, count=5):
    sizes = {"prompt": count, "carrier": 3, "noise": 2, "draw": 4, "level": 7}
    drawn = {
        "cosine": ("prompt carrier noise draw level", 0, 1),
        "amplification": ("prompt carrier noise draw level", 1, 20),
        "linear_error": ("prompt noise draw level", 0.01, 1),
    }
    return made.made(seed, sizes, drawn, carrier=["network", "linear", "random"], noise=[0.1, 1.0], level=range(7))


BOTH = networks(2, make_perturbation)
TRAINED = BOTH.sel(network="trained")


def test_draws_are_averaged_within_prompts_before_the_interval():
    values = TRAINED.cosine.values[:, 1, 0, :, 4].mean(axis=1)
    row = perturbation.take_depth(BOTH).sel(network="trained", carrier="linear", noise=0.1, level=4)
    assert row["mean"].item() == pytest.approx(values.mean())
    assert row.high.item() == pytest.approx(float(mean_interval(values).high))


def test_ends_are_first_and_last_block():
    ends = perturbation.take_ends(BOTH)
    first = ends["mean"].sel(network="trained", block="first", carrier="random")
    np.testing.assert_allclose(first, TRAINED.cosine.values[:, 2, :, :, 1].mean(axis=(0, 2)))
    axes = perturbation.draw_ends(ends).axes[1]
    labels = [line.get_label() for line in axes.lines]
    drawn = axes.lines[labels.index("last block, network")].get_ydata()
    np.testing.assert_allclose(drawn, TRAINED.cosine.values[:, 0, :, :, 6].mean(axis=(0, 2)))


def test_errors_are_those_after_the_last_block():
    table = perturbation.take_error(BOTH)["mean"].to_dataframe().dropna().reset_index()
    errors = table[(table.quantity == "error") & (table.network == "trained")]
    np.testing.assert_allclose(errors["mean"], TRAINED.linear_error.values[..., 6].mean(axis=(0, 2)))
    assert set(errors.level) == {6}
    assert set(table[table.quantity == "amplification"].noise) == {0.1}
    left, right = perturbation.draw_error(perturbation.take_error(BOTH)).axes
    labels = [line.get_label() for line in left.lines]
    amplified = left.lines[labels.index("trained, linearised")].get_ydata()
    np.testing.assert_allclose(amplified, TRAINED.amplification.values[:, 1, 0].mean(axis=(0, 1)))
    np.testing.assert_allclose(right.lines[1].get_ydata(), errors["mean"])


def test_axis_label_names_kind_of_noise():
    absolute = BOTH.assign_attrs(kind="absolute")
    for both, label in ((BOTH, "noise, relative to the embedding"), (absolute, "noise, standard deviation")):
        axes = [perturbation.draw_ends(perturbation.take_ends(both)).axes[0]]
        axes.append(perturbation.draw_error(perturbation.take_error(both)).axes[1])
        assert [one.get_xlabel() for one in axes] == [label] * 2


def test_quoted_numbers_match_the_summary():
    table = perturbation.take_summary(BOTH, 1.0)
    values = TRAINED.cosine.sel(carrier="random", noise=1.0).values.mean(axis=(0, 1))
    row = table.loc["trained", "random"]
    assert row[["embedding", "first block", "last block"]].tolist() == pytest.approx(values[[0, 1, 6]].tolist())
    assert row["low"] < row["last block"] < row["high"]
    found = perturbation.numbers_of(BOTH, 1.0)
    assert (found["noise"], found["noise-smallest"], found["prompts"]) == ("1", "0.1", 5)
    assert found["first-linear-untrained"] == table.loc[("untrained", "linear"), "first block"]
    assert found["last-network-trained-high"] == table.loc[("trained", "network"), "high"]
    assert found["error-trained"] == pytest.approx(TRAINED.linear_error.values[:, 0, :, 6].mean())
    assert found["gap-trained"] == pytest.approx(
        table.loc[("trained", "network"), "last block"] - table.loc[("trained", "network"), "first block"]
    )
