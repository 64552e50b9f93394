"""Principal angles against SciPy, and against angles that are known."""

import numpy as np
import pytest
import scipy.linalg
import torch
from random_numbers import normal, seeded

from coupling_lib.metrics.subspaces import principal_angles, random_angles


def test_principal_angles_equal_scipy():
    X, Y = torch.linalg.qr(normal(0, 2, 3, 12, 5)).Q
    wanted = [np.sort(scipy.linalg.subspace_angles(x.numpy(), y.numpy())) for x, y in zip(X, Y, strict=True)]
    np.testing.assert_allclose(principal_angles(X, Y), wanted, atol=1e-12)
    X = torch.eye(6, 2, dtype=torch.float64)
    for angle in [1e-7, 1e-3, 0.7, 1.5]:
        Y = X.clone()
        Y[1, 1], Y[2, 1] = np.cos(angle), np.sin(angle)
        torch.testing.assert_close(principal_angles(X, Y), torch.tensor([0, angle]).double(), rtol=1e-6, atol=0)


def test_random_angles_have_the_expected_mean_cosine():
    """E ||X^T Y||_F^2 = K^2 / d, so that the mean squared cosine is K / d."""
    angles = random_angles(30, 6, 400, seeded(0))
    assert angles.shape == (400, 6) and bool((angles.diff(dim=1) >= 0).all())
    assert float(angles.cos().square().mean()) == pytest.approx(6 / 30, rel=0.03)
