"""Scores of decoders beside their coupling: the mean over sets, and every number where it came from."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import coupling_lib as cl
from companion.figures import decoder_scores as figures
from companion.notebook.shipped import shipped_networks
from companion.tables import decoder_scores
from coupling_lib.datasets.parts import shared_part


def made_up() -> pd.DataFrame:
    """Rows of `data/decoder_scores.csv`, the second model without one of the sets."""
    tests = [f"{name} per character" for name in decoder_scores.SETS]
    own = {"gemma3-270m": ["novels", *tests, "piqa"], "other": ["novels", *tests[1:], "piqa"]}
    rows = [
        (model, test, 0.25, 0.3 + 0.1 * at + 0.05 * (model == "other"), 0.01 * (at + 1), 100)
        for model, names in own.items()
        for at, test in enumerate(names)
    ]
    table = pd.DataFrame(rows, columns=["model", "test", "chance", "value", "error", "n"])
    return table.assign(low=table["value"] - 2 * table["error"], high=table["value"] + 2 * table["error"])


def with_mean() -> pd.DataFrame:
    return pd.concat([made_up(), decoder_scores.mean_of_sets(made_up())], ignore_index=True)


def measured() -> dict:
    return shipped_networks(cl.measure_depth, "gemma3-270m", cl.load_prompts(n=12), ks=(10,))


def known() -> pd.DataFrame:
    """Coupling of one decoder whose measurement ships beside made-up scores."""
    return decoder_scores.beside_coupling({"gemma3-270m": measured()["trained"]}, with_mean(), tuple(figures.TESTS))


def test_mean_over_sets_has_independent_error_and_name():
    (found,) = decoder_scores.mean_of_sets(made_up()).to_dict("records")
    assert (found["model"], found["n"], found["value"]) == ("gemma3-270m", 500, pytest.approx(0.6))
    assert found["error"] == pytest.approx(np.hypot.reduce([0.02, 0.03, 0.04, 0.05, 0.06]) / 5)
    assert (found["high"] - found["low"]) / 2 == pytest.approx(1.96 * found["error"])
    named = decoder_scores.numbers_of(with_mean())
    assert named["decoders-needed"] == decoder_scores.models_needed(0.6) and len(named) == 10
    assert named["decoders-other-novels-value"] == pytest.approx(0.35)
    assert named["decoders-gemma3-270m-value"] == pytest.approx(0.6)
    assert named["decoders-gemma3-270m-low"] < 0.6 < named["decoders-gemma3-270m-high"]
    assert list(decoder_scores.numbers_of(pd.DataFrame())) == ["decoders-needed"]


def test_coupling_of_both_parts_stands_beside_each_score():
    table, ds, apart = known(), measured()["trained"], ~np.eye(18, dtype=bool)
    assert sorted(table["test"].unique()) == ["novels", "questions"] and len(table) == 4
    for part, one in (("whole", ds), ("traceless part", shared_part(ds))):
        expected = 1 - one.normalized_miscoupling.sel(k=10).values[:, apart].mean()
        assert table.loc[table["part"] == part, "coupling"].to_numpy() == pytest.approx(expected, abs=1e-6)
    assert decoder_scores.beside_coupling({}, made_up(), ("novels",)).empty


def test_every_point_is_drawn_where_it_was_measured():
    table = figures.take_scores(known())
    figure = figures.draw_scores(table)
    for axes, test in zip(figure.axes, ("novels", "questions"), strict=True):
        points = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "o"]
        assert points == table.loc[table["test"] == test, ["coupling", "value"]].to_numpy().tolist()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["gemma3-270m", "by chance"]
    assert figures.take_scores(pd.DataFrame()) is None


@pytest.mark.parametrize("r", [0.5, 0.6, 0.8])
def test_models_needed_reach_a_power_of_80_percent(r):
    rng, powers, needed = np.random.default_rng(0), [], decoder_scores.models_needed(r)
    for n in (needed - 3, needed):
        x = rng.standard_normal((4000, n))
        rs = scipy.stats.pearsonr(x, r * x + np.sqrt(1 - r**2) * rng.standard_normal(x.shape), axis=1)
        powers.append((rs.pvalue < 0.05).mean())
    assert powers[0] < 0.8 <= powers[1] + 0.01 and powers[1] < 0.9
