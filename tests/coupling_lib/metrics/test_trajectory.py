import math

import numpy as np
import pytest
import torch

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.trajectory import (
    block_windows,
    equidistance,
    expodistance,
    line_shape_score,
    logit_entropy,
    norms,
    step_lengths,
    window_width,
)


@pytest.fixture
def x():
    return torch.randn(13, 5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def path(*points):
    return torch.tensor(points, dtype=torch.float64)


def test_a_straight_line_scores_one_whatever_its_spacing():
    direction = torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.tensor([0.0, 0.1, 5.0, 6.0, 100.0]).double()[:, None] * direction + 3
    assert line_shape_score(x).item() == pytest.approx(1, abs=1e-12)


def test_orthogonal_steps_score_the_root_of_their_number():
    x = torch.cat([torch.zeros(1, 9), torch.eye(9).cumsum(0) * 4]).double()
    assert line_shape_score(x).item() == pytest.approx(3, abs=1e-12)


def test_line_shape_score_equals_the_recursion_of_the_paper(x):
    for token in range(5):
        tilde = x[0, token].numpy().copy()
        for depth in range(1, 13):
            step = (x[depth, token] - x[depth - 1, token]).numpy()
            tilde = tilde + step / np.sqrt((step**2).sum())
        expected = 12 / np.sqrt(((tilde - x[0, token].numpy()) ** 2).sum())
        assert line_shape_score(x)[token].item() == pytest.approx(expected, rel=1e-12)


def test_one_token_alone_scores_what_it_scores_among_others(x):
    for score in (line_shape_score, expodistance, equidistance, norms, step_lengths):
        torch.testing.assert_close(score(x[:, 2]), score(x)[..., 2], rtol=1e-13, atol=0)


def test_a_part_of_a_path_takes_its_own_number_of_steps_as_numerator(x):
    part = x[4:9]
    directions = (part[1:] - part[:-1]) / torch.linalg.vector_norm(part[1:] - part[:-1], dim=-1, keepdim=True)
    expected = 4 / torch.linalg.vector_norm(directions.sum(0), dim=-1)
    torch.testing.assert_close(line_shape_score(part), expected, rtol=1e-13, atol=0)


def test_block_windows_are_every_run_of_neighbouring_blocks_and_score_one_where_straight(x):
    windows = block_windows(x[:, 0], width=5)
    assert windows.shape == (8, 6, 16)
    for start in range(8):
        assert torch.equal(windows[start], x[start : start + 6, 0])
    straight = torch.arange(13.0).double()[:, None] ** 2 * torch.ones(3).double()
    assert [line_shape_score(part).item() for part in block_windows(straight, 11)] == pytest.approx([1, 1])


def test_a_window_of_all_blocks_scores_what_the_whole_path_scores(x):
    (whole,) = block_windows(x[:, 3], width=12)
    torch.testing.assert_close(line_shape_score(whole), line_shape_score(x)[3], rtol=1e-13, atol=0)


@pytest.mark.parametrize("width", [0, 13])
def test_block_windows_that_do_not_fit_are_refused(x, width):
    with pytest.raises(ParameterError, match="a trajectory of 13 states has windows of 1 to 12"):
        block_windows(x[:, 0], width)


def test_windows_have_the_papers_eleven_blocks_in_deep_models_and_shrink_in_shallow_ones():
    widths = {depth: window_width(depth) for depth in range(1, 41)}
    assert all(width == 11 for depth, width in widths.items() if depth >= 21)
    assert all(width % 2 == 1 and 2 * width <= depth + 1 for depth, width in widths.items() if depth >= 5)
    assert (widths[1], widths[2], widths[3], widths[12]) == (1, 2, 3, 5)
    assert window_width(12, 11) == 11


@pytest.mark.parametrize("wanted", [4, 1, -3, 13])
def test_a_window_that_is_even_too_short_or_too_long_is_refused(wanted):
    with pytest.raises(ParameterError, match=f"window is {wanted}; expected an odd number of blocks from 3 to 12"):
        window_width(12, wanted)


def test_sample_variance_is_larger_by_n_over_n_minus_one(x):
    torch.testing.assert_close(expodistance(x, correction=1), expodistance(x) * 12 / 11, rtol=1e-12, atol=0)
    torch.testing.assert_close(equidistance(x, correction=1) ** 2, equidistance(x) ** 2 * 12 / 11, rtol=1e-12, atol=0)


@pytest.mark.parametrize("score", [expodistance, equidistance])
def test_a_single_step_has_no_sample_variance(score):
    with pytest.raises(UntrustworthyResultError, match="a path of 1 step has no sample variance"):
        score(path([1.0], [3.0]), correction=1)
    assert score(path([1.0], [3.0])).item() == 0


def test_exponential_growth_has_no_expodistance_and_linear_growth_has_some():
    depth = torch.arange(1.0, 9.0, dtype=torch.float64)[:, None]
    assert expodistance((0.3 * depth).exp()).item() == pytest.approx(0, abs=1e-13)
    alpha = np.log(np.arange(2, 9) / np.arange(1, 8))
    population_variance = ((alpha - alpha.mean()) ** 2).sum() / 7
    assert expodistance(depth).item() == pytest.approx(population_variance / alpha.mean() ** 2, rel=1e-12)


def test_expodistance_sees_norms_and_not_directions(x):
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(2)).double()).Q
    torch.testing.assert_close(expodistance(100 * x @ rotation), expodistance(x), rtol=1e-8, atol=0)


