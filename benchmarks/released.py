"""The released method of measuring coupling, reimplemented as the baseline.

It differentiates Hugging Face's `hidden_states` by each other: one backward pass over the whole sequence per output
coordinate, vectorised in chunks, of which one token's rows are kept. Every Jacobian is decomposed completely, and
every pair of blocks is visited in a loop for every K. Its last "block" ends after the final norm.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coupling_lib.blocks import attention_choice

KS = (10, 30, 50)
READINGS = ("released_norm", "released_trace", "released_norm_vju", "released_trace_vju")


def chunk_count(n_tokens: int) -> int:
    """Return the number of chunks that a prompt's backward passes are cut into."""
    return 2 * (n_tokens // 20) + 5


@contextmanager
def attention_set_to(hf: PreTrainedModel, kind: str) -> Generator[None]:
    """Run a model with one of transformers' own attentions, and restore the library's afterwards."""
    hf.set_attn_implementation(kind)
    try:
        yield
    finally:
        attention_choice.use(hf)


def hidden_states(hf: PreTrainedModel, ids: Tensor) -> tuple[Tensor, ...]:
    """Run a model once and keep the graph between its states."""
    with torch.enable_grad():
        embedded = hf.get_input_embeddings()(ids).detach().requires_grad_(True)
        return hf(inputs_embeds=embedded, output_hidden_states=True).hidden_states


def jacobian(states: Sequence[Tensor], block: int) -> Tensor:
    """Differentiate one state by the one before it, at the last token, and subtract the identity."""
    before, after = states[block], states[block + 1][0, -1]
    identity = torch.eye(len(after), device=after.device)

    def row(cotangent: Tensor) -> Tensor:
        (whole,) = torch.autograd.grad(after, before, cotangent, retain_graph=True)
        return whole[0, -1]

    parts = identity.to(after.dtype).chunk(chunk_count(before.shape[1]))
    with warnings.catch_warnings():
        # The fused attention has no rule for batches of cotangents and is called once for each.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        rows = torch.cat([torch.vmap(row)(part) for part in parts])
    return rows.detach() - identity


def decompose(J: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Decompose every Jacobian completely."""
    return [torch.linalg.svd(matrix) for matrix in J]


def couple(
    J: Sequence[Tensor], decomposed: Sequence[tuple[Tensor, Tensor, Tensor]], ks: Sequence[int] = KS
) -> dict[str, Tensor]:
    """Compare the Jacobian of every block with the vectors of every block."""
    values = {name: torch.zeros(len(ks), len(J), len(J)) for name in READINGS}
    for index, k in enumerate(ks):
        left = [U[:, :k] for U, _, _ in decomposed]
        right = [Vh[:k].T for _, _, Vh in decomposed]
        for one, matrix in enumerate(J):
            s = decomposed[one][1][:k]
            for other in range(len(J)):
                ujv = _distance(matrix, s, left[other], right[other])
                vju = _distance(matrix, s, right[other], left[other])
                for suffix, distance in (("", ujv), ("_vju", vju)):
                    values[f"released_norm{suffix}"][index, one, other] = distance / s.norm()
                    values[f"released_trace{suffix}"][index, one, other] = distance / s.sum()
    return values


def _distance(J: Tensor, s: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.norm((left.T @ J @ right).abs() - s.diag())
