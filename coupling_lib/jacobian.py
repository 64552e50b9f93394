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
"""

from __future__ import annotations

from functools import cached_property

import torch

from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.svd import SingularTriplets, top_triplets
from coupling_lib.tracing import Trace

# Bytes that the intermediate tensors of one batch of cotangents may take.
_BATCH_BYTES = 2**29

# How closely a replayed block must give what it gave inside the model, relative to the norm of its
# output. Weights narrower than float32 run in their own arithmetic inside the model and in float32 here.
_REPLAY_TOLERANCE = {"bfloat16": 5e-2, "float16": 1e-2, "int8": 1e-1}


class BlockJacobian:
    """J^l_{t1 t2} of one block at one pair of token positions, formed only when used.

    Rows are outputs: `J[i, j] = d f_i / d x_j`. `J.T` is the transposed operator.

    Args:
        trace: the trace at whose states the block is linearised.
        block: the block l, from 0.
        token_in: t1, from 0.
        token_out: t2, from 0.
        boundary: `"block"` or `"hidden_states"`; see `Trace.jacobian`.
    """

    def __init__(self, trace: Trace, block: int, token_in: int, token_out: int, boundary: str = "block"):
        self.trace = trace
        self.block = block
        self.token_in = token_in
        self.token_out = token_out
        self.boundary = boundary

    def __repr__(self) -> str:
        """Name the block and the tokens, from 0 as in code."""
        pair = f"token {self.token_in} -> {self.token_out}, {self.shape[0]} x {self.shape[1]}"
        return (
            f"BlockJacobian({self.trace.model.name!r}, block {self.block}, {pair})"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Give `(d, d)`."""
        return (self.trace.d_model, self.trace.d_model)

    @property
    def T(self) -> _Transposed:  # ruff: ignore[invalid-function-name] (the name every matrix gives it)
        """Give the transposed operator: `J.T @ U` is J^T U."""
        return _Transposed(self)

    def __matmul__(self, V: torch.Tensor) -> torch.Tensor:
        """Multiply: J V.

        Args:
            V: shape `(d,)` or `(d, m)`.

        Returns:
            J V, in the shape of `V`.
        """
        columns = self._columns(V)
        if "_dense" in self.__dict__:
            return self._dense @ V.to(self._dense)
        # u -> J^T u is linear, so its own derivative along v is J v: two reverse passes and no forward mode.
        u = torch.zeros(self.shape[0], dtype=columns.dtype, device=columns.device, requires_grad=True)
        x, y = self._output(columns.dtype, columns.device)
        (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)
        product = _batched_gradient(pulled, u, columns, self._batch)
        if self._has_skip:
            product = product - columns
        return product.T if V.ndim == 2 else product[0]

    def _transposed_product(self, U: torch.Tensor) -> torch.Tensor:
        """Multiply from the left: J^T U, for `U` of shape `(d,)` or `(d, m)`."""
        cotangents = self._columns(U)
        if "_dense" in self.__dict__:
            return self._dense.T @ U.to(self._dense)
        x, y = self._output(cotangents.dtype, cotangents.device)
        product = _batched_gradient(y, x, cotangents, self._batch)
        if self._has_skip:
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
        device = self.trace.calls[self.block].input.device
        identity = torch.eye(self.shape[0], dtype=self.trace.dtype, device=device)
        x, y = self._output(identity.dtype, device)
        J = _batched_gradient(y, x, identity, self._batch)
        if self._has_skip:
            J = J - identity
        if not torch.isfinite(J).all():
            raise UntrustworthyResultError(f"{self!r} holds NaN or infinite entries; try precision='float32'")
        if not J.any():
            raise UntrustworthyResultError(
                f"{self!r} is zero: position {self.token_out} does not attend to position {self.token_in} in this "
                "block (a later or masked token), or its weights dropped out of differentiation"
            )
        return J

    def svd(self, k: int = 10) -> SingularTriplets:
        """Compute the K largest singular triplets.

        Args:
            k: how many, from 1 to d.

        Returns:
            `U (d, k)`, `S (k,)`, `Vh (k, d)`, `residual (k,)`.
        """
        return top_triplets(self.dense(), k)

    @property
    def _has_skip(self) -> bool:
        """Tell whether the block's output holds its input at the token that is read."""
        return self.token_in == self.token_out

    @property
    def _batch(self) -> int:
        """Give how many cotangents fit into the memory budget at once."""
        # About sixteen streams of intermediate values per cotangent, by count over a block's operations.
        per_cotangent = 16 * self.trace.n_tokens * self.trace.d_model * 8
        return max(1, _BATCH_BYTES // per_cotangent)

    def _columns(self, V: torch.Tensor) -> torch.Tensor:
        """Bring the vectors to multiply with into rows, in the Jacobian's dtype."""
        if V.ndim not in (1, 2) or V.shape[0] != self.shape[1]:
            raise ParameterError(
                f"the factor has shape {tuple(V.shape)}; ({self.shape[1]},) or ({self.shape[1]}, m) fits"
            )
        call = self.trace.calls[self.block]
        columns = V.unsqueeze(0) if V.ndim == 1 else V.T
        return columns.to(call.input.device, self.trace.dtype)

    def _output(self, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Evaluate the block with a graph: the varied state x_{t1} and the read state at t2."""
        call = self.trace.calls[self.block]
        stream = call.input.to(dtype)
        with torch.enable_grad():
            x = stream[0, self.token_in].clone().requires_grad_(True)
            at_token = torch.zeros(1, stream.shape[1], 1, dtype=torch.bool, device=device)
            at_token[0, self.token_in] = True
            left = call.replay(self.trace.block(self.block), torch.where(at_token, x, stream))
            self._check_replay(left.detach(), call.output)
            if self.boundary == "hidden_states" and self.block == self.trace.n_blocks - 1:
                left = self.trace.final_norm(left)
            return x, left[0, self.token_out]

    def _check_replay(self, replayed: torch.Tensor, recorded: torch.Tensor) -> None:
        """Refuse to differentiate a map that is not the one the model evaluated."""
        error = float((replayed - recorded).norm() / recorded.to(replayed.dtype).norm())
        tolerance = _REPLAY_TOLERANCE.get(self.trace.model.precision, 1e-3)
        if not error <= tolerance:
            raise UntrustworthyResultError(
                f"{self!r}: replayed on its own, the block differs by {error:.1e} from what it gave inside the model; "
                f"at most {tolerance:.0e} is accepted"
            )


class _Transposed:
    """The transpose of a `BlockJacobian`, for `J.T @ U`."""

    def __init__(self, jacobian: BlockJacobian):
        self.T = jacobian
        self.shape = jacobian.shape[::-1]

    def __matmul__(self, U: torch.Tensor) -> torch.Tensor:
        return self.T._transposed_product(U)

    def dense(self) -> torch.Tensor:
        return self.T.dense().T


def _batched_gradient(y: torch.Tensor, x: torch.Tensor, cotangents: torch.Tensor, batch: int) -> torch.Tensor:
    """Pull many cotangents back through one graph: row i is (dy/dx)^T cotangents_i, shape `(m, d)`."""
    rows = [
        torch.autograd.grad(
            y, x, part, is_grads_batched=True, retain_graph=True, allow_unused=True, materialize_grads=True
        )[0]
        for part in cotangents.split(batch)
    ]
    return torch.cat(rows).detach()
