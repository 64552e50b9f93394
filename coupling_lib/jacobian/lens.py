r"""The Jacobian lens of one token: the effect of its state at each depth on its last state, to first order.

In a causal decoder no path leaves token $t$ and returns to it, so where blocks hand on nothing but their stream,

$$\frac{\partial x^L_t}{\partial x^l_t} = (I + J^L_{tt}) \cdots (I + J^{l+1}_{tt}),$$

exactly, for L Jacobians and L - 1 products of matrices at all depths together. Both conditions are tested by one
cotangent pulled back through the whole model (`whole_model`). Other programs sum over all later tokens and
average over tokens and prompts: another quantity, `targets="later"` here; see the chapter on lenses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coupling_lib.blocks import storage
from coupling_lib.errors import ParameterError, UnsupportedModelError, check_whole, shown
from coupling_lib.jacobian import whole_model
from coupling_lib.jacobian.derivatives import batch_size, block_jacobians
from coupling_lib.jacobian.differentiate import evaluate
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.modes import exclusive
from coupling_lib.svd.operators import real_factor

TARGETS = ("own", "later")
"""Targets that a lens differentiates: the token's own last state, or the sum of all later tokens' last states."""
# Relative tolerance between logits of one state computed in two ways.
_SAME_LOGITS = 1e-2


class Lens:
    """d x^L_t / d x^l_t of one token for l = 0 .. L, formed only when used; built and documented by `lens`."""

    def __init__(self, trace: Trace, token: int):
        self.trace, self.token = trace, token
        self._blocks = [trace.jacobian(block, token) for block in range(trace.n_blocks)]

    @property
    def _formed(self) -> bool:
        """True if products use the lens's own matrices rather than the blocks'."""
        return "_dense" in self.__dict__ or not self._blocks

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(L + 1, d, d)`."""
        return (self.trace.n_blocks + 1, self.trace.d_model, self.trace.d_model)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, depth: int | slice | Tensor) -> Tensor:
        return self._dense[depth].clone()

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._dense.cpu().numpy(), dtype=dtype)

    def dense(self) -> Tensor:
        """Form the matrices of all depths, `(L + 1, d, d)`, once; errors are those of `jacobian`."""
        return self._dense.clone()  # the caller may write to it

    @cached_property
    def _dense(self) -> Tensor:
        trace, pair = self.trace, (self.token, self.token)
        found = torch.empty(self.shape, dtype=trace.dtype, device=trace.device)
        found[-1] = torch.eye(trace.d_model)
        for block in reversed(range(trace.n_blocks)):
            J = block_jacobians(trace, block, [pair])[0].to(found)
            found[block] = torch.addmm(found[block + 1], found[block + 1], J)
        return found

    def __matmul__(self, v: Tensor | np.ndarray) -> Tensor:
        """Multiply v, `(d,)`, by the matrix of every depth: the effect of a change v at depth l, `(L + 1, d)`."""
        v = self._vector(v)
        return self._dense @ v if self._formed else self._propagated(v.expand(len(self), -1))

    def of(self, direction: Tensor | np.ndarray) -> Tensor:
        r"""Return the gradient of $u^\top x^L_t$ by $x^l_t$ at every depth, `(L + 1, d)`, in L products."""
        u = self._vector(direction)
        if self._formed:
            return u @ self._dense
        rows = [u]
        for J in reversed(self._blocks):
            rows.append(rows[-1] + (J.T @ rows[-1]).to(u))
        return torch.stack(rows[::-1])

    def states(self) -> Tensor:
        """Return the state of each depth propagated to the last, the matrix times x^l_t, `(L + 1, d)`."""
        x = self.trace.hidden[:, self.token]
        return torch.einsum("lij,lj->li", self._dense, x) if self._formed else self._propagated(x)

    def _propagated(self, x: Tensor) -> Tensor:
        """Propagate one vector from every depth to the last, `(L + 1, d)`; block l adds the vector of its own depth."""
        columns = x[:1].T
        for J, state in zip(self._blocks, x[1:], strict=True):
            columns = torch.cat([columns + (J @ columns).to(columns), state[:, None]], dim=1)
        return columns.T

    def readout(self, k: int = 5, norm: str = "applied") -> Readout:
        """Return the k strongest tokens of each depth: the state times the lens, through final norm and unembedding."""
        return read(self.trace, self.token, self.states(), range(len(self)), k, norm, self.head)

    @cached_property
    def head(self) -> Callable[[Tensor], Tensor]:
        """Function from a last state to its logits, compared with the model's own logits."""
        return head_of(self.trace, self.token)

    def _vector(self, v: Tensor | np.ndarray) -> Tensor:
        v = real_factor(v, self.trace.d_model)
        if v.ndim != 1:
            raise ParameterError(f"the vector has shape {tuple(v.shape)}; ({self.trace.d_model},) is expected")
        return v.to(self.trace.device, self.trace.dtype)


