"""Coupling across tokens: one block's self-Jacobians J_tt at all token positions of a prompt."""

from __future__ import annotations

import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.jacobian import block_jacobians
from coupling_lib.measures.common import check_k, prompt_inputs
from coupling_lib.metrics.variants import measure_variants
from coupling_lib.models import Model
from coupling_lib.provenance import provenance
from coupling_lib.svd import top_triplets_stacked
from coupling_lib.tracing import trace


def measure_tokens(model: Model, prompt: str | torch.Tensor, block: int, k: int = 10) -> xr.Dataset:
    """Measure self-coupling across tokens within one block (paper, section 3.2).

    A_{t t'} = U_{t',K}^T J^l_{tt} V_{t',K}, with U_{t'}, V_{t'} the singular vectors of J^l_{t't'}.

    Args:
        model: a model from `load_model`.
        prompt: a text, `input_ids` `(1, n)`, or an image.
        block: the block l, from 0.
        k: number of singular vectors K.

    Returns:
        a dataset with one variable `(token_1, token_2)` per variant: the Jacobian at `token_1` against the
        vectors at `token_2`; and `singular_values` `(token_1, rank)`. Coordinate `text` names the tokens.

    Raises:
        ParameterError: if K exceeds the width or the block does not exist.
    """
    (given,) = prompt_inputs(prompt)
    check_k(model, k)
    traced = trace(model, given)
    if not 0 <= block < traced.n_blocks:
        raise ParameterError(f"block is {block!r}; {model.name} has {traced.n_blocks}, counted from 0")
    J = block_jacobians(traced, block, [(token, token) for token in range(traced.n_tokens)])
    triplets = top_triplets_stacked(J, k)
    values = measure_variants(J, triplets.U, triplets.S, triplets.Vh, (k,))
    ds = xr.Dataset({name: (("token_1", "token_2"), value[0].cpu().numpy()) for name, value in values.items()})
    ds["singular_values"] = (("token_1", "rank"), triplets.S.cpu().numpy())
    positions = range(traced.n_tokens)
    ds = ds.assign_coords(token_1=positions, token_2=positions)
    if traced.tokens is not None:
        ds = ds.assign_coords(text=("token_1", traced.tokens))
    ds.attrs = provenance(model, [given], measure="tokens", block=block, k=k, route=traced.route)
    return ds
