from functools import partial
from types import SimpleNamespace

import pytest
import torch
from refusals import refused

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.metrics.coupling import coupling_matrices, coupling_matrix, miscoupling, mismatch
from coupling_lib.metrics.variants import measure_variants

J = torch.randn(4, 24, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SVDS = [torch.linalg.svd(one) for one in J]
U, S, Vh = torch.linalg.svd(J)
close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def stacked(function, rows, columns) -> torch.Tensor:
    """A function's values for every row and column."""
    return torch.stack([torch.stack([function(row, column) for column in columns]) for row in rows])


class Operator:
    """A matrix that multiplies, and notes that it did; its products may be of another type."""

    def __init__(self, matrix, calls=None, dtype=torch.float64):
        self.matrix, self.calls, self.dtype = matrix, calls if calls is not None else [], dtype

    def __matmul__(self, V):
        self.calls.append(self)
        return (self.matrix @ V).to(self.dtype)


def test_coupling_matrix_equals_the_papers_definition():
    left, _, right = SVDS[1]
    A = coupling_matrix(J[0], SVDS[1], k=6)
    close(A, torch.einsum("pi,pq,jq->ij", left[:, :6], J[0], right[:6]))
    assert torch.equal(coupling_matrix(Operator(J[0]), SVDS[1], k=6), A)
    close(coupling_matrix(J[0], SVDS[0], k=6), SVDS[0].S[:6].diag())


def test_coupling_matrices_of_all_pairs_equal_single_ones():
    A = coupling_matrices(J, U[:3, :, :7], Vh[:3, :7])
    for k in (4, 7):
        close(A[..., :k, :k], stacked(partial(coupling_matrix, k=k), J, SVDS[:3]))
    calls = []
    operators = [Operator(one, calls) for one in J]
    close(coupling_matrices(operators, U[:3, :, :7], Vh[:3, :7]), A)
    assert calls == operators
    narrow = [Operator(one, dtype=torch.float32) for one in J]
    close(coupling_matrices(narrow, U[:3, :, :7], Vh[:3, :7]), A, rtol=1e-5, atol=1e-5)
    close(coupling_matrix(narrow[0], SVDS[1], k=7), A[0, 1], rtol=1e-5, atol=1e-5)
    assert coupling_matrix(J, SVDS[1], k=5).shape == (4, 5, 5)  # a stack is taken at once


def test_miscoupling_and_mismatch_have_known_values():
    A = torch.tensor([[2.0, 3.0], [-4.0, 20.0]], dtype=torch.float64)
    assert miscoupling(A).item() == pytest.approx(5.0, abs=1e-14)
    assert miscoupling(A, normalized=True).item() == pytest.approx(5 / (4 + 9 + 16 + 400) ** 0.5, abs=1e-14)
    A = torch.tensor([[1.0, 300.0], [300.0, 1.0]], dtype=torch.float16)  # its squares overflow in float16
    torch.testing.assert_close(miscoupling(A), torch.tensor(300 * 2**0.5))
    assert miscoupling(A.double()).dtype == torch.float64
    A, s1 = torch.tensor([[3.0, 35.0], [0.0, 4.0]]).double(), torch.tensor([3.0, 4.0]).double()
    for norm, divisor in [(2, 5), ("trace", 7), (1, 7), (3, 91 ** (1 / 3)), (float("inf"), 4)]:
        assert mismatch(A, s1, norm=norm).item() == pytest.approx(35 / divisor)
    assert mismatch(A, s1) == mismatch(A, s1, norm=2)


def test_batched_mismatch_equals_one_by_one():
    A = coupling_matrices(J, U[..., :5], Vh[:, :5])
    together = mismatch(A, S[:, None, :5], norm="trace")
    close(together, stacked(lambda a, b: mismatch(A[a, b], S[a, :5], norm="trace"), range(4), range(4)))
    A, several = torch.tensor([[-3.0, 0.0], [0.0, 4.0]]), torch.tensor([[3.0, 4.0], [1.0, 2.0], [5.0, 12.0]])
    for absolute in [False, True]:
        alone = torch.stack([mismatch(A, s1, absolute=absolute) for s1 in several])
        assert torch.equal(mismatch(A, several, absolute=absolute), alone)


def test_independent_symmetric_blocks_couple_by_alignment_alone():
    M = torch.randn(2, 800, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    J1, J2 = M + M.mT
    for symmetric in (J1, J2):
        symmetric -= torch.eye(64) * symmetric.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    value = 1 - miscoupling(coupling_matrix(J1, torch.linalg.svd(J2), k=10), normalized=True).mean()
    # 1 - m~ of the mean m~^2 is 1 - sqrt(1 - 2 / (K + 1)) = .095; random bases have 1 - sqrt(1 - 1 / K) = .051.
    assert float(value) == pytest.approx(0.096, abs=0.005)


ones, grown = torch.ones, SimpleNamespace(U=SVDS[1].U.flip(1), S=SVDS[1].S.flip(0), Vh=SVDS[1].Vh.flip(0))
normalized, of_five = partial(miscoupling, normalized=True), partial(coupling_matrix, k=5)
WITHOUT_VALUE = [
    *(("1 NaN or infinite", miscoupling, torch.tensor([[1.0, bad], [0.0, 1.0]])) for bad in (torch.nan, torch.inf)),
    *(("NaN or infinite", mismatch, torch.tensor([[1.0, bad], [0.0, 1.0]]), ones(2)) for bad in (torch.nan, torch.inf)),
    ("singular values is 0 in 1 of 2", mismatch, ones(2, 3, 3), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])),
    ("norm of the coupling matrix is 0", normalized, torch.zeros(3, 3)),
    ("is .*e-2[0-9] at least, too small in 1 of 1 cases .* torch.float32", normalized, 1e-23 * J[0, :5, :5].float()),
]
SHAPES = r"J1 has shape \(24, 24\) and svd2 has U of shape \(8, 8\) and Vh of shape \(8, 8\); expected J1 \(8, 8\)"
LEADING = r"leading dimensions J1 \(4,\), U \(3,\), Vh \(3,\) do not fit"
STACKS = {
    r"shape \(8, 8\), and the vectors width 24": J[:, :8, :8],
    r"shape \(8, 24\), and the vectors width 24": [J[0], J[1, :8]],
    "there is no Jacobian": J[:0],
    "J is .*a sequence of operators": ["J"],
    "J is None": None,
}
DENSE = "J1 is .*; expected a dense tensor of real numbers"
IMPOSSIBLE = [
    *((r"k is .*from 1 to 24", coupling_matrix, J[0], SVDS[1], k) for k in (0, 25, -1, 2.0, True, "5")),
    *(("norm is", mismatch, torch.eye(2), ones(2), False, norm) for norm in ("fro", 0, -2, None, True)),
    (SHAPES, of_five, J[0], torch.linalg.svd(torch.eye(8).double())),
    (r"J1 has shape \(24,\); expected 2 or more dimensions", of_five, J[0][0], SVDS[1]),
    (LEADING, of_five, J, SimpleNamespace(U=U[1:], Vh=Vh[1:])),
    (r"leading dimensions A \(2, 3\), s1 \(3, 3\) do not fit", mismatch, ones(2, 3, 3), ones(3, 3)),
    *((r"for all pairs of blocks s1\[:, None, :\]", mismatch, ones(3, 3, 2, 2), ones(n, 2)) for n in (3, 1)),
    *((DENSE, of_five, matrix, SVDS[1]) for matrix in (J[0].to("meta"), J[0].to(torch.float8_e4m3fn))),
    ("the singular values of svd2 grow", of_five, J[0], grown),
    (r"expected \(L, d, K\), \(L, K, d\)", coupling_matrices, J, U[1:], Vh),
    ("for 3 Jacobians", measure_variants, J[1:], U, S, Vh, (5,)),
    *((message, coupling_matrices, first, U, Vh) for message, first in STACKS.items()),
    *((message, measure_variants, first, U, S, Vh, (5,)) for message, first in STACKS.items()),
]


REFUSED = [(UntrustworthyResultError, WITHOUT_VALUE), (ParameterError, IMPOSSIBLE)]


@pytest.mark.parametrize("given", [(error, *row) for error, rows in REFUSED for row in rows])
def test_arguments_without_a_value_are_refused(given):
    refused(*given)


def test_an_error_inside_a_product_is_raised_unchanged():
    class Full:
        shape = (24, 24)

        def __matmul__(self, V):
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")

    full, message = [Full()] * 4, "not enough memory"
    refused(RuntimeError, message, of_five, full[0], SVDS[1])
    refused(RuntimeError, message, coupling_matrices, full, U, Vh)
    refused(RuntimeError, message, measure_variants, full, U, S, Vh, (5,))


def test_small_norms_keep_their_normalized_value():
    A = J[0, :5, :5].float()
    for small in (1e-16 * A, 1e-23 * A.double()):
        torch.testing.assert_close(normalized(small).float(), normalized(A))
