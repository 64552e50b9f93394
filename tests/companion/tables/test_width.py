"""Width at fixed quality: what goes with width among equally good models is told from what goes with quality."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from claims import experiments

from companion.tables import width
from companion.tables.statistics import uncoupled
from companion.training import width as recipes
from coupling_lib.datasets.statistics import linear_fit

EXPERIMENT = experiments()["width"]
K10 = "normalized_miscoupling_k10"
TENTH = width.READINGS["ktenth"]


def made_up(noise: float = 0.005) -> pd.DataFrame:
    """Models whose coupling of figure 1a is the curve of random directions, and at fixed K a matter of loss alone."""
    rng, rows = np.random.default_rng(0), []
    for (name, recipe), step in product(recipes.GRID.items(), (0, 16, 289, 920)):
        # Wider models are better at equal steps.
        loss = 7 - 0.3 * np.log1p(step) - 0.003 * recipe.width * (step > 0)
        k = round(0.1 * recipe.width)
        # By chance as well as measured, a tenth of the width has less coupling the wider a model is.
        curve, by_chance, (a, b, c, d) = float(uncoupled(k)), 1 - 2 / recipe.width**0.5, rng.normal(0, noise, 4)
        row = {"model": name, "step": step, "width": recipe.width, "validation_loss": loss}
        row |= {"tokens": 4096 * step, "k_tenth": k, f"{TENTH}_null": by_chance, width.FIGURE_1A: 1 - curve - a}
        row |= {K10: 1 - 0.05 * loss + b, f"shared_{K10}": 0.8 + c}
        row |= dict.fromkeys((TENTH, "shared_normalized_miscoupling_ktenth"), by_chance * (0.8 + d))
        for reading in width.READINGS.values():
            null = 1 - curve if reading == width.FIGURE_1A else by_chance if "ktenth" in reading else 0.95
            row[f"{reading}_relative"] = 1 - row[reading] / null
        rows.append(row)
    return pd.DataFrame(rows).assign(score=lambda table: -table["validation_loss"])


TABLE, SHIPPED = made_up(), width.width()


def test_width_curve_is_found_at_equal_loss():
    found = width.estimates(TABLE, EXPERIMENT).set_index("reading")
    assert found.loc[width.FIGURE_1A, "low"] > 0.8 and (found["n"] == 10).all()
    models = width.equally_good(TABLE, width.FIGURE_1A)
    assert linear_fit(models["random"], models["coupling"]).slope == pytest.approx(1.0, abs=0.1)
    for reading in (K10, f"shared_{K10}"):
        assert found.loc[reading, "low"] < 0 < found.loc[reading, "high"]
    found = width.equally_good(made_up(noise=0.0), K10)
    # The curve is that of the K measured, which is rounded: 5 at a width of 48.
    assert found.loc[found["width"] == 48, "random"].tolist() == pytest.approx([1 - 5**-0.5] * 2)
    assert found["loss"].nunique() == 1 and len(found) == 10
    assert found["coupling"].to_numpy() == pytest.approx(0.05 * found["loss"].iloc[0], abs=1e-9)


def test_recipes_differ_only_in_width_and_seed():
    grid = recipes.GRID.values()
    assert len(grid) == 10 and {recipe.width for recipe in grid} == set(recipes.WIDTHS)
    assert all(recipe.width % recipe.heads == 0 and recipe.mlp_width == 4 * recipe.width for recipe in grid)
    kept = {(recipe.blocks, recipe.steps, recipe.learning_rate, recipe.corrupted) for recipe in grid}
    assert kept == {(8, 920, 2e-3, 0.0)}
    assert set(SHIPPED["model"]) == set(recipes.GRID) and len(SHIPPED) == 10 * (1 + len(recipes.STEPS))
    assert {question["reading"] for question in EXPERIMENT["question"]} < set(width.READINGS.values())


def test_quoted_numbers_are_of_all_models():
    found, models = width.numbers_of(TABLE), width.equally_good(TABLE, K10)
    widest = models.loc[models["width"] == 192, "coupling"].mean()
    expected = {
        "models": 10, "ktenth-n": 10, "widths": 5, "ktenth-over-widths-n": 5, "loss": models["loss"].iloc[0],
        "ktenth-chance-narrowest": 2 / 48**0.5, "k10-widest": widest, "on-diagonal-widest": 1 - (1 - widest) ** 2,
    }  # fmt: skip
    assert {name: found[f"width-{name}"] for name in expected} == pytest.approx(expected)
    # What falls by chance alone is no relation, once its value by chance is taken into account.
    assert found["width-ktenth-high"] < 0 and found["width-figure-1a-low"] > 0.8
    assert found["width-ktenth-relative-low"] < 0 < found["width-ktenth-relative-high"]
    assert found["width-ktenth-relative-widest"] == pytest.approx(0.2, abs=0.01)
    # A wider model is as good sooner; before training no loss tells models apart, and the curve is there.
    assert found["width-tokens-widest"] < found["width-tokens-narrowest"] <= 4096 * 920
    assert found["width-figure-1a-step-0-low"] > 0.8
    assert width.numbers_of(TABLE.query("model != 'w48-seed1'")) == {}


def test_shipped_table_gives_the_quoted_correlations():
    found, at = width.relations(SHIPPED), width.equally_good(SHIPPED, TENTH)
    expected = {
        "k10-relative": (0.93, 0.66, 0.99), "ktenth": (-0.74, -0.94, -0.19), "ktenth-relative": (0.07, -0.71, 0.77),
        "shared-ktenth-relative": (-0.01, -0.76, 0.76),
        "ktenth-over-widths": (-0.74, -0.96, 0.06), "ktenth-relative-over-widths": (0.07, -0.78, 0.83),
    }  # fmt: skip
    for name, ends in expected.items():
        assert found[name][:3] == pytest.approx(ends, abs=0.006), name
    slow = 1 - (1 - at["coupling"]) / at["width"].map(SHIPPED.groupby("width")[f"{TENTH}_null"].first())
    assert found["ktenth-relative"].value == pytest.approx(slow.corr(np.log(at["width"])), abs=1e-3)
    # Before training, too, the reading of figure 1a has the curve: it is arithmetic.
    assert found["figure-1a-step-0-over-widths"].value > 0.98
    # Five values show no correlation but a strong one.
    assert width.numbers_of(SHIPPED)["width-ktenth-relative-over-widths-seen"] == pytest.approx(0.98, abs=0.005)