class SummedLens(Lens):
    """The derivative of all later last states by a token's own, averaged over tokens, as defined by `lens`."""

    def __init__(self, trace: Trace, token: int, skip: int):
        self.trace, self.token, self.skip, self._blocks = trace, token, skip, []

    @cached_property
    def _dense(self) -> Tensor:
        trace, d, (_, n, _) = self.trace, self.trace.d_model, self.trace.calls[-1].input.shape
        among = slice(trace.first + self.skip, trace.first + trace.n_tokens - 1)
        seen = whole_model.differentiated(trace, trace.dtype)
        whole_model.refuse_bidirectional(seen, trace.model.name)
        found = torch.empty(self.shape, dtype=trace.dtype, device=trace.device)
        found[-1] = torch.eye(d)
        for rows in torch.arange(d).split(batch_size(trace, n * trace.n_blocks)):
            # One coordinate of every target at once: a causal model's gradient at a token is the sum over later ones.
            cotangents = seen.streams[-1].new_zeros(len(rows), 1, n, d)
            cotangents[torch.arange(len(rows)), 0, among, rows] = 1
            for depth, grad in enumerate(seen.pulled_back(cotangents, seen.streams[:-1], is_grads_batched=True)):
                found[depth, rows] = grad[:, 0, among].mean(dim=1).to(found)
        return found


@exclusive
def lens(trace: Trace, token: int = -1, targets: str = "own", skip: int = 16) -> Lens:
    r"""Return the Jacobian lens of one token: the derivative of its last state by its state at every depth.

    $$\frac{\partial x^L_t}{\partial x^l_t} = (I + J^L_{tt}) \cdots (I + J^{l+1}_{tt}), \qquad l = 0 \dots L,$$

    before the final norm. It is exact if in a causal model no path leaves t and returns to it, and if blocks hand on
    their stream alone, which is tested against one derivative of the whole model; the J are the residual
    Jacobians of the paper's section 2.

    Args:
        trace: a trace of a causal model.
        token: the position t; -1 is the last.
        targets: "own" for the above; "later" for the Jacobian lens of other programs, with a token's effect on
            all later ones:

            $$\frac{1}{|V|} \sum_{t \in V} \sum_{t' \in V, t' \ge t} \frac{\partial x^L_{t'}}{\partial x^l_t},$$

            V being all positions but the first `skip` and the last, by backward passes through the whole model, which
            include all that blocks hand on. States and readouts are then those of `token`.
        skip: how many leading positions are left out of V.

    Returns:
        an operator (L + 1, d, d), outputs before inputs, in units of state by state; that of depth L is the identity.

        - `[8]`: the matrix (d, d) behind block 8; `dense()`: those of all depths;
        - `@ v`, (L + 1, d): the effect of a change v at each depth, in L products and without a matrix (d, d);
        - `of(u)`, (L + 1, d): the gradient of u . x^L at each depth, in L products;
        - `states()`, (L + 1, d): the state of each depth, propagated to the last;
        - `readout(k, norm)`: `ids`, `logits` and `tokens`, (L + 1, k), of this state's strongest tokens; with the
          final norm "applied" to it, or "linearised" at the last state, which gives derivatives of the logits; at
          depth L these are almost 0 behind a norm, and rounding orders them.

    Raises:
        ParameterError: if the token does not exist, `targets` is unknown, or V is empty.
        UnsupportedModelError: if the model is bidirectional, in which paths through other tokens come back; if its
            blocks hand on keys, values or states of routers beside their stream; and a readout, if its logits are not
            its unembedding of its final norm.

    Example:
        >>> import coupling_lib as cl
        >>> found = cl.lens(cl.trace(cl.load_model("nano-neox"), "It was a dark and stormy night"))
        >>> found.shape, found.readout(k=1).ids.shape
        ((13, 96, 96), torch.Size([13, 1]))
    """
    position = trace.position(token)
    if targets not in TARGETS:
        raise ParameterError(f"targets is {shown(targets)}; it must be {' or '.join(map(repr, TARGETS))}")
    if targets == "later":
        why = f"of {trace.n_tokens} tokens so many and the last are left out"
        check_whole("skip", skip, 0, trace.n_tokens - 2, why)
        if trace.model.offloaded:
            raise UnsupportedModelError(
                f"the blocks of {trace.model.name} lie on disk, and targets='later' differentiates the whole model at "
                "once; load it with more memory, or take targets='own'"
            )
        return SummedLens(trace, position, skip)
    whole_model.refuse_other_paths(trace, trace.first + position, partial(_rows, trace, position))
    return Lens(trace, position)


