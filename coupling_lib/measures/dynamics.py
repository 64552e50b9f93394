"""Dynamics: the residual stream of one token as the linear system of its block Jacobians."""

import torch
import xarray as xr

from coupling_lib.errors import check_whole
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.jacobian.derivatives import block_jacobians
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.metrics import dynamics
from coupling_lib.metrics.nulls import DRAWS, filled_spectrum
from coupling_lib.models.model import Model
from coupling_lib.svd.triplets import SingularTriplets, top_triplets, top_triplets_stacked

LINEARISATIONS = ("embedding", "product", "released", "product with final norm", "affine")
"""Linearisations of the network, applied to the embedding; see `measure_dynamics`."""

# Maximum number of entries of random states held at once.
_MAX_ENTRIES = 2**23


@common.measurement(version=2)
def measure_dynamics(
    model: Model, prompts: common.Prompts, k: int = 10, token: int = -1, seed: int = 0, n_samples: int = DRAWS
) -> xr.Dataset:
    r"""Compare one token's states with products of I + J_l (paper, section 6.1 and appendix A.5).

    All Jacobians are taken at the states that the network visits. Competing meanings of "the linearised network":

    - `embedding`: $x^0$ itself against $x^L$, no block at all;
    - `product`: $\prod_{l=1}^{L} (I + J_l)\,x^0$ against $x^L$ (paper, equation 20);
    - `released`: $\prod_{l=1}^{L-1} (I + J_l)\,x^0$ against $x^L$ after the final norm, as in the released code;
    - `product with final norm`: $(I + J'_L) \prod_{l=1}^{L-1} (I + J_l)\,x^0$ against the same, where $I + J'_L$ is the
      Jacobian of the last block with the norm (paper, equation 7);
    - `affine`: $x^l = (I + J_l)\,x^{l-1} + b_l$ from $x^0$ on, which is exact up to rounding.

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        k: number of singular triplets and of shared directions, K.
        token: the position t of J_tt; -1 is the last.
        seed: seed of the random bases.
        n_samples: draws of random bases per prompt.

    Returns:
        a dataset with blocks and levels from 0 (level l is the state x^l) and the variables

        - `carried_cosine`, `carried_norm_ratio`, `carried_relative_error` `(prompt, start, level)`: the product from
          `start` to `level`, applied to the true state at `start`, against the true state at `level`;
        - `null_cosine`, `null_norm_ratio` `(prompt, level)`: the same from level 0 with random singular vectors, mean
          over the prompt's own draws; `null_cosine_error` and `null_norm_ratio_error`, their standard errors;
        - `end_cosine`, `end_norm_ratio`, `end_relative_error` `(prompt, reading)`;
        - `linear_norm_ratio` `(prompt, block)`: length of $J_l x^{l-1}$ over that of $f^l(x^{l-1})$; where a norm makes
          $J_l x^{l-1}$ almost 0, rounding decides its first digits;
        - `contribution` `(prompt, level)`: share of $x^L$ that comes from the embedding (level 0) and from the
          remainder of the block that ends at each level; they add up to 1;
        - `growth_state`, `growth_response`, `growth_along`, `growth_singular` `(prompt, level, direction)`: logarithms
          of growth factors along the top left singular vectors of the mean Jacobian, see `metrics.dynamics.Growth`;
          `growth_null` is `growth_response` in one draw of random singular vectors per prompt;
        - `left_right_cosine` `(prompt, block, rank)`: $u_i^\top v_i$, with its sign;
        - `singular_values` `(prompt, block, rank)`.

    Raises:
        ParameterError: if `k` exceeds the width, a token does not exist, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_dynamics(cl.load_model("nano-neox"), ["It was the best of times"], k=4)
        >>> round(float(ds.end_cosine.sel(reading="affine")[0]), 4)
        1.0
    """
    given, levels = prompt_inputs(prompts, model), range(model.n_blocks + 1)
    common.check_k(model, k)
    check_whole("n_samples", n_samples, 1)

    each = (
        _of_one_prompt(traced, J, token, k, n_samples, common.generator_for(prompt, seed))
        for (traced, J), prompt in zip(common.traced_jacobians(model, given, token), given, strict=True)
    )
    coords = {"block": range(model.n_blocks), "level": levels, "start": levels, "reading": list(LINEARISATIONS)}
    details = {"measure": "dynamics", "k": k, "token": token, "bases_seed": seed}
    return common.concat_prompts(model, given, each, coords, **details)


