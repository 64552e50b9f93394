"""A Jacobian in its two parts, against plain float64."""

import numpy as np
import pytest
import torch
from random_numbers import normal
from refusals import refused
from scipy.sparse.linalg import aslinearoperator

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.svd.shared import isotropic_part, without_isotropic


def test_isotropic_and_shared_parts_equal_numpy():
    J = normal(0, 3, 20, 20) + 0.4 * torch.eye(20)
    traces = np.trace(J.numpy(), axis1=1, axis2=2) / 20
    np.testing.assert_allclose(isotropic_part(J), traces, rtol=0, atol=1e-14)
    assert float(without_isotropic(J.clone()).diagonal(dim1=1, dim2=2).sum(1).abs().max()) < 1e-12
    assert cl.shared(torch.tensor([[3, 1], [0, 2]])).dense().tolist() == [[0.5, 1.0], [0.0, -0.5]]
    J = normal(1, 24, 24) - 0.7 * torch.eye(24)
    wanted = J.numpy() - np.trace(J.numpy()) / 24 * np.eye(24)
    shared, V = cl.shared(J), normal(2, 24, 3)
    np.testing.assert_allclose(shared.dense(), wanted, atol=1e-14)
    np.testing.assert_allclose(shared @ V, wanted @ V.numpy(), atol=1e-13)
    np.testing.assert_allclose(shared.T @ V, wanted.T @ V.numpy(), atol=1e-13)
    np.testing.assert_allclose(shared.svd(k=5).S, np.linalg.svd(wanted)[1][:5], rtol=1e-12)
    assert shared.isotropic == pytest.approx(np.trace(J.numpy()) / 24)
    other = cl.shared(normal(3, 24, 24)).svd(k=4)
    np.testing.assert_allclose(cl.coupling_matrix(shared, other, 4), other.U.T @ wanted @ other.Vh.T, atol=1e-12)


@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
def test_shared_part_of_block_is_traceless_jacobian(name):
    J = cl.trace(cl.load_model(name), "It was the best of times").jacobian(block=7)
    dense = J.dense().double()
    wanted = dense - dense.trace() / len(dense) * torch.eye(len(dense))
    shared = cl.shared(J)
    assert float((shared.dense() - wanted).norm() / wanted.norm()) < 1e-6
    np.testing.assert_allclose(shared.svd(k=10).S, torch.linalg.svdvals(wanted)[:10], rtol=1e-5)


def test_operators_without_shared_part_are_refused():
    J = 0.3 * torch.eye(64) + 1e-8 * normal(0, 64, 64).float()
    refused(UntrustworthyResultError, "1 of 1 Jacobians are a multiple of the identity up to r", cl.shared(J).svd, k=2)
    refused(ParameterError, "without `dense", cl.shared, aslinearoperator(np.eye(3)))
    refused(ParameterError, r"J has shape \(3, 4\); a square matrix", cl.shared, torch.ones(3, 4))
    refused(ParameterError, "a matrix or an object", cl.shared, torch.ones(2, 3, 3))
    refused(ParameterError, "J holds NaN or infinite entries; fin", cl.shared, torch.tensor([[1.0, np.nan], [0, 1]]))
    refused(ParameterError, "J is torch.complex64; finite real", cl.shared, torch.eye(3, dtype=torch.complex64))
    multiply, factor = cl.shared(normal(0, 3, 3)).__matmul__, torch.ones(3, dtype=torch.complex64)
    refused(ParameterError, "or a numpy array of real numbers", multiply, factor)
