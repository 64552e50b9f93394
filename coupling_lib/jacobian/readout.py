"""What a lens reads: states carried to the last depth, through the model's own final norm and unembedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coupling_lib.blocks import storage
from coupling_lib.errors import ParameterError, UnsupportedModelError, check_whole
from coupling_lib.jacobian.tracing import Trace

# Logits of one state by two ways differ by rounding alone.
_SAME_LOGITS = 1e-2


class Readout(NamedTuple):
    """The strongest tokens that a lens reads at each of its depths."""

    ids: Tensor
    """Token ids, (depths, k)."""
    logits: Tensor
    """Their logits, (depths, k); before a cap on logits, which changes no order, where the model has one."""
    tokens: list[list[str]] | None
    """Their texts; None where there is no tokenizer."""
    depths: list[int]
    """The depths, from 0 (the embedding) to L (the last state)."""


def read(
    trace: Trace, token: int, states: Tensor, depths: Sequence[int], k: int, norm: str, head: Callable[[Tensor], Tensor]
) -> Readout:
    """Read the k strongest tokens of states that were carried to the last depth, `(depths, d)`."""
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
    """Find what makes logits of a last state, and compare it with the model's own logits."""
    hf = trace.model.hf
    if (unembedding := hf.get_output_embeddings()) is None:
        raise UnsupportedModelError(f"{trace.model.name} has no unembedding; a readout needs a language model")
    norm, linear = trace.final_norm, storage.dense_copy(unembedding, trace.dtype, trace.device)
    with torch.no_grad():
        found = linear(norm(trace.hidden[-1, token]))
        logits = hf(**trace.inputs).logits[0]
        wanted = logits[token + trace.first * (len(logits) > trace.n_tokens)].to(found)
    # Some families scale their logits, and some cap them, which bends the largest and leaves their order.
    scale = float((wanted @ found) / (found @ found))
    order = torch.corrcoef(torch.stack([wanted.argsort().argsort(), found.argsort().argsort()]).double())[0, 1]
    if not (scale > 0 and order > 1 - _SAME_LOGITS):
        raise UnsupportedModelError(
            f"the logits of {trace.model.name} are not its unembedding of its final norm (ranks agree to "
            f"{float(order):.3f}); use the lens itself, `dense()` or `@`"
        )
    capped = float((scale * found - wanted).norm() / wanted.norm()) > _SAME_LOGITS
    return lambda state: linear(norm(state)) * (1.0 if capped else scale)
