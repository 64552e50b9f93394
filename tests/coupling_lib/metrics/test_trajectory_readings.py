"""Readings of the trajectory scores: every combination of states and formula, written out by hand."""

import math

import numpy as np
import pytest
import torch

from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.metrics.trajectory import (
    READINGS,
    STATES,
    expodistance,
    line_shape_score,
    measure_readings,
    score_or_nan,
)


@pytest.fixture
def x():
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def by_hand(states: np.ndarray) -> list[float]:
    steps = np.diff(states, axis=0)
    lengths = np.sqrt((steps**2).sum(1))
    alpha = np.diff(np.log(np.sqrt((states**2).sum(1))))
    n = len(steps)
    variance, spread = ((alpha - alpha.mean()) ** 2).sum(), ((lengths - lengths.mean()) ** 2).sum()
    return [
        n / np.sqrt(((steps / lengths[:, None]).sum(0) ** 2).sum()),
        variance / n / alpha.mean() ** 2,
        variance / (n - 1) / alpha.mean() ** 2,
        math.sqrt(variance / n) / abs(alpha.mean()),
        math.sqrt(spread / n) / lengths.mean(),
        math.sqrt(spread / (n - 1)) / lengths.mean(),
        spread / n / lengths.mean() ** 2,
    ]


def test_every_reading_is_its_formula_on_its_states(x):
    normed = x[-1] / x[-1].norm()
    found = measure_readings(x, normed)
    assert found.shape == (len(STATES), len(READINGS))
    a, end = x.numpy(), normed.numpy()[None]
    paths = {
        "default": a,
        "without embedding": a[1:],
        "normed end": np.concatenate([a[:-1], end]),
        "both": np.concatenate([a[1:-1], end]),
    }
    assert list(paths) == list(STATES)
    np.testing.assert_allclose(found.numpy(), [by_hand(path) for path in paths.values()], rtol=1e-10)


def test_readings_that_need_an_unknown_norm_are_missing_and_only_those(x):
    missing = measure_readings(x, None).isnan().all(dim=1)
    assert dict(zip(STATES, missing.tolist(), strict=True)) == {
        "default": False, "without embedding": False, "normed end": True, "both": True,
    }  # fmt: skip
    assert measure_readings(x, None)[:2].isfinite().all()


def test_a_score_that_does_not_exist_is_nan_and_a_state_that_is_nan_is_refused(x):
    assert math.isnan(score_or_nan(expodistance, torch.tensor([[0.1], [0.7], [-0.1]])))
    assert math.isnan(score_or_nan(line_shape_score, torch.ones(3, 2)))
    assert math.isnan(score_or_nan(line_shape_score, torch.ones(1, 2)))
    assert score_or_nan(line_shape_score, x) == pytest.approx(float(line_shape_score(x)))
    x[2, 3] = math.nan
    with pytest.raises(UntrustworthyResultError, match="NaN"):
        score_or_nan(expodistance, x)


def test_a_model_of_two_blocks_has_readings_without_embedding_but_no_sample_variance_of_one_step(x):
    found = measure_readings(x[:3], None)[list(STATES).index("without embedding")]
    missing = [name for name, value in zip(READINGS, found.tolist(), strict=True) if math.isnan(value)]
    assert missing == ["expodistance_sample", "equidistance_sample"]
