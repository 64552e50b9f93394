import math

import numpy as np
import pytest
import torch
from random_numbers import normal
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics import trajectory
from coupling_lib.metrics.trajectory import equidistance, expodistance, line_shape_score, norms, principal_paths

X = normal(0, 13, 5, 16)
ALONE = X[:8, 0]
SCORES = (line_shape_score, expodistance, equidistance)


def path(*points):
    return torch.tensor(points, dtype=torch.float64)


def test_scores_of_a_batch_are_those_of_paths():
    for score in (*SCORES, norms, trajectory.step_lengths):
        alone = torch.stack([score(X[:, token]) for token in range(5)], dim=-1)
        torch.testing.assert_close(score(X), alone, rtol=1e-13, atol=0)


def test_block_windows_are_all_runs_of_blocks():
    windows = trajectory.block_windows(X[:, 0], width=5)
    assert torch.equal(windows, torch.stack([X[start : start + 6, 0] for start in range(8)]))
    straight = torch.arange(13.0).double()[:, None] ** 2 * torch.ones(3).double()
    assert [line_shape_score(part).item() for part in trajectory.block_windows(straight, 11)] == pytest.approx([1, 1])
    widths = {depth: trajectory.window_width(depth) for depth in range(1, 41)}
    assert all(width == 11 for depth, width in widths.items() if depth >= 21)
    assert all(width % 2 == 1 and 2 * width <= depth + 1 for depth, width in widths.items() if depth >= 5)
    assert (widths[1], widths[2], widths[3], widths[12]) == (1, 2, 3, 5)
    assert (trajectory.window_width(12, 11), trajectory.window_width(13, 13)) == (11, 13)


def test_lengths_are_euclidean_and_entropies_in_nats():
    x = path([3.0, 4.0], [0.0, 0.0], [5.0, 12.0])
    assert norms(x).tolist() == [5, 0, 13]
    assert trajectory.step_lengths(x).tolist() == [5, 13]
    half = torch.tensor([[100.0], [300.0], [900.0]], dtype=torch.float16).expand(3, 64)  # squares overflow in float16
    assert norms(half).dtype == torch.float32
    assert norms(half).tolist() == [800, 2400, 7200]
    assert expodistance(path([1.0], [3.0])).item() == equidistance(path([1.0], [3.0])).item() == 0
    p = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    assert trajectory.logit_entropy(p.log() + 17).item() == pytest.approx(1.5 * math.log(2), rel=1e-12)
    assert trajectory.logit_entropy(torch.zeros(3, 1000).double()).tolist() == pytest.approx([math.log(1000)] * 3)
    assert trajectory.logit_entropy(torch.tensor([0.0, 1e4])).item() == 0


WITHOUT_SCORE = [
    ("step 2 of a trajectory has length 0", line_shape_score, path([0], [1], [1], [2])),
    ("cancel", line_shape_score, path([0, 0], [1, 0], [0.5, math.sqrt(0.75)], [0, 0])),
    ("mean step length is 0", equidistance, torch.ones(4, 2)),
    ("ends where it began", expodistance, torch.ones(4, 2)),
    ("ends where it began", expodistance, path([0.1], [0.7], [0.3], [-0.1])),
    ("all zero", expodistance, path([0], [1], [2])),
    *(("a path of 1 step has no sample variance", score, path([1], [3]), 1) for score in (expodistance, equidistance)),
    *(("NaN", score, path([0], [math.nan], [2])) for score in (*SCORES, norms, trajectory.step_lengths)),
    ("NaN", principal_paths, path([0, 1, math.nan]).expand(4, 5, 3)),
]
WINDOW = "window is {}; expected an odd number of blocks from 3 to 12"
IMPOSSIBLE = [
    *(("at least two depths|expected 2 to 3 dimensions", norms, torch.ones(shape)) for shape in ((5,), (1, 8))),
    *(("2 principal components need", principal_paths, torch.ones(n)) for n in ((5, 2, 12), (5, 9, 1), (9, 12))),
    *((WINDOW.format(width), trajectory.window_width, 12, width) for width in (4, 1, -3, 13)),
]
REFUSED = [(UntrustworthyResultError, WITHOUT_SCORE), (ParameterError, IMPOSSIBLE)]


@pytest.mark.parametrize("given", [(error, *row) for error, rows in REFUSED for row in rows])
def test_paths_and_windows_without_a_score_are_refused(given):
    refused(*given)


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


def test_every_score_is_its_formula_on_its_states():
    normed = ALONE[-1] / ALONE[-1].norm()
    a, end = ALONE.numpy(), normed.numpy()[None]
    paths = {
        "default": a,
        "without embedding": a[1:],
        "normed end": np.concatenate([a[:-1], end]),
        "both": np.concatenate([a[1:-1], end]),
    }
    assert list(paths) == list(trajectory.STATES)
    np.testing.assert_allclose(
        trajectory.score_all(ALONE, normed), [by_hand(path) for path in paths.values()], rtol=1e-10
    )


def test_scores_that_do_not_exist_are_missing():
    found = trajectory.score_all(ALONE, None).isnan()
    assert found.all(dim=1).tolist() == [False, False, True, True] and not found[:2].any()
    found = trajectory.score_all(ALONE[:3], None)[list(trajectory.STATES).index("without embedding")].isnan().tolist()
    missing = [name for name, nan in zip(trajectory.FORMULAS, found, strict=True) if nan]
    assert missing == ["expodistance_sample", "equidistance_sample"]
    assert math.isnan(trajectory.score_or_nan(expodistance, torch.tensor([[0.1], [0.7], [-0.1]])))
    assert math.isnan(trajectory.score_or_nan(line_shape_score, torch.ones(3, 2)))
    assert math.isnan(trajectory.score_or_nan(line_shape_score, torch.ones(1, 2)))
    assert trajectory.score_or_nan(line_shape_score, ALONE) == pytest.approx(float(line_shape_score(ALONE)))
    refused(
        UntrustworthyResultError, "NaN", trajectory.score_or_nan, expodistance, torch.cat([ALONE, ALONE[:1] * math.nan])
    )


def test_coordinates_are_projections_on_the_last_states_eigenvectors():
    found = principal_paths(X, 3)
    last = X[-1].numpy()
    centred = last - last.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    expected = (X.numpy() - last.mean(0)) @ vectors[:, ::-1][:, :3]
    np.testing.assert_allclose(np.abs(found.coordinates.numpy()), np.abs(expected), atol=1e-10)
    np.testing.assert_allclose(found.share.numpy(), values[::-1][:3] / values.sum(), rtol=1e-10)
    changed = X.clone()
    changed[1:4] *= 7  # which no component depends on
    torch.testing.assert_close(principal_paths(changed).coordinates[[0, -1]], principal_paths(X).coordinates[[0, -1]])
    for states in (X, -X):
        assert (principal_paths(states, 4).coordinates[-1, -1] > 0).all()
