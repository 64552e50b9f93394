from types import SimpleNamespace

import pytest
import torch

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.coupling import coupling_matrices, coupling_matrix, miscoupling, mismatch
from coupling_lib.metrics.variants import measure_variants

TIGHT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.fixture
def jacobians():
    return torch.randn(4, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_coupling_matrix_of_a_jacobian_with_itself_is_its_singular_values(jacobians):
    svd = torch.linalg.svd(jacobians[0])
    torch.testing.assert_close(coupling_matrix(jacobians[0], svd, k=6), svd.S[:6].diag(), **TIGHT)


def test_each_entry_is_a_left_vector_times_the_jacobian_times_a_right_vector(jacobians):
    svd2 = torch.linalg.svd(jacobians[1])
    A = coupling_matrix(jacobians[0], svd2, k=5)
    for i in range(5):
        for j in range(5):
            entry = sum(svd2.U[p, i] * jacobians[0, p, q] * svd2.Vh[j, q] for p in range(24) for q in range(24))
            torch.testing.assert_close(A[i, j], entry, **TIGHT)


def test_an_operator_gives_what_its_matrix_gives(jacobians):
    class Operator:
        def __matmul__(self, V):
            return jacobians[0] @ V

    svd2 = torch.linalg.svd(jacobians[1])
    assert torch.equal(coupling_matrix(Operator(), svd2, k=5), coupling_matrix(jacobians[0], svd2, k=5))


def test_full_singular_vectors_of_the_first_jacobian_give_the_papers_second_form_and_truncated_ones_do_not(jacobians):
    svd1, svd2 = torch.linalg.svd(jacobians[0]), torch.linalg.svd(jacobians[1])
    A = coupling_matrix(jacobians[0], svd2, k=6)

    def second_form(kept):
        rank_kept = svd1.U[:, :kept] @ svd1.S[:kept].diag() @ svd1.Vh[:kept]
        return svd2.U[:, :6].T @ rank_kept @ svd2.Vh[:6].T

    torch.testing.assert_close(second_form(24), A, **TIGHT)
    assert torch.linalg.matrix_norm(second_form(6) - A) > 0.1 * torch.linalg.matrix_norm(A)


def test_all_pairs_at_once_equal_one_pair_at_a_time(jacobians):
    svds = [torch.linalg.svd(J) for J in jacobians[:3]]
    U, Vh = torch.stack([s.U[:, :7] for s in svds]), torch.stack([s.Vh[:7] for s in svds])
    A = coupling_matrices(jacobians, U, Vh)
    assert A.shape == (4, 3, 7, 7)
    for first in range(4):
        for second in range(3):
            one = coupling_matrix(jacobians[first], svds[second], k=7)
            torch.testing.assert_close(A[first, second], one, **TIGHT)
            torch.testing.assert_close(
                A[first, second, :4, :4], coupling_matrix(jacobians[first], svds[second], k=4), **TIGHT
            )


def test_a_list_of_operators_is_applied_once_each(jacobians):
    calls = []

    class Operator:
        def __init__(self, index):
            self.index = index

        def __matmul__(self, V):
            calls.append(self.index)
            return jacobians[self.index] @ V

    svds = torch.linalg.svd(jacobians)
    U, Vh = svds.U[..., :5], svds.Vh[:, :5]
    A = coupling_matrices([Operator(i) for i in range(4)], U, Vh)
    torch.testing.assert_close(A, coupling_matrices(jacobians, U, Vh), **TIGHT)
    assert calls == [0, 1, 2, 3]


def test_miscoupling_counts_the_off_diagonal_entries_alone():
    A = torch.tensor([[2.0, 3.0], [-4.0, 20.0]], dtype=torch.float64)
    assert miscoupling(A).item() == pytest.approx(5.0, abs=1e-14)
    assert miscoupling(A, normalized=True).item() == pytest.approx(5 / (4 + 9 + 16 + 400) ** 0.5, abs=1e-14)


def test_mismatch_divides_by_the_norm_it_names():
    A, s1 = torch.diag(torch.tensor([3.0, 4.0])).double(), torch.tensor([3.0, 4.0]).double()
    A = A + torch.tensor([[0.0, 35.0], [0.0, 0.0]])
    assert mismatch(A, s1).item() == pytest.approx(35 / 5)
    assert mismatch(A, s1, norm="trace").item() == pytest.approx(35 / 7)
    assert mismatch(A, s1, norm=1).item() == pytest.approx(35 / 7)
    assert mismatch(A, s1, norm=3).item() == pytest.approx(35 / 91 ** (1 / 3))
    assert mismatch(A, s1, norm=float("inf")).item() == pytest.approx(35 / 4)


def test_batches_of_matrices_are_measured_one_by_one(jacobians):
    svds = torch.linalg.svd(jacobians)
    A = coupling_matrices(jacobians, svds.U[..., :5], svds.Vh[:, :5])
    together = mismatch(A, svds.S[:, None, :5], norm="trace")
    assert together.shape == (4, 4)
    for first in range(4):
        for second in range(4):
            alone = mismatch(A[first, second], svds.S[first, :5], norm="trace")
            torch.testing.assert_close(together[first, second], alone, **TIGHT)


def test_half_precision_is_computed_in_float32_and_double_stays_double():
    A = torch.tensor([[1.0, 300.0], [300.0, 1.0]], dtype=torch.float16)  # its squares overflow in float16
    assert miscoupling(A).dtype == torch.float32
    assert miscoupling(A).item() == pytest.approx(300 * 2**0.5)
    assert miscoupling(A.double()).dtype == torch.float64


def test_a_zero_jacobian_is_refused_and_not_returned_as_nan():
    with pytest.raises(UntrustworthyResultError, match="norm of the coupling matrix is 0"):
        miscoupling(torch.zeros(3, 3), normalized=True)
    with pytest.raises(UntrustworthyResultError, match="norm of the singular values is 0 in 1 of 2"):
        mismatch(torch.ones(2, 3, 3), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused(bad):
    A = torch.eye(3)
    A[0, 1] = bad
    with pytest.raises(UntrustworthyResultError, match="1 NaN or infinite"):
        miscoupling(A)
    with pytest.raises(UntrustworthyResultError, match="NaN or infinite"):
        mismatch(A, torch.ones(3))


@pytest.mark.parametrize("k", [0, 25, -1, 2.0, True, "5"])
def test_a_k_that_cannot_be_is_named_with_what_is_possible(jacobians, k):
    with pytest.raises(ParameterError, match=r"k is .*from 1 to 24"):
        coupling_matrix(jacobians[0], torch.linalg.svd(jacobians[1]), k=k)


def test_matrices_of_unequal_widths_are_refused_with_the_shapes_seen_and_expected(jacobians):
    narrow = torch.linalg.svd(torch.eye(8, dtype=jacobians.dtype))
    shapes = r"J1 has shape \(24, 24\) and svd2 has U of shape \(8, 8\) and Vh of shape \(8, 8\); expected J1 \(8, 8\)"
    with pytest.raises(ParameterError, match=shapes):
        coupling_matrix(jacobians[0], narrow, k=5)
    with pytest.raises(ParameterError, match=r"J1 has shape \(24,\); expected 2 or more dimensions"):
        coupling_matrix(jacobians[0][0], torch.linalg.svd(jacobians[1]), k=5)
    # A stack of Jacobians is taken at once.
    many = coupling_matrix(jacobians, torch.linalg.svd(jacobians[1]), k=5)
    assert many.shape == (len(jacobians), 5, 5)


def test_what_fails_inside_a_product_is_not_taken_for_a_wrong_shape(jacobians):
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
        with pytest.raises(RuntimeError, match="not enough memory"):
            measure()


def test_stacks_that_do_not_fit_are_refused_before_anything_is_multiplied(jacobians):
    U, S, Vh = torch.linalg.svd(jacobians)
    n = len(jacobians)
    with pytest.raises(
        ParameterError, match=rf"leading dimensions J1 \({n},\), U \({n - 1},\), Vh \({n - 1},\) do not fit"
    ):
        coupling_matrix(jacobians, SimpleNamespace(U=U[1:], Vh=Vh[1:]), k=5)
    with pytest.raises(ParameterError, match=r"leading dimensions A \(2, 3\), s1 \(3, 3\) do not fit"):
        mismatch(torch.ones(2, 3, 3), torch.ones(3, 3))
    with pytest.raises(ParameterError, match=r"expected \(L, d, K\), \(L, K, d\)"):
        coupling_matrices(jacobians, U[1:], Vh)
    for J, said in (
        (jacobians[:, :8, :8], r"shape \(8, 8\), and the vectors width 24"),
        ([jacobians[0], jacobians[1, :8]], r"shape \(8, 24\), and the vectors width 24"),
        (jacobians[:0], "there is no Jacobian"),
        (["J"], "J is .*a sequence of operators"),
        (None, "J is None"),
    ):
        with pytest.raises(ParameterError, match=said):
            coupling_matrices(J, U, Vh)
        with pytest.raises(ParameterError, match=said):
            measure_variants(J, U, S, Vh, (5,))
    with pytest.raises(ParameterError, match=rf"for {n - 1} Jacobians"):
        measure_variants(jacobians[1:], U, S, Vh, (5,))


@pytest.mark.parametrize("norm", ["fro", 0, -2, None, True])
def test_a_norm_that_does_not_exist_is_refused(norm):
    with pytest.raises(ParameterError, match="norm is"):
        mismatch(torch.eye(2), torch.ones(2), norm=norm)


@pytest.mark.parametrize("absolute", [False, True])
def test_one_matrix_is_set_against_the_singular_values_of_several(absolute):
    A = torch.tensor([[-3.0, 0.0], [0.0, 4.0]])
    several = torch.tensor([[3.0, 4.0], [1.0, 2.0], [5.0, 12.0]])
    found = mismatch(A, several, absolute=absolute)
    assert torch.equal(found, torch.stack([mismatch(A, s1, absolute=absolute) for s1 in several]))


def test_no_miscoupling_does_not_mean_the_same_strongest_directions():
    """Disjoint sets of ten strongest directions, and perfect coupling: the vectors of one diagonalise the other."""
    first, second = torch.diag(torch.arange(1.0, 41)), torch.diag(torch.arange(40.0, 0, -1))
    left, right = (torch.linalg.svd(J).U[:, :10].abs().argmax(0).tolist() for J in (first, second))
    assert set(left) & set(right) == set()
    assert float(miscoupling(coupling_matrix(first, torch.linalg.svd(second), k=10), normalized=True)) == 0


def test_independent_symmetric_traceless_matrices_couple_more_than_random_bases():
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
