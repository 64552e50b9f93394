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

    block_jacobians(trace, 8, [(t, t) for t in range(trace.n_tokens)])    # J_tt at every token, in one batch
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from coupling_lib.blockmap import token_map
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.operators import prefer_matrix_free
from coupling_lib.pointwise import linearised
from coupling_lib.svd import SingularTriplets, top_triplets
from coupling_lib.tracing import Trace
from coupling_lib.unit_cotangents import picking_rows

# Bytes that the intermediate tensors of one batch of cotangents may take.
_BATCH_BYTES = {"cpu": 2**26, "cuda": 2**31}

# More cotangents than this at once give the matrix products nothing.
_LARGEST_BATCH = 1024

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
        return f"BlockJacobian({_name(self.trace, self.block, (self.token_in, self.token_out))})"

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
        x, y = self._output()
        (pulled,) = torch.autograd.grad(y, x, u[None], create_graph=True)
        product = _batched_gradient(pulled[0], u, columns, self._batch)
        if self.token_in == self.token_out:
            product = product - columns
        return product.T if V.ndim == 2 else product[0]

    def _transposed_product(self, U: torch.Tensor) -> torch.Tensor:
        """Multiply from the left: J^T U, for `U` of shape `(d,)` or `(d, m)`."""
        cotangents = self._columns(U)
        if "_dense" in self.__dict__:
            return self._dense.T @ U.to(self._dense)
        x, y = self._output()
        product = _batched_gradient(y, x, cotangents[:, None], self._batch)[:, 0]
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
        return _evaluate(self.trace, self.block, [(self.token_in, self.token_out)], self.boundary)

    @property
    def _batch(self) -> int:
        return _batch_size(self.trace, 1)

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


def block_jacobians(
    trace: Trace, block: int, pairs: Sequence[tuple[int, int]], boundary: str = "block"
) -> torch.Tensor:
    """Form the Jacobians of one block at several pairs of token positions, batched.

    Args:
        trace: the trace at whose states the block is linearised.
        block: the block l, from 0.
        pairs: `(t1, t2)` of each, positions from 0; all with t1 = t2, or all without.
        boundary: `"block"` or `"hidden_states"`; see `Trace.jacobian`.

    Returns:
        the Jacobians, shape `(len(pairs), d, d)`.

    Raises:
        ParameterError: if pairs with and without t1 = t2 are mixed.
        UntrustworthyResultError: if one is all zero or not finite, or the block, replayed on its own, does
            not give what it gave inside the model.
    """
    if len({start == end for start, end in pairs}) > 1:
        raise ParameterError("pairs mixes t1 = t2 with t1 != t2; form the two kinds in two calls")
    identity = torch.eye(trace.d_model, dtype=trace.dtype, device=trace.calls[block].input.device)
    parts = []
    # Other routes than attention take one set of positions at a time.
    together = 64 if trace.route == "attention" else 1
    for first in range(0, len(pairs), together):
        some = pairs[first : first + together]
        x, y = _evaluate(trace, block, some, boundary)
        cotangents = identity[:, None].expand(-1, len(some), -1)
        parts.append(_batched_gradient(y, x, cotangents, _batch_size(trace, len(some))).transpose(0, 1))
    J = parts[0] if len(parts) == 1 else torch.cat(parts)
    if pairs[0][0] == pairs[0][1]:
        J.diagonal(dim1=1, dim2=2).sub_(1)
    for matrix, pair in zip(J, pairs, strict=True):
        name = _name(trace, block, pair)
        least, largest = matrix.aminmax()  # one pass over the matrix; NaN and infinity show in both or one of them
        if not torch.isfinite(torch.stack([least, largest])).all():
            raise UntrustworthyResultError(
                f"the Jacobian of {name} holds NaN or infinite entries; try precision='float32'"
            )
        if not least and not largest:
            raise UntrustworthyResultError(
                f"the Jacobian of {name} is zero: position {pair[1]} does not attend to position {pair[0]} in this "
                "block (a later or masked token), or its weights dropped out of differentiation"
            )
    return J


def _evaluate(
    trace: Trace, block: int, pairs: Sequence[tuple[int, int]], boundary: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Evaluate a block with a graph: the varied states x_{t1} and the read states at t2, both `(T, d)`."""
    call, module = trace.calls[block], trace.block(block)
    start, end = torch.tensor(pairs, device=call.input.device).T
    one = pairs[0][0] == pairs[0][1]
    positions = start[:, None] if one else torch.stack([start, end], dim=1)
    # A causal block does not let an earlier token see a later one; only the whole sequence can say so.
    causal_order = bool((start <= end).all())
    route = trace.route if causal_order or trace.route == "attention" else "sequence"
    states = call.input[0][positions].to(trace.dtype)
    with torch.enable_grad(), linearised(module), picking_rows(module):
        x = states[:, 0].clone().requires_grad_(True)
        y = token_map(call, module, route, positions)(torch.cat([x[:, None], states[:, 1:]], dim=1))[:, -1]
        _check_replay(trace, block, pairs, y.detach(), call.output[0][end])
        if boundary == "hidden_states" and block == trace.n_blocks - 1:
            y = trace.final_norm(y)
        return x, y


def _check_replay(
    trace: Trace, block: int, pairs: Sequence[tuple[int, int]], replayed: torch.Tensor, recorded: torch.Tensor
) -> None:
    """Refuse to differentiate a map that is not the one the model evaluated."""
    recorded = recorded.to(replayed.dtype)
    errors = (replayed - recorded).norm(dim=1) / recorded.norm(dim=1)
    tolerance = _REPLAY_TOLERANCE.get(trace.model.precision, 1e-3)
    worst = int(errors.argmax())
    if not float(errors[worst]) <= tolerance:
        raise UntrustworthyResultError(
            f"{_name(trace, block, pairs[worst])}: replayed on its own, the block differs by "
            f"{float(errors[worst]):.1e} from what it gave inside the model; at most {tolerance:.0e} is accepted"
        )


def _batch_size(trace: Trace, n_pairs: int) -> int:
    """Give how many cotangents fit into the memory budget at once."""
    # About sixteen streams of intermediate values per cotangent, by count over a block's operations.
    tokens = trace.n_tokens if trace.route == "sequence" else n_pairs
    each = 16 * tokens * trace.d_model * trace.dtype.itemsize
    return min(_LARGEST_BATCH, max(1, _BATCH_BYTES.get(trace.calls[0].input.device.type, 2**26) // each))


def _batched_gradient(y: torch.Tensor, x: torch.Tensor, cotangents: torch.Tensor, batch: int) -> torch.Tensor:
    """Pull many cotangents back through one graph: entry i is the gradient of <cotangents_i, y> by x."""

    def pull(cotangent: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True)[0]

    # Parts of one size: a small last one would leave the matrix products idle.
    parts = cotangents.tensor_split(-(-len(cotangents) // batch))
    if len(parts) == 1:
        return torch.vmap(pull)(cotangents).detach()
    rows = cotangents.new_empty(len(cotangents), *x.shape)
    for part, place in zip(parts, rows.tensor_split(len(parts)), strict=True):
        place.copy_(torch.vmap(pull)(part).detach())
    return rows


def _name(trace: Trace, block: int, pair: tuple[int, int]) -> str:
    """Name a block and a pair of tokens, from 0 as in code."""
    return f"{trace.model.name!r}, block {block}, token {pair[0]} -> {pair[1]}"
