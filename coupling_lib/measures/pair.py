"""Coupling of one pair of Jacobians and its expected value by chance, in one call."""

from typing import Any, NamedTuple

import torch

from coupling_lib.errors import ParameterError, check_whole
from coupling_lib.metrics.coupling import coupling_matrix, miscoupling
from coupling_lib.metrics.expected_null import expected_null, random_orthogonal_null, seeded
from coupling_lib.metrics.nulls import filled_spectrum
from coupling_lib.metrics.surrogates import conjugated
from coupling_lib.svd.operators import form_square
from coupling_lib.svd.triplets import top_triplets

VARIANT = "normalized_miscoupling"
_DRAWS = 500


class PairCoupling(NamedTuple):
    """Coupling of two Jacobians, and its expected value by chance; all between 0 and 1."""

    # $1 - \tilde m$ of the pair.
    coupling: float
    # Its mean for independent random singular vectors of both, and the standard deviation of one pair.
    by_chance: float
    error: float
    # Its mean for J2 under random rotations, and the standard deviation of one pair around that.
    conjugated: float
    conjugated_error: float


def coupling(J1: Any, J2: Any, k: int = 10, seed: int = 0) -> PairCoupling:
    r"""Compute the coupling of two Jacobians and its value by chance, under two nulls.

    With $A = U_{2,K}^\top J_1 V_{2,K}$ (paper, equation 10) coupling is $1 - \tilde m(A)$, the complement of the
    normalised `miscoupling`. Without any relation of the two it is not 0, but about $1 - \sqrt{1 - 1/K}$: its value
    *by chance*, with both blocks' singular vectors independent and uniformly random (`null_of`). *Conjugated* is
    stricter: $J_2$ becomes $Q J_2 Q^\top$ with one uniformly random rotation $Q$, so that $A = (Q U_2)^\top J_1 Q V_2$.
    That keeps the alignment of one block's left and right vectors. Where they agree and $J_1$ has a trace, or
    is symmetric, two blocks couple by that alone. Judge a pair by the larger of the two: by chance about one pair
    in twenty-five lies more than two standard deviations above it.

    Args:
        J1: Jacobian of the first block (d, d), a matrix or an operator with `dense()`, such as a `BlockJacobian`; it
            is formed.
        J2: Jacobian of the second block (d, d), whose top singular vectors are taken.
        k: Number of singular vectors, $K$, from 2 to the width.
        seed: Seed of the draws: 500 rotations, and the random bases.

    Returns:
        A named tuple of numbers: `coupling`; `by_chance` with `error`, the standard deviation of one pair; and
        `conjugated` with `conjugated_error`. The mean of the 500 rotations is known to 1/22 of the latter.

    Raises:
        ParameterError: If `k` is not between 2 and the width, or the two are no square matrices of one width.

    Example:
        >>> import coupling_lib as cl
        >>> trace = cl.trace(cl.load_model("nano-neox"), "What is the capital of France? The capital is")
        >>> found = cl.coupling(trace.jacobian(block=4), trace.jacobian(block=5), k=10)
        >>> f"{found.coupling:.2f}; by chance {found.by_chance:.3f}, of one pair give or take {found.error:.2f}"
        '0.08; by chance 0.052, of one pair give or take 0.02'
    """
    J1, J2 = form_square("J1", J1), form_square("J2", J2)
    d = len(J1)
    if len(J2) != d:
        raise ParameterError(f"J1 has width {d} and J2 has {len(J2)}; take both from blocks of one width")
    k = check_whole("k", k, 2, d, f"the Jacobians have width {d}")
    generator, second = seeded(seed), top_triplets(J2, k)
    value = miscoupling(coupling_matrix(J1, second, k), normalized=True)
    spectrum = filled_spectrum(top_triplets(J1, k).S, d, torch.linalg.matrix_norm(J1))[None].cpu().double()
    chance = expected_null(spectrum, d, [k], [VARIANT], seed=seed)[VARIANT].value
    pairs = random_orthogonal_null(spectrum, d, [k], _DRAWS, generator, [VARIANT])[VARIANT]
    U, V = second.U.to(J1), second.Vh.mT.to(J1)
    rotations = (conjugated(U, V, generator) for _ in range(_DRAWS))
    conjugations = torch.stack([miscoupling(u.mT @ J1 @ v, normalized=True) for u, v in rotations])
    own, random, rotated = (1 - float(x.mean()) for x in (value, chance, conjugations))
    return PairCoupling(own, random, float(pairs.std()), rotated, float(conjugations.std()))
