r"""The residual Jacobian of one block, as a linear operator.

$J^l_{t_1 t_2} = \partial f^l(X^{l-1})_{t_2} / \partial x^{l-1}_{t_1}$, every other position held fixed. Blocks return
$x + f(x)$, so the identity is subtracted where $t_1 = t_2$. Derivatives are reverse-mode throughout: forward mode
returns silent zeros on quantised layers, and fails on some attention kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coupling_lib.errors import UntrustworthyResultError, VanishingJacobianError, check_whole
from coupling_lib.jacobian.derivatives import batch_size, batched_gradient, form
from coupling_lib.jacobian.differentiate import (
    Traced,
    evaluate,
    n_evaluated,
    position_name,
    refuse_rounding,
    rounding_error,
)
from coupling_lib.modes import differentiating
from coupling_lib.svd.operators import fewer_products, real_factor
from coupling_lib.svd.triplets import SingularTriplets, top_triplets


@dataclass(eq=False, repr=False)
class BlockJacobian:
    """J^l_{t1 t2} of one block at one pair of token positions, formed only when used.

        J = trace.jacobian(block=8)
        J @ V              # J V, without forming J; V a tensor or a numpy array, (d,) or (d, m), of finite numbers
        J.T @ U            # J^T U
        J.dense()          # the (d, d) matrix, formed once; rows are outputs, J[i, j] = d f_i / d x_j
        J.error            # bound on its rounding error, in the Frobenius norm
        J.svd(k=10)        # top singular triplets, each certified

    A factor that is no vector or matrix raises `ParameterError`. A zero Jacobian, such as that of tokens against causal
    order, raises `VanishingJacobianError` wherever it is used, instead of returning zeros. One smaller than rounding
    errors in float32 of the sums that it was formed from raises it as well, except by `dense`.
    Blocks and tokens are counted from 0; `Trace.jacobian` documents the boundary.
    """

    trace: Traced
    block: int
    token_in: int
    token_out: int
    boundary: str = "block"
    _graph: _Graph | None = field(default=None, init=False)
    _checked: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        return f"BlockJacobian({position_name(self.trace, self.block, self._pair)})"

    @property
    def _pair(self) -> tuple[int, int]:
        return (self.token_in, self.token_out)

    @property
    def shape(self) -> tuple[int, int]:
        """`(d, d)`."""
        return (self.trace.d_model, self.trace.d_model)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its entries: float32 or float64."""
        return self.trace.dtype

    @property
    def device(self) -> torch.device:
        """Device it is computed on."""
        return self.trace.calls[self.block].input.device

    @property
    def T(self) -> _Transposed:  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
        """Transposed operator: `J.T @ U` is J^T U."""
        return _Transposed(self)

    def __matmul__(self, V: Tensor | np.ndarray) -> Tensor:
        return self._product(V, transposed=False)

    def _product(self, factor: Tensor | np.ndarray, *, transposed: bool) -> Tensor:
        """Compute J V or J^T V, for a factor V of shape `(d,)` or `(d, m)`."""
        V = real_factor(factor, self.shape[1])
        if "_dense" in self.__dict__:
            J = self._checked_dense()
            product = (J.T if transposed else J) @ V.to(J)
        else:
            columns = (V.unsqueeze(0) if V.ndim == 1 else V.T).to(self.device, self.dtype)
            product = (self._graph or _Graph(self)).product(columns, transposed=transposed)
            if self.token_in == self.token_out:
                product = product - columns
            product = product.T if V.ndim == 2 else product[0]
        if not bool(product.isfinite().all()):
            raise UntrustworthyResultError(
                f"{position_name(self.trace, self.block, self._pair)}: a product with the Jacobian is NaN or infinite "
                f"in {self.dtype}, where the factor's largest entry is {float(V.abs().max()):.0e}; scale it down"
            )
        return product

    @contextmanager
    def held(self) -> Generator[None]:
        """Evaluate the block once for all products inside the context, instead of once for each."""
        outer, self._graph = self._graph, self._graph or _Graph(self)
        try:
            yield
        finally:
            self._graph = outer

    def dense(self) -> Tensor:
        """Form the whole matrix `(d, d)`, once; errors are those of `block_jacobians`, except for rounding."""
        return self._dense.clone()  # the caller may write to it

    @cached_property
    def _dense(self) -> Tensor:
        out = torch.empty(1, *self.shape, dtype=self.dtype, device=self.trace.device)
        return form(self.trace, self.block, [self._pair], self.boundary, out, rounded=True)[0]

    @cached_property
    def error(self) -> float:
        """Bound on the matrix's rounding error, in the Frobenius norm."""
        return rounding_error(self.trace, self.block, self._pair, self.boundary)[0]

    def vanishes(self) -> bool:
        """Return whether the Jacobian is zero or lost in rounding, judged by one product with it."""
        try:
            _Graph(self)
        except VanishingJacobianError:
            return True
        return False

    def _checked_dense(self) -> Tensor:
        """Return the matrix, and refuse it if it is lost in rounding."""
        J = self._dense
        self._refuse_rounding(lambda u: u.to(J) @ J)
        return J

    def _refuse_rounding(self, pulled: Callable[[Tensor], Tensor]) -> None:
        # A token's own derivative holds the identity; the derivative between two tokens may be zero throughout.
        if not self._checked and self.token_in != self.token_out:
            refuse_rounding(self.trace, self.block, self._pair, self.boundary, pulled)
        self._checked = True

    def svd(self, k: int = 10, formed: bool | None = None) -> SingularTriplets:
        """Compute the K largest singular triplets, each certified.

        Args:
            k: number of triplets, from 1 to d.
            formed: whether the matrix is formed and kept, rather than multiplied with; None for the faster
                way. It is formed in any case where products do not separate the K-th triplet from the next.

        Returns:
            `U (d, k)`, `S (k,)`, `Vh (k, d)`, `residual (k,)`; errors are those of `top_triplets`.
        """
        check_whole("k", k, 1, self.shape[0], f"the Jacobian has width {self.shape[0]}")
        formed = not fewer_products(self.shape[0], k) if formed is None else formed
        if not formed and "_dense" not in self.__dict__:
            with self.held(), suppress(UntrustworthyResultError):
                return top_triplets(self, k)
        return top_triplets(self._checked_dense(), k)


