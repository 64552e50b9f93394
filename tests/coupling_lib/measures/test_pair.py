"""Coupling of one pair beside its value by chance: against whole matrices turned by whole rotations."""

import math

import numpy as np
import pytest
import torch
from random_numbers import normal
from reference import coupling, miscoupling
from refusals import refused
from scipy.stats import ortho_group

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.metrics.nulls import gaussian_miscoupling
from coupling_lib.svd.shared import without_isotropic

D, K = 20, 4


def of_pair(J1: np.ndarray, J2: np.ndarray) -> float:
    return 1 - miscoupling(coupling(J1, J2, K))


def symmetric(d: int, seed: int) -> torch.Tensor:
    G = normal(seed, d, d)
    return without_isotropic(G + G.T)


def test_nulls_of_a_pair_match_explicit_rotations():
    # A trace and a symmetric part, so that conjugation leaves more than random bases do.
    G, H = normal(3, 2, D, D)
    pair = G + 2 * torch.eye(D), H + H.T - 3 * torch.eye(D)
    J1, J2 = (J.numpy() for J in pair)
    found, rng = cl.coupling(*pair, k=K), np.random.default_rng(0)
    assert found.coupling == pytest.approx(of_pair(J1, J2), abs=1e-10)
    Q, R = (ortho_group.rvs(D, 1000, random_state=rng) for _ in range(2))
    turned = np.array([of_pair(J1, q @ J2 @ q.T) for q in Q])
    apart = np.array([of_pair(J1, q @ J2 @ r) for q, r in zip(Q, R, strict=True)])
    assert found.conjugated == pytest.approx(turned.mean(), abs=4 * turned.std() * math.hypot(1 / 22, 1 / 32))
    assert found.by_chance == pytest.approx(apart.mean(), abs=4 * apart.std() / 32)
    errors = (turned.std(), apart.std())
    assert (found.conjugated_error, found.error) == pytest.approx(errors, rel=0.15)
    assert found.conjugated > found.by_chance + 0.05


def test_independent_symmetric_matrices_couple_at_conjugation_null():
    # About 1 - sqrt(1 - 2 / (K + 1)) = .095 at K = 10, where random bases give .052.
    pairs = [cl.coupling(symmetric(96, 2 * i), symmetric(96, 2 * i + 1), k=10, seed=i) for i in range(24)]
    values, by_chance, _, turned, turned_error = np.array(pairs).T
    assert turned.mean() == pytest.approx(1 - math.sqrt(1 - 2 / 11), abs=0.003)
    assert values.mean() == pytest.approx(turned.mean(), abs=4 * turned_error.mean() / math.sqrt(24))
    assert by_chance == pytest.approx(1 - gaussian_miscoupling(10), abs=5e-4)
    trace = cl.trace(cl.load_model("nano-neox"), PARIS)
    operators = trace.jacobian(block=4), trace.jacobian(block=5)
    matrices = [J.dense() for J in operators]
    found = cl.coupling(*operators, k=5)
    assert cl.coupling(*matrices, k=5) == cl.coupling(*(J.numpy() for J in matrices), k=5) == found
    assert cl.coupling(*operators, k=5, seed=1).coupling == found.coupling


EYE, DIAGONAL = torch.eye(4), torch.diag(torch.arange(4.0))
REFUSED = {
    "k is 5": (EYE, EYE, 5),
    "k is 1": (EYE, EYE, 1),
    "J1 has width 4 and J2 has 5; take both from blocks of one width": (EYE, torch.eye(5), 2),
    r"J1 has shape \(4, 3\); a square matrix": (torch.ones(4, 3), EYE, 2),
    "the operator is a str": (EYE, "J", 2),
    "the matrix is tensor.*; a dense tensor is expected": (EYE, EYE.to_sparse(), 2),
    "the operator has dtype complex128; real numbers are expected": (EYE, np.eye(4) * 1j, 2),
    "seed is -1; it must be a whole number from 0": (torch.ones(4, 4), DIAGONAL, 2, -1),
    "seed is 0.5; it must be a whole number from 0": (torch.ones(4, 4), DIAGONAL, 2, 0.5),
}


@pytest.mark.parametrize(("message", "arguments"), REFUSED.items())
def test_matrices_that_form_no_pair_are_refused(message, arguments):
    refused(ParameterError, message, cl.coupling, *arguments)
