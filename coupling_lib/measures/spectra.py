"""Spectra: the singular values of block Jacobians across depth, and whether left and right vectors agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.given import prompt_inputs, prompt_name
from coupling_lib.measures.frame import batched, check_k, jacobians_by_prompt, measurement
from coupling_lib.measures.random_bases import root_mean_square_spectra
from coupling_lib.metrics.nulls import DRAWS, mean_absolute_coordinate
from coupling_lib.metrics.spectrum import (
    decay_exponent,
    exchanged_miscoupling,
    exchanged_null,
    first_block_of_fit,
    inverse_sigma_fit,
    left_right_alignment,
)
from coupling_lib.models.load import Model
from coupling_lib.provenance import provenance
from coupling_lib.svd.triplets import top_triplets_stacked


@measurement(version=2)
@batched
def measure_spectra(
    model: Model,
    prompts: str | torch.Tensor | Iterable[Any],
    k: int = 15,
    token: int = -1,
    whole: Sequence[int] = (),
) -> xr.Dataset:
    r"""Measure the singular values of every block's Jacobian J_tt (paper, figures 33 and 34).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        k: number of singular values and vectors, K.
        token: the position t; -1 is the last.
        whole: blocks, counted from 0, of which all d singular values are kept.

    Returns:
        a dataset with blocks from 0 and the variables

        - `singular_values` `(prompt, block, rank)`, the K largest, and `frobenius_norm` `(prompt, block)`;
        - `stable_rank` `(prompt, block)`, which is norm_F(J)^2 / s_1^2;
        - `left_right_alignment` `(prompt, block)`, the mean of $|u_i^\top v_i|$ over the K triplets;
        - `exchanged_miscoupling` `(prompt, block)`, the normalised mis-coupling of $V_K^\top J U_K$, not a number
          for K = 1;
        - `spectrum` `(prompt, whole, index)`, all singular values of the blocks `whole`, and `decay_exponent`
          `(prompt, whole)`, the a of $\sigma_i \propto i^{-a}$ that fits the stronger half of them; absent where
          `whole` is empty.

    Raises:
        ParameterError: if `k` exceeds the width, a block or token does not exist, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_spectra(cl.load_model("nano-neox"), ["It was the best of times"], k=5, whole=(0, 11))
        >>> dict(ds.singular_values.sizes), dict(ds.spectrum.sizes)
        ({'prompt': 1, 'block': 12, 'rank': 5}, {'prompt': 1, 'whole': 2, 'index': 96})
    """
    given = prompt_inputs(prompts)
    check_k(model, k)
    whole = list(whole)
    for block in whole:
        if not 0 <= block < model.n_blocks:
            raise ParameterError(f"whole names block {block!r}; {model.name} has {model.n_blocks}, counted from 0")
    per_prompt = []
    for J in jacobians_by_prompt(model, given, token):
        found = top_triplets_stacked(J, k)
        frobenius = torch.linalg.matrix_norm(J)
        exchanged = exchanged_miscoupling(J, found.U, found.Vh) if k > 1 else torch.full_like(frobenius, torch.nan)
        variables = {
            "singular_values": (("block", "rank"), found.S),
            "frobenius_norm": (("block",), frobenius),
            "stable_rank": (("block",), (frobenius / found.S[:, 0]) ** 2),
            "left_right_alignment": (("block",), left_right_alignment(found.U, found.Vh)),
            "exchanged_miscoupling": (("block",), exchanged),
        }
        if whole:
            # A log scale shows the small ones too, and float32 would lose them below an outlying first.
            spectrum = torch.linalg.svdvals(J[whole].double())
            variables["spectrum"] = (("whole", "index"), spectrum)
            variables["decay_exponent"] = (("whole",), decay_exponent(spectrum[:, : max(2, model.d_model // 2)]))
        per_prompt.append(xr.Dataset({name: (dims, value.cpu().numpy()) for name, (dims, value) in variables.items()}))
    ds = xr.concat(per_prompt, dim="prompt").assign_coords(
        block=range(model.n_blocks), prompt=[prompt_name(prompt) for prompt in given]
    )
    if whole:
        ds = ds.assign_coords(whole=whole)
    ds.attrs = provenance(model, given, measure="spectra", k=k, token=token, route=model.blocks.route)
    return ds


def spectra_fits(ds: xr.Dataset, first_block: int | None = None) -> xr.Dataset:
    r"""Fit a line through $1/\sigma_1$ against depth, prompt by prompt (paper, figures 33 and 34).

    Args:
        ds: a dataset of `measure_spectra`.
        first_block: first block of the fit, counted from 0; by default depth 10, as in the released code, or
            after the first quarter of a model of fewer than 20 blocks.

    Returns:
        `slope` per block, `intercept` (at depth 0, depth counted from 1) and `r_squared`, each `(prompt,)`; the
        attribute `first_block` says where the fit starts.

    Raises:
        ParameterError: if fewer than three blocks are left to fit.
    """
    n_blocks = ds.sizes["block"]
    first = first_block_of_fit(n_blocks) if first_block is None else first_block
    if not 0 <= first <= n_blocks - 3:
        raise ParameterError(
            f"the line would start at block {first + 1} of {n_blocks}; it needs three blocks, so start at block 1 to "
            f"{n_blocks - 2} of a model that has them"
        )
    top = torch.tensor(ds.singular_values.isel(rank=0).values, dtype=torch.float64)
    fits = [inverse_sigma_fit(values, first) for values in top]
    return xr.Dataset(
        {name: (("prompt",), [getattr(fit, name) for fit in fits]) for name in ("slope", "intercept", "r_squared")},
        coords={"prompt": ds.prompt},
        attrs={"first_block": first},
    )


def spectra_null(ds: xr.Dataset, n_samples: int = DRAWS, seed: int = 0) -> xr.Dataset:
    """Give what agreement of left and right vectors is where they are random, with the same singular values.

    Args:
        ds: a dataset of `measure_spectra` with K from 2 to half of the width.
        n_samples: number of random draws.
        seed: seed of the draws.

    Returns:
        `left_right_alignment` `()`, in closed form, and `exchanged_miscoupling` `(sample, block)`, drawn for each
        block's singular values (root mean square over prompts). All blocks share the draws, so that the error of a
        mean over blocks is the standard error of the draws' means.

    Raises:
        ParameterError: if K is out of that range.
    """
    width, k = int(ds.attrs["width"]), ds.sizes["rank"]
    if not 2 <= k <= width // 2:
        raise ParameterError(f"k is {k}; random bases of width {width} need k from 2 to {width // 2}")
    generator = torch.Generator().manual_seed(seed)
    values = exchanged_null(root_mean_square_spectra(ds), k, n_samples, generator)
    return xr.Dataset(
        {
            "left_right_alignment": mean_absolute_coordinate(width),
            "exchanged_miscoupling": (("sample", "block"), values.numpy()),
        },
        coords={"block": ds.block},
    )