def _rows(trace: Trace, token: int, u: Tensor, wide: bool) -> Tensor:
    """Multiply the product of the blocks' own maps at a token by u^T from the left, at every depth, `(L + 1, d)`."""
    rows = [u.clone() if u.is_inference() else u]
    for block in reversed(range(trace.n_blocks)):
        x, y = evaluate(trace, block, [(token, token)], "block", wide=wide)
        (row,) = torch.autograd.grad(y, x, rows[-1].to(y)[None], materialize_grads=True)
        rows.append(row[0])
    return torch.stack([row.to(rows[0].device, rows[0].dtype) for row in rows[::-1]])


class Readout(NamedTuple):
    """The strongest tokens that a lens reads at each of its depths."""

    ids: Tensor
    """Token ids, (depths, k)."""
    logits: Tensor
    """Their logits, (depths, k); before the model's cap on logits, if any, which does not change their order."""
    tokens: list[list[str]] | None
    """Their texts; None where there is no tokenizer."""
    depths: list[int]
    """The depths, from 0 (the embedding) to L (the last state)."""


def read(
    trace: Trace, token: int, states: Tensor, depths: Sequence[int], k: int, norm: str, head: Callable[[Tensor], Tensor]
) -> Readout:
    """Return the k strongest tokens of states that were propagated to the last depth, `(depths, d)`."""
    if norm not in ("applied", "linearised"):
        raise ParameterError(f"norm is {norm!r}; it must be 'applied' or 'linearised'")
    last = trace.hidden[-1, token]
    with torch.no_grad():
        if norm == "applied":
            logits = head(states)
        else:
            logits = torch.func.vmap(lambda v: torch.func.jvp(head, (last,), (v,))[1])(states)
    check_whole("k", k, 1, logits.shape[-1], f"{trace.model.name} knows so many tokens")
    values, ids = logits.topk(k)
    tokenizer = trace.model.tokenizer
    tokens = tokenizer and [[tokenizer.decode([token]) for token in depth] for depth in ids.tolist()]
    return Readout(ids, values, tokens, list(depths))


def head_of(trace: Trace, token: int) -> Callable[[Tensor], Tensor]:
    """Return the function from a last state to its logits, compared with the model's own logits."""
    hf = trace.model.hf
    if (unembedding := hf.get_output_embeddings()) is None:
        raise UnsupportedModelError(f"{trace.model.name} has no unembedding; a readout needs a language model")
    norm, linear = trace.final_norm, storage.dense_copy(unembedding, trace.dtype, trace.device)
    with torch.no_grad():
        found = linear(norm(trace.hidden[-1, token]))
        logits = hf(**trace.inputs).logits[0]
        wanted = logits[token + trace.first * (len(logits) > trace.n_tokens)].to(found)
    # Some families scale their logits, and some cap them, which shrinks the largest and keeps their order.
    scale = float((wanted @ found) / (found @ found))
    order = torch.corrcoef(torch.stack([wanted.argsort().argsort(), found.argsort().argsort()]).double())[0, 1]
    if not (scale > 0 and order > 1 - _SAME_LOGITS):
        raise UnsupportedModelError(
            f"the logits of {trace.model.name} are not its unembedding of its final norm (ranks agree to "
            f"{float(order):.3f}); use the lens itself, `dense()` or `@`"
        )
    capped = float((scale * found - wanted).norm() / wanted.norm()) > _SAME_LOGITS
    return lambda state: linear(norm(state)) * (1.0 if capped else scale)
