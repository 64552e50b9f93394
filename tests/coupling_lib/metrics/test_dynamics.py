"""Products of I + J and growth along directions, against loops written out in float64."""

import math

import numpy as np
import pytest
import torch
from random_numbers import check_mean, normal, seeded
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics import dynamics
from coupling_lib.metrics.dynamics import carried_states, contributions, growth, linear_part, randomised

L, D = 5, 12
close = torch.testing.assert_close
J, X = 0.3 * normal(0, L, D, D), normal(1, L + 1, D)


def carried(J: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The states that an exactly linear network gives, one block after the other."""
    states = [x]
    for matrix in J:
        states.append(states[-1] + matrix @ states[-1])
    return torch.stack(states)


def test_carried_states_and_contributions_equal_loops():
    found = carried_states(J, X)
    for start in range(L + 1):
        states, x = carried(J[start:], X[start]).numpy(), X[start:].numpy()
        sizes = np.linalg.norm(x, axis=1)
        cosine = (states * x).sum(1) / np.linalg.norm(states, axis=1) / sizes
        np.testing.assert_allclose(found.cosine[start, start:], cosine, atol=1e-12)
        np.testing.assert_allclose(found.norm_ratio[start, start:], np.linalg.norm(states, axis=1) / sizes, rtol=1e-12)
        error = np.linalg.norm(states - x, axis=1) / sizes
        np.testing.assert_allclose(found.relative_error[start, start:], error, rtol=1e-9, atol=1e-12)
        assert torch.isnan(found.cosine[start, :start]).all()
    found = contributions(J, X)
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)
    for block in range(L):
        term = carried(J[block + 1 :], X[block + 1] - X[block] - J[block] @ X[block])[-1]
        assert found[block + 1].item() == pytest.approx(float(term @ X[-1] / (X[-1] @ X[-1])), abs=1e-12)
    refused(ParameterError, r"J has shape \(5, 12, 12\) and x \(5, 12\)", carried_states, J, X[1:])


def test_linear_part_of_linear_and_homogeneous_blocks():
    assert float(linear_part(J, carried(J, X[0])).relative_error.max()) < 1e-12
    W, x0 = normal(2, D, D), normal(3, D)

    def branch(x: torch.Tensor) -> torch.Tensor:
        return W @ (x / x.norm())

    derivative = torch.autograd.functional.jacobian(branch, x0)[None]
    assert linear_part(derivative, torch.stack([x0, x0 + branch(x0)])).norm_ratio.item() < 1e-14


def test_agreement_and_growth_equal_loops_over_blocks():
    found = dynamics.agreement(torch.tensor([[0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]), torch.eye(2)[0].expand(3, 2))
    assert found.cosine.tolist() == [0, -1, 0]
    assert found.norm_ratio.tolist() == [3, 1, 0]
    assert found.relative_error.tolist() == pytest.approx([math.sqrt(10), 2, 1])
    zeros = torch.zeros(2)
    refused(UntrustworthyResultError, "norm of a state is 0", dynamics.agreement, torch.ones(2), zeros)
    U, S, _ = torch.linalg.svd(J.mean(dim=0))
    found = growth(J, X, U[:, :3], S.expand(L, D))
    close(growth(J, X, -U[:, :3], S.expand(L, D)), found)
    for k, u in enumerate(U[:, :3].T.numpy()):
        np.testing.assert_allclose(found.response[:, k], np.log(abs(carried(J, U[:, k]).numpy() @ u)), atol=1e-10)
        along = np.cumsum([0, *(math.log(abs(1 + u @ block @ u)) for block in J.numpy())])
        np.testing.assert_allclose(found.along[:, k], along, atol=1e-10)
        np.testing.assert_allclose(found.state[:, k], np.log(abs(X.numpy() @ u) / abs(X[0].numpy() @ u)), atol=1e-10)


def test_growth_under_full_coupling_opposite_vectors_and_erasure():
    Q = torch.linalg.qr(normal(4, D, D)).Q
    S = normal(5, L, D).abs().sort(dim=1, descending=True).values
    coupled = Q @ torch.diag_embed(S) @ Q.mT
    wanted = np.cumsum(np.log1p(S.numpy()[:, :4]), axis=0)
    for values in growth(coupled, carried(coupled, Q.sum(dim=1)), Q[:, :4], S):
        np.testing.assert_allclose(values, np.vstack([np.zeros(4), wanted]), atol=1e-12)
    S, one = torch.tensor([[0.5, 0.25]], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    found = growth(-torch.diag_embed(S), torch.ones(2, 2).double(), one, S)
    assert found.along[1].tolist() == found.response[1].tolist() == pytest.approx([math.log(0.5), math.log(0.75)])
    assert found.singular[1].tolist() == pytest.approx([math.log(1.5), math.log(1.25)])
    found = growth(-one[None], one, one[:, :1], torch.ones(1, 2).double())
    for values in (found.state, found.response, found.along):
        assert values[1].item() == pytest.approx(math.log(torch.finfo(torch.float64).eps))


def test_randomised_jacobians_keep_only_their_singular_values():
    turned, again = (randomised(J, seeded(4)) for _ in range(2))
    close(torch.linalg.svdvals(turned), torch.linalg.svdvals(J))
    close(turned, again)
    assert float((turned - J).norm() / J.norm()) > 1
    # Mean squared length and mean component along the start, both ways, within their Monte Carlo errors.
    few, start, generator = normal(5, 3, 8, 8), normal(6, 8), seeded(5)
    quick = dynamics.random_steps(torch.linalg.svdvals(few), start, 4000, seeded(6))
    slow = torch.stack([carried(randomised(few, generator), start)[-1] for _ in range(2000)])
    assert quick.shape == (4000, 4, 8) and torch.equal(quick[:, 0], start.expand(4000, 8))
    for summary in (lambda y: (y * y).sum(-1).log(), lambda y: y @ start):
        a, b = summary(quick[:, -1]), summary(slow)
        check_mean(a, b.mean(), b.std() / len(b) ** 0.5)
        assert float(a.std() / b.std()) == pytest.approx(1, abs=0.15)
