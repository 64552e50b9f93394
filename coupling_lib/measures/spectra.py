"""Spectra: the singular values of block Jacobians across depth, and the alignment of left and right vectors."""

from collections.abc import Sequence

import torch
import xarray as xr

from coupling_lib.errors import check_whole, is_whole
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.measures import common
from coupling_lib.metrics import spectrum
from coupling_lib.models.model import Model
from coupling_lib.svd.triplets import top_triplets_stacked


@common.measurement(version=2)
def measure_spectra(
    model: Model, prompts: common.Prompts, k: int = 15, token: int = -1, whole: Sequence[int] = ()
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
        - `stable_rank` `(prompt, block)`, which is $\lVert J \rVert_F^2 / \sigma_1^2$;
        - `left_right_alignment` `(prompt, block)`, the mean of $|u_i^\top v_i|$ over the K triplets;
        - `exchanged_miscoupling` `(prompt, block)`, the normalised mis-coupling of $V_K^\top J U_K$, NaN for K = 1;
        - `spectrum` `(prompt, whole, index)`, all singular values of the blocks `whole`, and `decay_exponent` `(prompt,
          whole)`, the a of $\sigma_i \propto i^{-a}$ that fits their stronger half; absent where `whole` is empty.

    Raises:
        ParameterError: if `k` exceeds the width, a block or token does not exist, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_spectra(cl.load_model("nano-neox"), ["It was the best of times"], k=5, whole=(0, 11))
        >>> dict(ds.singular_values.sizes), dict(ds.spectrum.sizes)
        ({'prompt': 1, 'block': 12, 'rank': 5}, {'prompt': 1, 'whole': 2, 'index': 96})
    """
    given, whole = prompt_inputs(prompts, model), [whole] if is_whole(whole) else list(whole)
    common.check_k(model, k)
    for block in whole:
        check_whole("a block of whole", block, 0, model.n_blocks - 1, f"{model.name} has {model.n_blocks}")
    coords = {"block": range(model.n_blocks)} | ({"whole": whole} if whole else {})
    each = (_of_one_prompt(J, k, whole) for J in common.jacobians_by_prompt(model, given, token))
    return common.concat_prompts(model, given, each, coords, measure="spectra", k=k, token=token)


def _of_one_prompt(J: torch.Tensor, k: int, whole: list[int]) -> common.Variables:
    found, frobenius = top_triplets_stacked(J, k), torch.linalg.matrix_norm(J)
    nothing = torch.full_like(frobenius, torch.nan)
    exchanged = spectrum.exchanged_miscoupling(J, found.U, found.Vh) if k > 1 else nothing
    variables = {
        "singular_values": (("block", "rank"), found.S),
        "frobenius_norm": (("block",), frobenius),
        "stable_rank": (("block",), (frobenius / found.S[:, 0]) ** 2),
        "left_right_alignment": (("block",), spectrum.left_right_alignment(found.U, found.Vh)),
        "exchanged_miscoupling": (("block",), exchanged),
    }
    if whole:
        # A log scale also shows the small ones, which float32 would lose below an outlying first one.
        S = torch.linalg.svdvals(J[whole].double())
        stronger = S[:, : max(2, J.shape[-1] // 2)]
        variables["spectrum"] = (("whole", "index"), S)
        variables["decay_exponent"] = (("whole",), spectrum.decay_exponent(stronger))
    return variables


def spectra_fits(ds: xr.Dataset, first_block: int | None = None) -> xr.Dataset:
    r"""Fit a line through $1/\sigma_1$ against depth, prompt by prompt (paper, figures 33 and 34)."""
    first = spectrum.first_block_of_fit(ds.sizes["block"]) if first_block is None else first_block
    top = torch.tensor(ds.singular_values.isel(rank=0).values, dtype=torch.float64)
    fits = [spectrum.inverse_sigma_fit(values, first) for values in top]
    found = {name: ("prompt", [getattr(fit, name) for fit in fits]) for name in ("slope", "intercept", "r_squared")}
    return xr.Dataset(found, {"prompt": ds.prompt}, {"first_block": first})
