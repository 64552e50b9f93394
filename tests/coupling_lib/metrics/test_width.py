"""The curve of width alone, against its definition and against the null of the normalisation that it stands for."""

import numpy as np
import pytest
import torch

from coupling_lib.metrics.nulls import closed_form_null
from coupling_lib.metrics.statistics import beyond_width, width_curve


@pytest.mark.parametrize("d", [96, 768, 1600, 4096])
def test_the_curve_is_one_minus_the_inverse_root_of_a_tenth_of_the_width_rounded_down(d):
    assert width_curve(d) == pytest.approx(1 - 1 / int(0.1 * d) ** 0.5, rel=1e-12)


@pytest.mark.parametrize("d", [768, 2048, 4096])
def test_the_curve_is_close_to_the_released_trace_without_coupling_for_a_flat_spectrum(d):
    null = closed_form_null("released_trace", torch.ones(d, dtype=torch.float64), d, int(0.1 * d)).item()
    assert width_curve(d) == pytest.approx(1 - null, abs=0.003)


def test_what_is_left_beyond_width_is_one_on_the_curve_and_less_with_coupling():
    d = np.array([500, 1000, 4000])
    np.testing.assert_allclose(beyond_width(width_curve(d), d), 1)
    assert (beyond_width(width_curve(d) + 0.01, d) < 1).all()


def test_a_width_below_ten_still_has_one_vector():
    assert width_curve(5) == 0
