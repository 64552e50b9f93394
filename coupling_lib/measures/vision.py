r"""Coupling in vision transformers: at the class token, at a patch, between tokens in both orders, and with drop path.

A vision transformer attends in both directions, so that $J^l_{t_1t_2}$ exists for every ordered pair of tokens, and
that of $(t_2, t_1)$ is another matrix. `measure_relations` compares blocks with each other at six pairs of tokens;
`measure_drop_path` shows what the same measurement gives when stochastic depth is left on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.given import prompt_inputs, prompt_name
from coupling_lib.jacobian.derivatives import block_jacobians
from coupling_lib.jacobian.tracing import trace
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.frame import check_k, depth_jacobians, measurement, traces
from coupling_lib.measures.random_bases import null_draws
from coupling_lib.measures.trajectories import measure_trajectories
from coupling_lib.metrics.nulls import DRAWS
from coupling_lib.metrics.variants import VARIANTS, measure_variants
from coupling_lib.models.drop_path import draw_gates, fixed_gates
from coupling_lib.models.load import Model
from coupling_lib.provenance import prompts_hash, provenance
from coupling_lib.store.sweep import sweep
from coupling_lib.svd.triplets import top_triplets_stacked

RELATIONS = ("class", "patch", "class to patch", "patch to class", "patch a to b", "patch b to a")
"""Pairs of tokens that are measured. The first two are single tokens; the others name t1, then t2."""


def relation_tokens(model: Model, n_tokens: int) -> dict[str, tuple[int, int]]:
    """Give the token positions of each relation."""
    # "patch" is patch a; a and b are the two patches at the centre of the image, upper left and lower right.
    config = model.hf.config
    if model.hf.main_input_name != "pixel_values" or not hasattr(config, "patch_size"):
        raise ParameterError(f"{model.name} reads no images; give a vision transformer such as 'nano-vit'")
    height, width = (
        size // patch for size, patch in zip(_pair(config.image_size), _pair(config.patch_size), strict=True)
    )
    if min(height, width) < 2 or n_tokens <= height * width:
        raise ParameterError(
            f"{model.name} has {height} x {width} patches and {n_tokens} tokens; a class token and at least 2 x 2 "
            "patches are compared"
        )
    first = n_tokens - height * width
    a, b = (
        first + row * width + column for row, column in ((height // 2 - 1, width // 2 - 1), (height // 2, width // 2))
    )
    return dict(zip(RELATIONS, [(0, 0), (a, a), (0, a), (a, 0), (a, b), (b, a)], strict=True))


@measurement(version=2)
def measure_relations(model: Model, prompts: torch.Tensor | Iterable[torch.Tensor], k: int = 10) -> xr.Dataset:
    r"""Measure coupling between all pairs of blocks for several pairs of tokens (paper, section 3.2, for images).

    For tokens $t_1, t_2$ the Jacobian $J^l_{t_1t_2}$ of each block is compared with the singular vectors of
    $J^{l'}_{t_1t_2}$ of each other block. The identity is subtracted for single tokens alone: between different
    tokens runs no skip path.

    Args:
        model: a vision model from `load_model`.
        prompts: images `(1, c, h, w)` in the model's format.
        k: number of singular vectors K.

    Returns:
        a dataset with dimensions `prompt` (an image), `relation` (`RELATIONS`), `block_1` (l, whose Jacobian) and
        `block_2` (l', whose vectors), blocks from 0, and
        one variable `(prompt, relation, block_1, block_2)` per variant of `metrics.variants.VARIANTS`;
        `singular_values` `(prompt, relation, block_1, rank)` and `frobenius_norm` `(prompt, relation, block_1)`;
        coordinates `token_in` and `token_out` `(relation,)`, the positions from 0.

    Raises:
        ParameterError: if the model reads no images, K exceeds the width, or there is no image.
        UntrustworthyResultError: if a Jacobian or a singular triplet fails its check.
    """
    given = prompt_inputs(prompts)
    check_k(model, k)
    names = [name for name in VARIANTS if k > 1 or name != "old_off_over_diagonal"]
    per_prompt = []
    for traced in traces(model, given):
        tokens = relation_tokens(model, traced.n_tokens)
        J = _relation_jacobians(traced, list(tokens.values()))
        each = []
        for matrices in J:
            found = top_triplets_stacked(matrices, k)
            values = measure_variants(matrices, found.U, found.S, found.Vh, (k,), names)
            variables = {name: (("block_1", "block_2"), value[0].cpu().numpy()) for name, value in values.items()}
            variables["singular_values"] = (("block_1", "rank"), found.S.cpu().numpy())
            variables["frobenius_norm"] = (("block_1",), torch.linalg.matrix_norm(matrices).cpu().numpy())
            each.append(xr.Dataset(variables))
        per_prompt.append(xr.concat(each, dim="relation"))
    positions = np.array(list(tokens.values()))
    ds = xr.concat(per_prompt, dim="prompt").assign_coords(
        prompt=[prompt_name(prompt) for prompt in given],
        relation=list(tokens),
        token_in=("relation", positions[:, 0]),
        token_out=("relation", positions[:, 1]),
        block_1=range(model.n_blocks),
        block_2=range(model.n_blocks),
    )
    ds.attrs = provenance(model, given, measure="relations", k=k, route=traced.route)
    return ds


def relations_null(ds: xr.Dataset, variant: str, n_samples: int = DRAWS, seed: int = 0) -> xr.DataArray:
    """Draw a variant, relation by relation, for single pairs of blocks that share no directions.

    The mean is known better than from draws: `null_of`.

    Args:
        ds: a dataset of `measure_relations`.
        variant: a name of `metrics.variants.VARIANTS`.
        n_samples: number of random draws.
        seed: seed of the draws.

    Returns:
        the values, dimensions `(relation, sample, block_1)`.
    """
    return null_draws(ds, variant, n_samples, seed).transpose("relation", "sample", "block_1")


@measurement(version=2)
def measure_drop_path(
    model: Model,
    prompts: torch.Tensor | Iterable[torch.Tensor],
    rate: float = 0.3,
    draws: int = 4,
    k: int = 10,
    token: int = 0,
    seed: int = 0,
    variant: str = "normalized_miscoupling",
) -> xr.Dataset:
    r"""Measure coupling with stochastic depth off, as everywhere else, and left on, as in a model in training mode.

    The released code for vision transformers runs the model before it is put into evaluation mode. If the caller
    left it in training mode, every residual branch is either dropped or multiplied by $1/(1-p_l)$, in the forward
    pass and so in each Jacobian: the numbers then belong to a random sub-network. Draws in which a block loses both
    branches have no singular vectors and are left out.

    Args:
        model: a vision model with branches that `drop_path` knows.
        prompts: images `(1, c, h, w)`.
        rate: rate of stochastic depth at the last block.
        draws: how often branches are drawn for each image.
        k: number of singular vectors K.
        token: the position t whose Jacobians are measured; 0 is the class token.
        seed: seed of the draws; each image has its own.
        variant: name of the distance, a key of `metrics.variants.VARIANTS`.

    Returns:
        a dataset with `off` `(prompt,)` and `on` `(prompt, draw)`: the distance, mean over pairs of different blocks.

    Raises:
        ParameterError: if there is no image, or fewer than one draw.
        UnsupportedModelError: if the model's branches are not known.
    """
    given = prompt_inputs(prompts)
    check_k(model, k)
    if draws < 1:
        raise ParameterError(f"draws is {draws!r}; it must be a whole number from 1")
    blocks = model.blocks.modules

    def measured(image: torch.Tensor) -> float:
        J = depth_jacobians(trace(model, image), token)
        found = top_triplets_stacked(J, k)
        values = measure_variants(J, found.U, found.S, found.Vh, (k,), [variant])[variant][0]
        return float(values[~torch.eye(len(values), dtype=torch.bool, device=values.device)].mean())

    off, on = [], []
    for image in given:
        generator = torch.Generator().manual_seed((seed + int(prompts_hash([image]), 16)) % 2**63)
        off.append(measured(image))
        row = []
        for _ in range(draws):
            with fixed_gates(blocks, draw_gates(rate, len(blocks), generator)):
                row.append(measured(image))
        on.append(row)
    ds = xr.Dataset({"off": (("prompt",), off), "on": (("prompt", "draw"), on)})
    ds = ds.assign_coords(prompt=[prompt_name(prompt) for prompt in given])
    details = {"rate": rate, "draws": draws, "k": k, "token": token, "variant": variant, "route": model.blocks.route}
    ds.attrs = provenance(model, given, measure="drop_path", **details)
    return ds


def measure_network(
    model: Model, prompts: Iterable[torch.Tensor], k: int = 10, token: int = 0
) -> dict[str, xr.Dataset]:
    """Measure everything that the notebook on vision transformers compares between two networks."""
    given = list(prompts)
    return {
        "depth": sweep(measure_depth, model, given, ks=(k,), token=token),
        "relations": sweep(measure_relations, model, given, k=k),
        "path": sweep(measure_trajectories, model, given, token=token),
    }


def _relation_jacobians(traced: Any, pairs: list[tuple[int, int]]) -> torch.Tensor:
    """Form the Jacobians of all blocks at all pairs of tokens, `(pairs, L, d, d)`."""
    single = [pair for pair in pairs if pair[0] == pair[1]]
    across = [pair for pair in pairs if pair[0] != pair[1]]
    by_block = []
    for block in range(traced.n_blocks):
        # Single tokens and pairs of different ones cannot be formed in one call.
        found = {
            pair: J
            for some in (single, across)
            for pair, J in zip(some, block_jacobians(traced, block, some), strict=True)
        }
        by_block.append(torch.stack([found[pair] for pair in pairs]))
    return torch.stack(by_block, dim=1)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
