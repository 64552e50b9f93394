"""Figures of the grid of vision transformers: what is drawn is what the table holds."""

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from pytest import approx

from companion.figures import vision
from companion.tables.vit_grid import NAMED_RATES, Reading, fits_by_rate
from tests.companion.figures.drawn import dots, titles, words
from tests.companion.figures.made import case

DECAYS, RATES = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2), (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
STATED = {0.0: 0.35, 0.3: 0.83}


def make_grid() -> pd.DataFrame:
    """64 models, and two further seeds of a row; accuracy follows coupling."""
    rng = np.random.default_rng(0)
    rows = [(decay, rate, seed) for decay in DECAYS for rate in RATES for seed in (range(3) if decay == 0.04 else [0])]
    table = pd.DataFrame(rows, columns=["weight_decay", "drop_path", "seed"]).assign(
        model=[f"wd{decay}-sd{rate}-seed{seed}" for decay, rate, seed in rows], data="digits", blocks=12, width=36,
        heads=3, patch=2, epochs=14, steps=224, batch=64, images=12, machine="a machine", versions="torch 1",
    )  # fmt: skip
    noise = rng.normal(size=(2, len(table)))
    for token in ("class", "patch"):
        for k in (3, 10):
            coupling = 0.06 + 0.05 * table.drop_path + 0.004 * noise[0]
            name = f"{token}.k{k}.normalized_miscoupling"
            table[name] = 1 - coupling
            table[f"{name}_low"], table[f"{name}_high"] = 1 - coupling - 0.002, 1 - coupling + 0.003
            table[f"{name}_null"], table[f"{name}_untrained"] = 0.952, 0.947
    table["test_accuracy"] = 0.96 + 2 * 0.004 * noise[0] + 0.004 * noise[1]
    table["train_accuracy"] = 0.99
    return table


def make_pairs(gain: float, n: int) -> pd.DataFrame:
    """Pairs of models; stochastic depth adds `gain` to coupling and takes a hundredth of accuracy."""
    rng = np.random.default_rng(5)
    both = pd.DataFrame({"seed": np.repeat(np.arange(n), 2), "drop_path": np.tile([0.0, 0.5], n)})
    own, noise = np.repeat(rng.normal(0, 0.05, n), 2), rng.normal(0, 0.001, (2, 2 * n))
    coupling = 0.1 + own + gain * 2 * both["drop_path"] + noise[0]
    accuracy = 0.4 + own - 0.02 * both["drop_path"] + noise[1]
    columns = {"class.k10.normalized_miscoupling": 1 - coupling, "class.k10.shared_normalized_miscoupling": 0.9}
    return both.assign(**columns, test_accuracy=accuracy, model=np.arange(2 * n).astype(str))


GRID = make_grid()


def some(n: int) -> pd.DataFrame:
    """As many settings as there are networks elsewhere: two of each, six of each, all of them."""
    few = {1: (1, 4), 2: (2, 6), 3: (0, 8)}[n]
    return GRID[GRID.weight_decay.isin(DECAYS[slice(*few)]) & GRID.drop_path.isin(RATES[slice(*few)])]


CLASS = Reading()
CASES = {
    "draw_accuracy": case(vision, "accuracy", some, CLASS, STATED, NAMED_RATES),
    "draw_accuracy_rates": (vision.draw_accuracy_rates, lambda n: vision.take_accuracy(some(n), Reading("patch"))),
    "draw_rates": case(vision, "rates", some, CLASS),
    "draw_photographs": case(vision, "photographs", some),
    "draw_pairs": case(vision, "pairs", lambda n: make_pairs(0.01, 4 * n)),
    "draw_decays": case(vision, "decays", some, CLASS),
}


def test_pairs_are_drawn_by_their_gains():
    left, right = vision.draw_pairs(vision.take_pairs(make_pairs(0.01, 8))).axes
    whole, shared, accuracy = (np.asarray(one.get_offsets())[:, 1] for one in (*left.collections, *right.collections))
    assert whole.mean() == approx(0.01, abs=1e-3) and (shared == 0).all()
    assert accuracy.mean() == approx(-1, abs=0.1)


def test_scatter_draws_models_with_line_per_rate():
    models = vision.take_accuracy(GRID, CLASS, STATED, NAMED_RATES)
    assert len(models) == 4 * 8 and set(models.drop_path) == set(NAMED_RATES) and set(models.seed) == {0}
    wanted = fits_by_rate(GRID, CLASS, STATED).set_index("drop_path").loc["0.3"]
    chosen = models[models.drop_path == 0.3][["slope", "r_squared_low", "paper"]]
    assert chosen.drop_duplicates().to_numpy().tolist() == [[wanted.slope, wanted.low, 0.83]]
    figure = vision.draw_accuracy(models)
    assert len(dots(figure.axes[0])) == 4 * 8
    labels = words(figure.subfigs[1].legends[0].get_texts())
    assert labels[0].startswith("rate 0:") and labels[0].endswith("paper 0.35") and "paper" not in labels[1]
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 2)
    first = models[models.drop_path == 0].iloc[0]
    assert_allclose(line.get_ydata(), 100 * (first.intercept + first.slope * line.get_xdata()))


def test_each_rate_and_decay_has_a_panel():
    panels = vision.draw_accuracy_rates(vision.take_accuracy(GRID, CLASS)).axes
    assert titles(panels) == [f"rate {rate:g}" for rate in RATES]
    assert [len(dots(axes)) for axes in panels] == [8] * 8
    decays = vision.take_decays(GRID, CLASS)
    panels = vision.draw_decays(decays).axes
    assert titles(panels) == [f"weight decay {decay:g}" for decay in DECAYS]
    assert_allclose(panels[4].lines[0].get_ydata(), decays[decays.weight_decay == 0.06].coupling)


def test_rate_figure_draws_seeds_and_their_mean():
    models = vision.take_rates(GRID, CLASS)
    assert len(models) == 2 * 8 * 3 and (models.seeds == 3).all()
    left, right = vision.draw_rates(models).axes
    assert titles([left, right]) == ["class token", "last patch"]
    values = 1 - GRID[GRID.weight_decay == 0.04].sort_values(["drop_path", "seed"])[CLASS.column].to_numpy()
    means, seeds, untrained, random_bases = (line.get_ydata() for line in left.lines[:4])
    assert_allclose(means, values.reshape(8, 3).mean(axis=1))
    assert_allclose(seeds, values)
    assert np.allclose(untrained, 0.053) and np.allclose(random_bases, 0.048)
