"""Coupling in vision transformers: at the class token, at a patch, and between tokens in both orders.

A vision transformer attends in both directions, so that $J^l_{t_1t_2}$ and $J^l_{t_2t_1}$ both exist, and differ.
"""

from collections.abc import Iterable

import numpy as np
import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.images import patch_grid
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.jacobian.derivatives import block_jacobians
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.trajectories import measure_trajectories
from coupling_lib.models.model import Model
from coupling_lib.store.sweep import sweep

RELATIONS = ("class", "patch", "class to patch", "patch to class", "patch a to b", "patch b to a")
"""Pairs of tokens that are measured. The first two are single tokens; the others name t1, then t2."""


def relation_tokens(model: Model, pixels: torch.Tensor) -> dict[str, tuple[int, int]]:
    """Return the token positions of each relation in an image."""
    # "patch" is patch a; a and b are the two patches at the centre of the image, upper left and lower right.
    before, height, width = patch_grid(model, pixels)
    if min(height, width) < 2 or not before:
        raise ParameterError(
            f"{model.name} has {height} x {width} patches and {before} tokens before them; a class token and at least "
            "2 x 2 patches are compared"
        )
    b = before + height // 2 * width + width // 2
    a = b - width - 1
    return dict(zip(RELATIONS, [(0, 0), (a, a), (0, a), (a, 0), (a, b), (b, a)], strict=True))


@common.measurement(version=2)
def measure_relations(model: Model, prompts: torch.Tensor | Iterable[torch.Tensor], k: int = 10) -> xr.Dataset:
    """Measure coupling between all pairs of blocks for several pairs of tokens (paper, section 3.2, for images).

    For tokens $t_1, t_2$ the Jacobian $J^l_{t_1t_2}$ of each block is compared with the singular vectors of
    $J^{l'}_{t_1t_2}$ of each other block. The identity is subtracted for single tokens alone: no skip path runs
    between different tokens.

    Args:
        model: a vision model from `load_model`.
        prompts: images `(1, c, h, w)` in the model's format.
        k: number of singular vectors K.

    Returns:
        a dataset with dimensions `prompt` (an image), `relation` (`RELATIONS`), `block_1` (l) and `block_2` (l'), and
        one variable `(prompt, relation, block_1, block_2)` per variant of `metrics.variants.VARIANTS`;
        `singular_values` `(prompt, relation, block_1, rank)` and `frobenius_norm` `(prompt, relation, block_1)`;
        coordinates `token_in` and `token_out` `(relation,)`, the positions from 0.

    Raises:
        ParameterError: if the model reads no images, K exceeds the width, or there is no image.
        UntrustworthyResultError: if a Jacobian or a singular triplet fails its check.

    Example:
        >>> import coupling_lib as cl
        >>> model = cl.load_model("nano-vit")
        >>> ds = measure_relations(model, cl.inputs_for(model, ["an image of noise"]), k=4)
        >>> dict(ds.normalized_miscoupling.sizes)
        {'prompt': 1, 'relation': 6, 'block_1': 12, 'block_2': 12}
    """
    given, blocks = prompt_inputs(prompts, model), range(model.n_blocks)
    common.check_k(model, k)
    each = (_of_one_prompt(traced, k) for traced in common.traces(model, given))
    coords = {"relation": list(RELATIONS), "block_1": blocks, "block_2": blocks}
    ds = common.concat_prompts(model, given, each, coords, ["token_in", "token_out"], measure="relations", k=k)
    return ds.set_coords(["token_in", "token_out"])


def _of_one_prompt(traced: Trace, k: int) -> xr.Dataset:
    pairs = list(relation_tokens(traced.model, traced.inputs.get("pixel_values")).values())
    # Jacobians of single tokens, the first two pairs, and of different ones cannot be formed in one call.
    groups = (pairs[:2], pairs[2:])
    by_block = [torch.cat([block_jacobians(traced, at, some) for some in groups]) for at in range(traced.n_blocks)]
    each = []
    for J in torch.stack(by_block, dim=1):
        found, values = common.couple_pairs(J, [k])
        variables: common.Variables = {name: (("block_1", "block_2"), value[0]) for name, value in values.items()}
        variables["singular_values"] = (("block_1", "rank"), found.S)
        variables["frobenius_norm"] = (("block_1",), torch.linalg.matrix_norm(J))
        each.append(common.to_dataset(variables))
    token_in, token_out = np.array(pairs).T
    return xr.concat(each, dim="relation").assign(token_in=("relation", token_in), token_out=("relation", token_out))


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
