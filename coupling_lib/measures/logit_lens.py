"""The logit lens: what a model would predict if its stream ended at some depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from coupling_lib.errors import UnsupportedModelError
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.metrics.trajectory import logit_entropy

_ROWS = 8192
"""Rows of the unembedding that are widened to float32 at a time, to bound memory."""


def logit_lens_entropies(traced: Trace, token: int = -1) -> dict[str, Tensor]:
    """Entropy of the next-token distribution read off the stream at each depth (paper, figure 26)."""
    # Two readings: `entropy` is that of $\mathrm{softmax}(W x^l)$, the paper's formula as it stands, with the model's
    # unembedding W (and its bias, if it has one). `entropy_normed` is that of $\mathrm{softmax}(W\,N(x^l))$, where
    # the model's final norm N comes first, as it does in the model itself; at the last depth this is the model's own
    # prediction, up to a constant factor or a soft cap that a few models put on their logits and that is left out
    # here.
    hf = traced.model.hf
    position = traced.position(token)
    x = traced.hidden[:, position]
    head = hf.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if not isinstance(head, nn.Module) or weight is None:
        raise UnsupportedModelError(f"{type(hf).__name__} has no unembedding, so its states give no next token")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1]:
        raise UnsupportedModelError(
            f"the unembedding of {type(hf).__name__} has shape {tuple(weight.shape)} and does not read a stream "
            f"of width {x.shape[1]}"
        )
    with torch.no_grad():
        logits = {"entropy": _logits(head, x), "entropy_normed": _logits(head, traced.final_norm(x))}
    _check_prediction(traced, position, logits["entropy_normed"][-1])
    return {name: logit_entropy(values) for name, values in logits.items()}


def _logits(head: nn.Module, x: Tensor) -> Tensor:
    parts = [functional.linear(x, rows.to(x.device, x.dtype)) for rows in head.weight.split(_ROWS)]
    bias = getattr(head, "bias", None)
    return torch.cat(parts, dim=-1) + (0 if bias is None else bias.to(x.device, x.dtype))


def _check_prediction(traced: Trace, position: int, last: Tensor) -> None:
    """Refuse a model whose own logits are not these, up to a factor or a cap: some transform states once more."""
    hf = traced.model.hf
    with torch.no_grad():
        own = hf(**traced.inputs).logits[0, position].to(last)
    agreement = float(torch.corrcoef(torch.stack([last, own]))[0, 1])
    if not agreement > 0.99:
        raise UnsupportedModelError(
            f"{type(hf).__name__} does not predict by its unembedding alone (correlation {agreement:.2f} with its own "
            "logits), so its states give no next token"
        )
