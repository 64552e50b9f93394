r"""The two parts of a Jacobian: the isotropic action of a block, and the rest.

The *isotropic part* of $J$ is $t I$ with $t = \mathrm{tr} J / d$. It counts as coupling without any shared direction:
where the left and right singular vectors of block $l'$ are close to each other, $U_{l'}^\top (t I) V_{l'}$ is nearly
diagonal. The remainder, $J - t I$, is the traceless part.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.svd.operators import form_square, real_factor
from coupling_lib.svd.triplets import SingularTriplets, top_triplets

# A remainder below this share of the norm is the rounding of float32 entries.
_ROUNDING = 1e-5


def isotropic_part(J: Tensor) -> Tensor:
    r"""Return $t = \mathrm{tr} J / d$ of matrices (..., d, d)."""
    return J.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def without_isotropic(J: Tensor) -> Tensor:
    """Subtract the isotropic part from matrices (..., d, d), in place; refuse multiples of the identity."""
    before, t = torch.linalg.matrix_norm(J), isotropic_part(J)
    J.diagonal(dim1=-2, dim2=-1).sub_(t.unsqueeze(-1))
    if (alone := torch.linalg.matrix_norm(J) <= _ROUNDING * before).any():
        raise UntrustworthyResultError(
            f"{int(alone.sum())} of {alone.numel()} Jacobians are a multiple of the identity up to rounding; they have "
            "no directions to share, measure the whole ones"
        )
    return J


class SharedPart:
    """J - tr(J)/d I of one square Jacobian, as an operator; see `shared`."""

    def __init__(self, J: Tensor):
        self._whole, self.shape = J, tuple(J.shape)
        self.isotropic = float(isotropic_part(J))
        """Factor t of the identity, which is subtracted from the diagonal."""

    @cached_property
    def _dense(self) -> Tensor:
        return without_isotropic(self._whole.clone())

    @property
    def T(self) -> "SharedPart":  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
        """Transposed operator."""
        return SharedPart(self._whole.mT)

    def __matmul__(self, V: Tensor) -> Tensor:
        return self._dense @ real_factor(torch.as_tensor(V), self.shape[1]).to(self._dense)

    def dense(self) -> Tensor:
        """Return the matrix `(d, d)`, formed once."""
        return self._dense

    def svd(self, k: int = 10) -> SingularTriplets:
        """Compute the K largest singular triplets, each certified, as in `BlockJacobian.svd`."""
        return top_triplets(self._dense, k)


def shared(J: Any) -> SharedPart:
    r"""Subtract the isotropic part from a Jacobian, which leaves its traceless part.

    $$J - \frac{\mathrm{tr} J}{d}\, I .$$

    A block that shrinks or stretches every direction alike is coupled, by the paper's measures (section 2), with any
    block whose left and right singular vectors lie close to each other: the two need not share a direction. The trace
    needs all of J, so that an operator is formed, once.

    Args:
        J: square matrix (d, d), or an operator with `dense()`, such as a `BlockJacobian`.

    Returns:
        an operator of the same shape and units with `@`, `.T @`, `dense()`, `svd(k)`, and `isotropic`, the number
        tr(J)/d.

    Raises:
        ParameterError: if J is no square matrix.
        UntrustworthyResultError: if nothing but rounding is left, as for a multiple of the identity.

    Example:
        >>> J = shared(torch.diag(torch.tensor([4.0, 3.0, -1.0])))
        >>> J.isotropic, J.dense().diagonal().tolist(), J.svd(k=1).S.tolist()
        (2.0, [2.0, 1.0, -3.0], [3.0])
    """
    return SharedPart(form_square("J", J))
