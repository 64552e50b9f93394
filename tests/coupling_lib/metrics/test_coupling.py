from types import SimpleNamespace

import pytest
import torch
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.coupling import coupling_matrices, coupling_matrix, miscoupling, mismatch
from coupling_lib.metrics.variants import measure_variants

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def jacobians():
    return torch.randn(4, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Operator:
    """A matrix that multiplies, and notes that it did."""

    def __init__(self, matrix, calls=None):
        self.matrix, self.calls = matrix, calls if calls is not None else []

    def __matmul__(self, V):
        self.calls.append(self)
        return self.matrix @ V


def test_coupling_matrix_equals_the_papers_definition(jacobians):
    svd1, svd2 = torch.linalg.svd(jacobians[0]), torch.linalg.svd(jacobians[1])
    A = coupling_matrix(jacobians[0], svd2, k=5)
    for i in range(5):
        for j in range(5):
            entry = sum(svd2.U[p, i] * jacobians[0, p, q] * svd2.Vh[j, q] for p in range(24) for q in range(24))
            torch.testing.assert_close(A[i, j], entry, **TIGHT)
    assert torch.equal(coupling_matrix(Operator(jacobians[0]), svd2, k=5), A)
    torch.testing.assert_close(coupling_matrix(jacobians[0], svd1, k=6), svd1.S[:6].diag(), **TIGHT)
    A = coupling_matrix(jacobians[0], svd2, k=6)

    def second_form(kept):
        rank_kept = svd1.U[:, :kept] @ svd1.S[:kept].diag() @ svd1.Vh[:kept]
        return svd2.U[:, :6].T @ rank_kept @ svd2.Vh[:6].T

    torch.testing.assert_close(second_form(24), A, **TIGHT)
    assert torch.linalg.matrix_norm(second_form(6) - A) > 0.1 * torch.linalg.matrix_norm(A)


def test_coupling_matrices_of_all_pairs_equal_single_ones(jacobians):
    svds = [torch.linalg.svd(J) for J in jacobians[:3]]
    U, Vh = torch.stack([s.U[:, :7] for s in svds]), torch.stack([s.Vh[:7] for s in svds])
    A = coupling_matrices(jacobians, U, Vh)
    assert A.shape == (4, 3, 7, 7)
    for first in range(4):
        for second in range(3):
            for k in (4, 7):
                one = coupling_matrix(jacobians[first], svds[second], k=k)
                torch.testing.assert_close(A[first, second, :k, :k], one, **TIGHT)
    calls, svds = [], torch.linalg.svd(jacobians)
    U, Vh = svds.U[..., :5], svds.Vh[:, :5]
    operators = [Operator(J, calls) for J in jacobians]
    torch.testing.assert_close(coupling_matrices(operators, U, Vh), coupling_matrices(jacobians, U, Vh), **TIGHT)
    assert calls == operators

    class Narrow(Operator):
        def __matmul__(self, V):
            return super().__matmul__(V).float()

    near = {"rtol": 1e-5, "atol": 1e-5}
    found = coupling_matrices([Narrow(J) for J in jacobians], U, Vh)
    torch.testing.assert_close(found, coupling_matrices(jacobians, U, Vh), **near)
    second = torch.linalg.svd(jacobians[1])
    one = coupling_matrix(Narrow(jacobians[0]), second, k=5)
    torch.testing.assert_close(one, coupling_matrix(jacobians[0], second, k=5), **near)


def test_miscoupling_and_mismatch_have_known_values():
    A = torch.tensor([[2.0, 3.0], [-4.0, 20.0]], dtype=torch.float64)
    assert miscoupling(A).item() == pytest.approx(5.0, abs=1e-14)
    assert miscoupling(A, normalized=True).item() == pytest.approx(5 / (4 + 9 + 16 + 400) ** 0.5, abs=1e-14)
    A = torch.tensor([[1.0, 300.0], [300.0, 1.0]], dtype=torch.float16)  # its squares overflow in float16
    assert miscoupling(A).dtype == torch.float32
    assert miscoupling(A).item() == pytest.approx(300 * 2**0.5)
    assert miscoupling(A.double()).dtype == torch.float64
    for norm, divisor in [(2, 5), ("trace", 7), (1, 7), (3, 91 ** (1 / 3)), (float("inf"), 4)]:
        A, s1 = torch.tensor([[3.0, 35.0], [0.0, 4.0]]).double(), torch.tensor([3.0, 4.0]).double()
        assert mismatch(A, s1, norm=norm).item() == pytest.approx(35 / divisor)
        assert norm != 2 or mismatch(A, s1) == mismatch(A, s1, norm=norm)  # the default


def test_batched_mismatch_equals_one_by_one(jacobians):
    svds = torch.linalg.svd(jacobians)
    A = coupling_matrices(jacobians, svds.U[..., :5], svds.Vh[:, :5])
    together = mismatch(A, svds.S[:, None, :5], norm="trace")
    assert together.shape == (4, 4)
    for first in range(4):
        for second in range(4):
            alone = mismatch(A[first, second], svds.S[first, :5], norm="trace")
            torch.testing.assert_close(together[first, second], alone, **TIGHT)
    for absolute in [False, True]:
        A = torch.tensor([[-3.0, 0.0], [0.0, 4.0]])
        several = torch.tensor([[3.0, 4.0], [1.0, 2.0], [5.0, 12.0]])
        found = mismatch(A, several, absolute=absolute)
        assert torch.equal(found, torch.stack([mismatch(A, s1, absolute=absolute) for s1 in several]))


def test_nan_zeros_and_impossible_arguments_are_refused(jacobians):
    for bad in (float("nan"), float("inf")):
        A = torch.tensor([[1.0, bad], [0.0, 1.0]])
        refused(UntrustworthyResultError, "1 NaN or infinite", miscoupling, A)
        refused(UntrustworthyResultError, "NaN or infinite", mismatch, A, torch.ones(2))
    some_zero = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    message = "norm of the singular values is 0 in 1 of 2"
    refused(UntrustworthyResultError, message, mismatch, torch.ones(2, 3, 3), some_zero)
    message = "norm of the coupling matrix is 0"
    refused(UntrustworthyResultError, message, miscoupling, torch.zeros(3, 3), normalized=True)
    svd, narrow = torch.linalg.svd(jacobians[1]), torch.linalg.svd(torch.eye(8, dtype=jacobians.dtype))
    for k in (0, 25, -1, 2.0, True, "5"):
        refused(ParameterError, r"k is .*from 1 to 24", coupling_matrix, jacobians[0], svd, k=k)
    for norm in ("fro", 0, -2, None, True):
        refused(ParameterError, "norm is", mismatch, torch.eye(2), torch.ones(2), norm=norm)
    shapes = r"J1 has shape \(24, 24\) and svd2 has U of shape \(8, 8\) and Vh of shape \(8, 8\); expected J1 \(8, 8\)"
    refused(ParameterError, shapes, coupling_matrix, jacobians[0], narrow, k=5)
    vector = r"J1 has shape \(24,\); expected 2 or more dimensions"
    refused(ParameterError, vector, coupling_matrix, jacobians[0][0], svd, k=5)
    # A stack of Jacobians is taken at once.
    assert coupling_matrix(jacobians, svd, k=5).shape == (len(jacobians), 5, 5)


def test_an_error_inside_a_product_is_raised_unchanged(jacobians):
    class Full:
        shape = (24, 24)

        def __matmul__(self, V):
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")

    U, S, Vh = torch.linalg.svd(jacobians[:2])
    for measure in (
        lambda: coupling_matrix(Full(), torch.linalg.svd(jacobians[1]), k=5),
        lambda: coupling_matrices([Full(), Full()], U, Vh),
        lambda: measure_variants([Full(), Full()], U, S, Vh, (5,)),
    ):
        refused(RuntimeError, "not enough memory", measure)


def test_stacks_that_do_not_fit_are_refused(jacobians):
    U, S, Vh = torch.linalg.svd(jacobians)
    n = len(jacobians)
    leading = rf"leading dimensions J1 \({n},\), U \({n - 1},\), Vh \({n - 1},\) do not fit"
    refused(ParameterError, leading, coupling_matrix, jacobians, SimpleNamespace(U=U[1:], Vh=Vh[1:]), k=5)
    leading = r"leading dimensions A \(2, 3\), s1 \(3, 3\) do not fit"
    refused(ParameterError, leading, mismatch, torch.ones(2, 3, 3), torch.ones(3, 3))
    for s1 in (torch.ones(3, 2), torch.ones(1, 2)):
        refused(ParameterError, r"for all pairs of blocks s1\[:, None, :\]", mismatch, torch.ones(3, 3, 2, 2), s1)
    for J in (jacobians[0].to("meta"), jacobians[0].to(torch.float8_e4m3fn)):
        message = "J1 is .*; expected a dense tensor of real numbers"
        refused(ParameterError, message, coupling_matrix, J, torch.linalg.svd(jacobians[1]), k=5)
    refused(ParameterError, r"expected \(L, d, K\), \(L, K, d\)", coupling_matrices, jacobians, U[1:], Vh)
    for J, message in (
        (jacobians[:, :8, :8], r"shape \(8, 8\), and the vectors width 24"),
        ([jacobians[0], jacobians[1, :8]], r"shape \(8, 24\), and the vectors width 24"),
        (jacobians[:0], "there is no Jacobian"),
        (["J"], "J is .*a sequence of operators"),
        (None, "J is None"),
    ):
        refused(ParameterError, message, coupling_matrices, J, U, Vh)
        refused(ParameterError, message, measure_variants, J, U, S, Vh, (5,))
    refused(ParameterError, rf"for {n - 1} Jacobians", measure_variants, jacobians[1:], U, S, Vh, (5,))


def test_coupling_needs_neither_shared_directions_nor_learning():
    """Disjoint sets of ten strongest directions, and perfect coupling: the vectors of one diagonalise the other."""
    first, second = torch.diag(torch.arange(1.0, 41)), torch.diag(torch.arange(40.0, 0, -1))
    left, right = (torch.linalg.svd(J).U[:, :10].abs().argmax(0).tolist() for J in (first, second))
    assert set(left) & set(right) == set()
    assert float(miscoupling(coupling_matrix(first, torch.linalg.svd(second), k=10), normalized=True)) == 0
    generator, values = torch.Generator().manual_seed(0), []
    for _ in range(800):
        J1, J2 = (torch.randn(64, 64, generator=generator, dtype=torch.float64) for _ in range(2))
        J1, J2 = J1 + J1.mT, J2 + J2.mT
        for J in (J1, J2):
            J.diagonal().sub_(J.diagonal().mean())
        A = coupling_matrix(J1, torch.linalg.svd(J2), k=10)
        values.append(1 - float(miscoupling(A, normalized=True)))
    # 1 - m~ of the mean m~^2 is 1 - sqrt(1 - 2 / (K + 1)) = .095; random bases have 1 - sqrt(1 - 1 / K) = .051.
    assert sum(values) / len(values) == pytest.approx(0.096, abs=0.005)


def test_norms_whose_squares_underflow_are_refused(jacobians):
    A = torch.as_tensor(jacobians[0][:5, :5]).float()
    message = "is .*e-2[0-9] at least, too small in 1 of 1 cases for squares in torch.float32"
    refused(UntrustworthyResultError, message, miscoupling, 1e-23 * A, normalized=True)
    value = miscoupling(A, normalized=True)
    torch.testing.assert_close(miscoupling(1e-16 * A, normalized=True), value)
    torch.testing.assert_close(miscoupling(1e-23 * A.double(), normalized=True).float(), value)


def test_triplets_weakest_first_are_refused(jacobians):
    U, S, Vh = torch.linalg.svd(jacobians[1])
    grown = SimpleNamespace(U=U.flip(1), S=S.flip(0), Vh=Vh.flip(0))
    refused(ParameterError, "the singular values of svd2 grow", coupling_matrix, jacobians[0], grown, k=5)
