"""Rivals of coupling: what is asked of them is told from made-up models of which the answer is known."""

import numpy as np
import pandas as pd
import pytest

from companion.tables import effects, rivals


def made_up(n: int = 60) -> pd.DataFrame:
    """Two sets; the score follows alpha, which coupling follows, in the first; coupling itself in the second."""
    rng, tables = np.random.default_rng(2), []
    for name in (rivals.SUITE, rivals.PHOTOGRAPHS):
        values = pd.DataFrame(rng.normal(size=(len(rivals.LABELS), n)).T, columns=[*rivals.LABELS])
        coupling, noise = rng.normal(size=(2, n))
        if name == rivals.SUITE:
            made = values.assign(coupling=values["alpha"] + 0.3 * coupling, score=values["alpha"] + 0.3 * noise)
        else:
            made = values.assign(coupling=coupling, score=coupling + 0.3 * noise, width=36)
        tables.append(made.assign(set=name))
    return pd.concat(tables, ignore_index=True)


def test_confounding_rival_removes_the_relation():
    found = rivals.answers(made_up())
    assert found["each alone", "suite, alpha"].low > 0.8
    for through in (found["coupling beside each", "suite, alpha"], found["coupling beside all", "suite"]):
        assert through.low < 0 < through.high
    assert found["coupling beside each", "suite, stable rank"].low > 0.7
    assert found["coupling beside all", "photographs"].low > 0.7
    table = effects.tabulated(found)
    assert "photographs, width" not in set(table["label"]) and "suite, width" in set(table["label"])
    counts = {"coupling beside all": 2, "coupling beside each": 13, "each alone": 13}
    assert table.groupby("question").size().to_dict() == counts


def test_every_model_has_coupling_and_score():
    table = rivals.rivals()
    assert len(table) == 96 and table.drop(columns=["predictions_sha256", "cpu"]).notna().all(axis=None)
    of_suite = table[table["set"] == "suite"]
    assert np.corrcoef(of_suite["coupling"], of_suite["score"])[0, 1] == pytest.approx(-0.495, abs=0.01)
