"""Products of I + J and growth along directions, against loops written out in float64."""

import math

import numpy as np
import pytest
import torch
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.dynamics import (
    agreement,
    carried_states,
    contributions,
    growth,
    linear_part,
    random_steps,
    randomised,
)

L, D = 5, 12


@pytest.fixture
def system() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    J = 0.3 * torch.randn(L, D, D, generator=generator, dtype=torch.float64)
    return J, torch.randn(L + 1, D, generator=generator, dtype=torch.float64)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_carried_states_and_contributions_equal_loops(system):
    J, x = (part.numpy() for part in system)
    found = carried_states(*system)
    for start in range(L + 1):
        state = x[start]
        for end in range(start, L + 1):
            if end > start:
                state = (np.eye(D) + J[end - 1]) @ state
            assert found.cosine[start, end].item() == pytest.approx(cosine(state, x[end]), abs=1e-12)
            ratio = np.linalg.norm(state) / np.linalg.norm(x[end])
            assert found.norm_ratio[start, end].item() == pytest.approx(ratio, rel=1e-12)
            error = np.linalg.norm(state - x[end]) / np.linalg.norm(x[end])
            assert found.relative_error[start, end].item() == pytest.approx(error, rel=1e-9, abs=1e-12)
        assert torch.isnan(found.cosine[start, :start]).all()
    found = contributions(*system)
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)
    for block in range(L):
        term = x[block + 1] - x[block] - J[block] @ x[block]
        for later in J[block + 1 :]:
            term = term + later @ term
        assert found[block + 1].item() == pytest.approx(term @ x[-1] / (x[-1] @ x[-1]), abs=1e-12)
    message = r"J has shape \(5, 12, 12\) and x \(5, 12\)"
    refused(ParameterError, message, carried_states, system[0], system[1][1:])
    J, x = system
    states = [x[0]]
    for matrix in J:
        states.append(states[-1] + matrix @ states[-1])
    x = torch.stack(states)
    upper = torch.triu(torch.ones(L + 1, L + 1, dtype=torch.bool))
    torch.testing.assert_close(carried_states(J, x).cosine[upper], torch.ones(int(upper.sum())).double())
    assert float(linear_part(J, x).relative_error.max()) < 1e-12
    wanted = torch.zeros(L + 1, dtype=torch.float64)
    wanted[0] = 1
    torch.testing.assert_close(contributions(J, x), wanted)
    W = torch.randn(D, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x0 = torch.randn(D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def branch(x: torch.Tensor) -> torch.Tensor:
        return W @ (x / x.norm())

    J = torch.autograd.functional.jacobian(branch, x0)[None]
    x = torch.stack([x0, x0 + branch(x0)])
    assert linear_part(J, x).norm_ratio.item() < 1e-14
    torch.testing.assert_close(contributions(J, x), torch.stack([x0 @ x[1], branch(x0) @ x[1]]) / (x[1] @ x[1]))


def test_agreement_and_growth_equal_loops_over_blocks(system):
    found = agreement(torch.tensor([[0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]), torch.tensor([1.0, 0.0]).expand(3, 2))
    assert found.cosine.tolist() == [0, -1, 0]
    assert found.norm_ratio.tolist() == [3, 1, 0]
    assert found.relative_error.tolist() == pytest.approx([math.sqrt(10), 2, 1])
    refused(UntrustworthyResultError, "norm of a state is 0", agreement, torch.ones(2), torch.zeros(2))
    J, x = system
    U, S, _ = torch.linalg.svd(J.mean(dim=0))
    found = growth(J, x, U[:, :3], S.expand(L, D))
    flipped = growth(J, x, -U[:, :3], S.expand(L, D))
    for ours, other in zip(found, flipped, strict=True):
        torch.testing.assert_close(ours, other)
    for k in range(3):
        u, carried, along = U[:, k].numpy(), U[:, k].numpy(), 0.0
        for block in range(L):
            carried = carried + J[block].numpy() @ carried
            along += math.log(abs(1 + u @ J[block].numpy() @ u))
            assert found.response[block + 1, k].item() == pytest.approx(math.log(abs(u @ carried)), abs=1e-10)
            assert found.along[block + 1, k].item() == pytest.approx(along, abs=1e-10)
            state = math.log(abs(u @ x[block + 1].numpy()) / abs(u @ x[0].numpy()))
            assert found.state[block + 1, k].item() == pytest.approx(state, abs=1e-10)


def test_growth_under_full_coupling_opposite_vectors_and_erasure():
    generator = torch.Generator().manual_seed(3)
    Q = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64)).Q
    S = torch.rand(L, D, generator=generator, dtype=torch.float64).sort(dim=1, descending=True).values
    J = Q @ torch.diag_embed(S) @ Q.mT
    x = [Q.sum(dim=1)]
    for matrix in J:
        x.append(x[-1] + matrix @ x[-1])
    found = growth(J, torch.stack(x), Q[:, :4], S)
    wanted = np.cumsum(np.log1p(S.numpy()[:, :4]), axis=0)
    for values in found:
        np.testing.assert_allclose(values, np.vstack([np.zeros(4), wanted]), atol=1e-12)
    S = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    J, x = -torch.diag_embed(S), torch.ones(2, 2, dtype=torch.float64)
    found = growth(J, x, torch.eye(2).double(), S)
    assert found.along[1].tolist() == found.response[1].tolist() == pytest.approx([math.log(0.5), math.log(0.75)])
    assert found.singular[1].tolist() == pytest.approx([math.log(1.5), math.log(1.25)])
    J, x = -torch.eye(2, dtype=torch.float64)[None], torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = growth(J, x, torch.eye(2).double()[:, :1], torch.ones(1, 2).double())
    for values in (found.state, found.response, found.along):
        assert values[1].item() == pytest.approx(math.log(torch.finfo(torch.float64).eps))


def test_randomised_jacobians_keep_only_their_singular_values(system):
    J, _ = system
    turned = randomised(J, torch.Generator().manual_seed(4))
    torch.testing.assert_close(torch.linalg.svdvals(turned), torch.linalg.svdvals(J))
    torch.testing.assert_close(turned, randomised(J, torch.Generator().manual_seed(4)))
    assert float((turned - J).norm() / J.norm()) > 1
    # Mean squared length and mean component along the start, both ways, within their Monte Carlo errors.
    generator = torch.Generator().manual_seed(5)
    J = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64)
    start = torch.randn(8, generator=generator, dtype=torch.float64)
    quick = random_steps(torch.linalg.svdvals(J), start, 4000, torch.Generator().manual_seed(6))
    ends = []
    for _ in range(2000):
        y = start
        for matrix in randomised(J, generator):
            y = y + matrix @ y
        ends.append(y)
    slow = torch.stack(ends)
    assert quick.shape == (4000, 4, 8) and torch.equal(quick[:, 0], start.expand(4000, 8))
    for summary in (lambda y: (y * y).sum(-1).log(), lambda y: y @ start):
        a, b = summary(quick[:, -1]), summary(slow)
        error = math.sqrt(float(a.var()) / len(a) + float(b.var()) / len(b))
        assert abs(float(a.mean() - b.mean())) < 4 * error
        assert float(a.std() / b.std()) == pytest.approx(1, abs=0.15)
