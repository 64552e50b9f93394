"""The residual Jacobian of one block, as a linear operator.

For one pair of token positions, J^l_{t1 t2} = d f^l(X^{l-1})_{t2} / d x^{l-1}_{t1}: how the residual
branch of block l at position t2 answers to the state at position t1, every other position held fixed.
Hugging Face's blocks return x + f(x), so the identity is subtracted where t1 = t2, and only there: for
t1 != t2 the skip path contributes nothing.

Derivatives are reverse-mode throughout (`torch.autograd.grad`, batched over cotangents). Forward mode
returns zeros without a word on quantised layers, and on some attention kernels not at all.

    J = trace.jacobian(block=8)
    J @ V              # J V, without forming J
    J.T @ U            # J^T U
    J.dense()          # the (d, d) matrix, formed once
    J.svd(k=10)        # top singular triplets, each certified

Several at once, over tokens or prompts, are formed by `derivatives`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch

from coupling_lib.errors import ParameterError
from coupling_lib.jacobian.derivatives import batch_size, batched_gradient, block_jacobians, evaluate, position_name
from coupling_lib.svd.operators import prefer_matrix_free
from coupling_lib.svd.triplets import SingularTriplets, top_triplets

if TYPE_CHECKING:
    from coupling_lib.jacobian.tracing import Trace


class BlockJacobian:
    """J^l_{t1 t2} of one block at one pair of token positions, formed only when used.

    Rows are outputs: `J[i, j] = d f_i / d x_j`. `J.T` is the transposed operator.

    Args:
        trace: the trace at whose states the block is linearised.
        block: the block l, from 0.
        token_in: t1, from 0.
        token_out: t2, from 0.
        boundary: see `Trace.jacobian`.
    """

    def __init__(self, trace: Trace, block: int, token_in: int, token_out: int, boundary: str = "block"):
        self.trace = trace
        self.block = block
        self.token_in = token_in
        self.token_out = token_out
        self.boundary = boundary

    def __repr__(self) -> str:
        """Name the block and the tokens, from 0 as in code."""
        return f"BlockJacobian({position_name(self.trace, self.block, (self.token_in, self.token_out))})"

    @property
    def shape(self) -> tuple[int, int]:
        """Give `(d, d)`."""
        return (self.trace.d_model, self.trace.d_model)

    @property
    def dtype(self) -> torch.dtype:
        """Give the dtype of its entries: float32 or float64."""
        return self.trace.dtype

    @property
    def device(self) -> torch.device:
        """Give the device it is computed on."""
        return self.trace.calls[self.block].input.device

    @property
    def T(self) -> _Transposed:  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
        """Give the transposed operator: `J.T @ U` is J^T U."""
        return _Transposed(self)

    def __matmul__(self, V: torch.Tensor) -> torch.Tensor:
        """Multiply: J V."""
        columns = self._columns(V)
        if "_dense" in self.__dict__:
            return self._dense @ V.to(self._dense)
        # u -> J^T u is linear, so its own derivative along v is J v: two reverse passes and no forward mode.
        u = torch.zeros(self.shape[0], dtype=columns.dtype, device=columns.device, requires_grad=True)
        x, y = self._output()
        (pulled,) = torch.autograd.grad(y, x, u[None], create_graph=True)
        product = batched_gradient(pulled[0], u, columns, self._batch)
        if self.token_in == self.token_out:
            product = product - columns
        return product.T if V.ndim == 2 else product[0]

    def _transposed_product(self, U: torch.Tensor) -> torch.Tensor:
        """Multiply from the left: J^T U, for `U` of shape `(d,)` or `(d, m)`."""
        cotangents = self._columns(U)
        if "_dense" in self.__dict__:
            return self._dense.T @ U.to(self._dense)
        x, y = self._output()
        product = batched_gradient(y, x, cotangents[:, None], self._batch)[:, 0]
        if self.token_in == self.token_out:
            product = product - cotangents
        return product.T if U.ndim == 2 else product[0]

    def dense(self) -> torch.Tensor:
        """Form the whole matrix, once; it is kept.

        Returns:
            J, shape `(d, d)`, float32 (float64 for a float64 model).

        Raises:
            UntrustworthyResultError: if it is all zero or not finite, or the block, replayed on its own,
                does not give what it gave inside the model.
        """
        return self._dense

    @cached_property
    def _dense(self) -> torch.Tensor:
        return block_jacobians(self.trace, self.block, [(self.token_in, self.token_out)], self.boundary)[0]

    def svd(self, k: int = 10) -> SingularTriplets:
        """Compute the K largest singular triplets.

        A few triplets of a wide block come from products J V and J^T U alone; else the matrix is formed and kept.

        Args:
            k: how many, from 1 to d.

        Returns:
            `U (d, k)`, `S (k,)`, `Vh (k, d)`, `residual (k,)`.
        """
        unformed = "_dense" not in self.__dict__ and prefer_matrix_free(self.shape[0], k, 0, 10 * k + 100)
        return top_triplets(self if unformed else self.dense(), k)

    def _output(self) -> tuple[torch.Tensor, torch.Tensor]:
        return evaluate([self.trace], self.block, [(self.token_in, self.token_out)], self.boundary)

    @property
    def _batch(self) -> int:
        return batch_size(self.trace, 1)

    def _columns(self, V: torch.Tensor) -> torch.Tensor:
        """Bring the vectors to multiply with into rows, in the Jacobian's dtype."""
        if V.ndim not in (1, 2) or V.shape[0] != self.shape[1]:
            raise ParameterError(
                f"the factor has shape {tuple(V.shape)}; ({self.shape[1]},) or ({self.shape[1]}, m) fits"
            )
        columns = V.unsqueeze(0) if V.ndim == 1 else V.T
        return columns.to(self.device, self.dtype)


class _Transposed:
    """The transpose of a `BlockJacobian`, for `J.T @ U`."""

    def __init__(self, jacobian: BlockJacobian):
        self.T = jacobian
        self.shape = jacobian.shape[::-1]

    def __matmul__(self, U: torch.Tensor) -> torch.Tensor:
        return self.T._transposed_product(U)

    def dense(self) -> torch.Tensor:
        return self.T.dense().T