def _of_one_prompt(
    traced: Trace, J: torch.Tensor, token: int, k: int, n_samples: int, generator: torch.Generator
) -> common.Variables:
    x, found = traced.hidden[:, traced.position(token)], top_triplets_stacked(J, k)
    carried = dynamics.carried_states(J, x)._asdict()
    return {
        **{f"carried_{name}": (("start", "level"), values) for name, values in carried.items()},
        "linear_norm_ratio": (("block",), dynamics.linear_part(J, x).norm_ratio),
        "contribution": (("level",), dynamics.contributions(J, x)),
        **_random_products(J, x, found, n_samples, generator),
        **_end_states(traced, token, J, x),
        **_growth(J, x, found, generator),
        "left_right_cosine": (("block", "rank"), torch.einsum("ldk,lkd->lk", found.U, found.Vh)),
        "singular_values": (("block", "rank"), found.S),
    }


def _random_products(
    J: torch.Tensor, x: torch.Tensor, found: SingularTriplets, n_samples: int, generator: torch.Generator
) -> common.Variables:
    """Propagate the embedding through blocks with the same singular values and random singular vectors."""
    S = filled_spectrum(found.S, x.shape[-1], torch.linalg.matrix_norm(J))
    group, parts = max(1, _MAX_ENTRIES // x.numel()), []
    for first in range(0, n_samples, group):
        states = dynamics.random_steps(S, x[0], min(group, n_samples - first), generator)
        null = dynamics.agreement(states, x.expand_as(states))
        parts.append(torch.stack([null.cosine, null.norm_ratio]))
    found: common.Variables = {}
    for name, values in zip(("cosine", "norm_ratio"), torch.cat(parts, dim=1), strict=True):
        found[f"null_{name}"] = (("level",), values.mean(dim=0))
        found[f"null_{name}_error"] = (("level",), values.std(dim=0) / n_samples**0.5)
    return found


def _end_states(traced: Trace, token: int, J: torch.Tensor, x: torch.Tensor) -> common.Variables:
    """Compare the last state of each linearisation with the true one."""
    position, last = traced.position(token), traced.n_blocks - 1
    with torch.no_grad():
        normed = traced.final_norm(x[-1][None])[0].to(x)
    with_norm = block_jacobians(traced, last, [(position, position)], "hidden_states")[0]
    product, affine = x[0], x[0]
    for level, matrix in enumerate(J):
        before, remainder = product, x[level + 1] - x[level] - matrix @ x[level]
        product, affine = product + matrix @ product, affine + matrix @ affine + remainder
    # In the order of `LINEARISATIONS`.
    computed = torch.stack([x[0], product, before, before + with_norm @ before, affine])
    found = dynamics.agreement(computed, torch.stack([x[-1], x[-1], normed, normed, x[-1]]))
    return {f"end_{name}": (("reading",), value) for name, value in found._asdict().items()}


def _growth(J: torch.Tensor, x: torch.Tensor, found: SingularTriplets, generator: torch.Generator) -> common.Variables:
    """Compute growth along the directions that the blocks share most, and the same for blocks that share none."""
    k = found.S.shape[1]
    growth = dynamics.growth(J, x, top_triplets(J.mean(dim=0), k).U, found.S)
    turned = dynamics.randomised(J, generator)
    null = dynamics.growth(turned, x, top_triplets(turned.mean(dim=0), k).U, found.S)
    values = growth._asdict() | {"null": null.response}
    return {f"growth_{name}": (("level", "direction"), value) for name, value in values.items()}
