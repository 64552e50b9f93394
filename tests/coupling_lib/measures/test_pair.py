"""Coupling of one pair beside its value by chance: against whole matrices turned by whole rotations."""

import math

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.stats import ortho_group

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.metrics.nulls import gaussian_miscoupling

D, K = 20, 4


def reference(J1: np.ndarray, J2: np.ndarray, k: int = K) -> float:
    """Coupling of two matrices, written out."""
    U, _, Vh = np.linalg.svd(J2)
    A = U[:, :k].T @ J1 @ Vh[:k].T
    return 1 - np.linalg.norm(A - np.diag(np.diag(A))) / np.linalg.norm(A)


def symmetric(d: int, seed: int) -> torch.Tensor:
    G = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    G = G + G.T
    return G - torch.eye(d) * G.trace() / d


@pytest.fixture(scope="module")
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    # A trace and a symmetric part, so that conjugation leaves more than random bases do.
    G = torch.randn(2, D, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return G[0] + 2 * torch.eye(D), G[1] + G[1].T - 3 * torch.eye(D)


def test_nulls_of_a_pair_match_explicit_rotations(pair):
    J1, J2 = (J.numpy() for J in pair)
    found, rng = cl.coupling(*pair, k=K), np.random.default_rng(0)
    assert found.coupling == pytest.approx(reference(J1, J2), abs=1e-10)
    Q, R = (ortho_group.rvs(D, 1000, random_state=rng) for _ in range(2))
    turned = np.array([reference(J1, q @ J2 @ q.T) for q in Q])
    apart = np.array([reference(J1, q @ J2 @ r) for q, r in zip(Q, R, strict=True)])
    assert found.conjugated == pytest.approx(turned.mean(), abs=4 * turned.std() * math.hypot(1 / 22, 1 / 32))
    assert found.by_chance == pytest.approx(apart.mean(), abs=4 * apart.std() / 32)
    assert found.conjugated_error == pytest.approx(turned.std(), rel=0.15)
    assert found.error == pytest.approx(apart.std(), rel=0.15)
    assert found.conjugated > found.by_chance + 0.05


def test_independent_symmetric_matrices_couple_at_conjugation_null():
    # About 1 - sqrt(1 - 2 / (K + 1)) = .095 at K = 10, where random bases give .052.
    pairs = [cl.coupling(symmetric(96, 2 * i), symmetric(96, 2 * i + 1), k=10, seed=i) for i in range(24)]
    coupling, by_chance, _, turned, turned_error = np.array(pairs).T
    assert turned.mean() == pytest.approx(1 - math.sqrt(1 - 2 / 11), abs=0.003)
    assert coupling.mean() == pytest.approx(turned.mean(), abs=4 * turned_error.mean() / math.sqrt(24))
    assert by_chance == pytest.approx(1 - gaussian_miscoupling(10), abs=5e-4)
    trace = cl.trace(cl.load_model("nano-neox"), PARIS)
    operators = trace.jacobian(block=4), trace.jacobian(block=5)
    matrices = [J.dense() for J in operators]
    assert cl.coupling(*operators, k=5) == cl.coupling(*matrices, k=5)
    assert cl.coupling(*(J.numpy() for J in matrices), k=5) == cl.coupling(*matrices, k=5)
    assert cl.coupling(*operators, k=5, seed=1).coupling == cl.coupling(*operators, k=5).coupling


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.eye(4), torch.eye(4), 5), "k is 5"),
        ((torch.eye(4), torch.eye(4), 1), "k is 1"),
        ((torch.eye(4), torch.eye(5), 2), "J1 has width 4 and J2 has 5; take both from blocks of one width"),
        ((torch.ones(4, 3), torch.eye(4), 2), r"J1 has shape \(4, 3\); a square matrix"),
        ((torch.eye(4), "J", 2), "the operator is a str"),
        ((torch.eye(4), torch.eye(4).to_sparse(), 2), "the matrix is tensor.*; a dense tensor is expected"),
        ((torch.eye(4), np.eye(4) * 1j, 2), "the operator has dtype complex128; real numbers are expected"),
        ((torch.ones(4, 4), torch.diag(torch.arange(4.0)), 2, -1), "seed is -1; it must be a whole number from 0"),
        ((torch.ones(4, 4), torch.diag(torch.arange(4.0)), 2, 0.5), "seed is 0.5; it must be a whole number from 0"),
    ],
)
def test_matrices_that_form_no_pair_are_refused(arguments, message):
    refused(ParameterError, message, cl.coupling, *arguments)
