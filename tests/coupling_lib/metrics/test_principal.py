"""Principal components of token paths, against an eigenvalue problem written out."""

import numpy as np
import pytest
import torch

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.trajectory import principal_paths


@pytest.fixture
def x():
    return torch.randn(5, 9, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_coordinates_are_projections_on_the_eigenvectors_of_the_last_states_covariance(x):
    found = principal_paths(x, 3)
    last = x[-1].numpy()
    centred = last - last.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    axes = vectors[:, ::-1][:, :3]
    expected = (x.numpy() - last.mean(0)) @ axes
    np.testing.assert_allclose(np.abs(found.coordinates.numpy()), np.abs(expected), atol=1e-10)
    np.testing.assert_allclose(found.share.numpy(), values[::-1][:3] / values.sum(), rtol=1e-10)


def test_components_depend_on_the_last_states_alone(x):
    changed = x.clone()
    changed[1:4] *= 7
    torch.testing.assert_close(principal_paths(changed).coordinates[[0, -1]], principal_paths(x).coordinates[[0, -1]])


def test_the_last_token_ends_on_the_positive_side_whatever_the_sign_of_the_states(x):
    for states in (x, -x):
        assert (principal_paths(states, 4).coordinates[-1, -1] > 0).all()


@pytest.mark.parametrize("shape", [(5, 2, 12), (5, 9, 1), (9, 12)])
def test_too_few_tokens_or_dimensions_are_refused(shape):
    with pytest.raises(ParameterError, match="2 principal components need"):
        principal_paths(torch.ones(shape))


def test_nan_states_are_refused(x):
    x[2, 3, 4] = float("nan")
    with pytest.raises(UntrustworthyResultError, match="NaN"):
        principal_paths(x)