def test_equidistance_is_the_coefficient_of_variation_of_the_steps(x):
    lengths = np.linalg.norm(np.diff(x.numpy(), axis=0), axis=-1)
    np.testing.assert_allclose(equidistance(x), lengths.std(axis=0) / lengths.mean(axis=0), rtol=1e-12)
    assert equidistance(path([0.0, 0.0], [3.0, 4.0], [3.0, 9.0])).item() == 0


def test_norms_and_step_lengths_are_euclidean():
    x = path([3.0, 4.0], [0.0, 0.0], [5.0, 12.0])
    assert norms(x).tolist() == [5, 0, 13]
    assert step_lengths(x).tolist() == [5, 13]


def test_a_step_of_length_zero_has_no_direction():
    with pytest.raises(UntrustworthyResultError, match="step 2 of a trajectory has length 0"):
        line_shape_score(path([0.0], [1.0], [1.0], [2.0]))


def test_a_path_that_returns_to_its_start_has_no_line_shape_score():
    triangle = path([0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)], [0.0, 0.0])
    with pytest.raises(UntrustworthyResultError, match="cancel"):
        line_shape_score(triangle)


def test_a_trajectory_that_stands_still_is_refused():
    still = torch.ones(4, 3)
    with pytest.raises(UntrustworthyResultError, match="mean step length is 0"):
        equidistance(still)
    with pytest.raises(UntrustworthyResultError, match="ends where it began"):
        expodistance(still)


def test_a_norm_that_returns_to_its_start_has_no_expodistance():
    with pytest.raises(UntrustworthyResultError, match="ends where it began"):
        expodistance(path([0.1], [0.7], [0.3], [-0.1]))


def test_a_zero_state_has_no_logarithm_of_growth():
    with pytest.raises(UntrustworthyResultError, match="all zero"):
        expodistance(path([0.0], [1.0], [2.0]))


def test_nan_states_are_refused(x):
    x[3, 1, 4] = float("nan")
    for score in (line_shape_score, expodistance, equidistance, norms, step_lengths):
        with pytest.raises(UntrustworthyResultError, match="NaN"):
            score(x)


@pytest.mark.parametrize("shape", [(5,), (1, 8)])
def test_a_shape_that_is_no_trajectory_is_refused(shape):
    with pytest.raises(ParameterError, match="at least two depths|expected 2 to 3 dimensions"):
        norms(torch.ones(shape))


def test_entropy_in_nats_of_known_distributions():
    p = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    assert logit_entropy(p.log() + 17).item() == pytest.approx(1.5 * math.log(2), rel=1e-12)
    assert logit_entropy(torch.zeros(3, 1000).double()).tolist() == pytest.approx([math.log(1000)] * 3)
    assert logit_entropy(torch.tensor([0.0, 1e4])).item() == 0


def test_half_precision_states_are_scored_in_float32():
    x = torch.tensor([[100.0], [300.0], [900.0]], dtype=torch.float16).expand(3, 64)  # squares overflow in float16
    assert norms(x).dtype == torch.float32
    assert norms(x).tolist() == [800, 2400, 7200]
