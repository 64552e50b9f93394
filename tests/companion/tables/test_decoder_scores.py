"""Scores of decoders beside their coupling: the mean over sets, and every number where it came from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import coupling_lib as cl
from companion.figures import decoder_scores as figures
from companion.notebook.shipped import shipped_networks
from companion.tables import decoder_scores
from coupling_lib.datasets.parts import shared_part


def made_up(models: tuple[str, ...] = ("gemma3-270m", "other")) -> pd.DataFrame:
    """Rows of `data/decoder_scores.csv`, the second model without one of the sets."""
    rows = []
    for place, model in enumerate(models):
        tests = ["novels", *(f"{name} per character" for name in decoder_scores.SETS[place:]), "piqa"]
        for at, test in enumerate(tests):
            value, error = 0.3 + 0.1 * at + 0.05 * place, 0.01 * (at + 1)
            rows.append({"model": model, "test": test, "chance": 0.25, "value": value, "error": error, "n": 100})
    table = pd.DataFrame(rows)
    return table.assign(low=table["value"] - 2 * table["error"], high=table["value"] + 2 * table["error"])


def known() -> pd.DataFrame:
    """Coupling of one decoder whose measurement ships beside made-up scores."""
    networks = shipped_networks(cl.measure_depth, "gemma3-270m", cl.load_prompts(n=12), ks=(10,))
    scores = made_up()
    every = pd.concat([scores, decoder_scores.mean_of_sets(scores)], ignore_index=True)
    return decoder_scores.beside_coupling({"gemma3-270m": networks["trained"]}, every, tuple(figures.TESTS))


def test_mean_over_sets_has_error_of_independent_sets():
    (found,) = decoder_scores.mean_of_sets(made_up()).to_dict("records")
    assert found["model"] == "gemma3-270m" and found["n"] == 500
    assert found["value"] == pytest.approx(np.mean([0.4, 0.5, 0.6, 0.7, 0.8]))
    assert found["error"] == pytest.approx(np.sqrt(sum(x**2 for x in (0.02, 0.03, 0.04, 0.05, 0.06))) / 5)
    assert (found["high"] - found["low"]) / 2 == pytest.approx(1.96 * found["error"])


def test_coupling_of_both_parts_stands_beside_each_score():
    table = known()
    assert sorted(table["test"].unique()) == ["novels", "questions"] and len(table) == 4
    ds = shipped_networks(cl.measure_depth, "gemma3-270m", cl.load_prompts(n=12), ks=(10,))["trained"]
    apart = ~np.eye(18, dtype=bool)
    for part, one in (("whole", ds), ("traceless part", shared_part(ds))):
        expected = 1 - one.normalized_miscoupling.sel(k=10).values[:, apart].mean()
        assert table.loc[table["part"] == part, "coupling"].to_numpy() == pytest.approx(expected, abs=1e-6)
    assert decoder_scores.beside_coupling({}, made_up(), ("novels",)).empty


def test_every_point_is_drawn_where_it_was_measured():
    table = figures.take_scores(known())
    figure = figures.draw_scores(table)
    for axes, test in zip(figure.axes, ("novels", "questions"), strict=True):
        own = table[table["test"] == test]
        points = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "o"]
        assert points == own[["coupling", "value"]].to_numpy().tolist()
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["gemma3-270m", "by chance"]
    assert figures.take_scores(pd.DataFrame()) is None


@pytest.mark.parametrize("r", [0.5, 0.6, 0.8])
def test_models_needed_reach_a_power_of_80_percent(r):
    rng = np.random.default_rng(0)
    powers = []
    for n in (decoder_scores.models_needed(r) - 3, decoder_scores.models_needed(r)):
        x = rng.standard_normal((4000, n))
        y = r * x + np.sqrt(1 - r**2) * rng.standard_normal(x.shape)
        found = [(one - one.mean(1, keepdims=True)) / one.std(1, keepdims=True) for one in (x, y)]
        rs = (found[0] * found[1]).mean(1)
        powers.append((2 * scipy.stats.t.sf(abs(rs) * np.sqrt((n - 2) / (1 - rs**2)), n - 2) < 0.05).mean())
    assert powers[0] < 0.8 <= powers[1] + 0.01 and powers[1] < 0.9


def test_numbers_are_means_of_models_with_all_sets():
    scores = made_up()
    named = decoder_scores.numbers_of(pd.concat([scores, decoder_scores.mean_of_sets(scores)], ignore_index=True))
    assert named["decoders-needed"] == decoder_scores.models_needed(0.6) and len(named) == 10
    assert named["decoders-other-novels-value"] == pytest.approx(0.35)
    assert named["decoders-gemma3-270m-value"] == pytest.approx(0.6)
    assert named["decoders-gemma3-270m-low"] < 0.6 < named["decoders-gemma3-270m-high"]
    assert list(decoder_scores.numbers_of(pd.DataFrame())) == ["decoders-needed"]