class _Graph:
    """A block evaluated once, for any number of products with its Jacobian, the identity included."""

    def __init__(self, jacobian: BlockJacobian):
        given = jacobian.trace, jacobian.block, [jacobian._pair]
        self._x, self._y = evaluate(*given, jacobian.boundary)
        self._batch = batch_size(jacobian.trace, n_evaluated(*given))
        jacobian._refuse_rounding(lambda u: self.product(u.to(self._y)[None], transposed=True)[0])

    def product(self, columns: Tensor, *, transposed: bool) -> Tensor:
        """Return the products with columns, which are given as rows."""
        with differentiating():
            # A tensor created in inference mode cannot be part of a graph; its copy can.
            columns = columns.clone() if columns.is_inference() else columns
            if transposed:
                return batched_gradient(self._y, self._x, columns[:, None], self._batch)[:, 0]
            u, pulled = self._pulled
            return batched_gradient(pulled, u, columns, self._batch)

    @cached_property
    def _pulled(self) -> tuple[Tensor, Tensor]:
        # u -> J^T u is linear, so its own derivative along v is J v: two reverse passes and no forward mode.
        u = torch.zeros_like(self._y[0], requires_grad=True)
        (pulled,) = torch.autograd.grad(self._y, self._x, u[None], create_graph=True)
        return u, pulled[0]


class _Transposed:
    """The transpose of a `BlockJacobian`, for `J.T @ U`."""

    def __init__(self, jacobian: BlockJacobian):
        self.T, self.shape = jacobian, jacobian.shape[::-1]

    def __matmul__(self, U: Tensor | np.ndarray) -> Tensor:
        return self.T._product(U, transposed=True)

    def dense(self) -> Tensor:
        return self.T.dense().T
