r"""Coupling across depth: every block's Jacobian against all other blocks' singular vectors, at one token of a prompt.

The coupling matrix $A_{ll'} = U_{l',K}^\top J^l V_{l',K}$ is diagonal where the top singular vectors of block $l'$
diagonalise the Jacobian of block $l$. The values without coupling are computed in `measures.random_bases`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import xarray as xr

from coupling_lib.datasets.parts import VARIANTS_OF_PARTS, prefixed
from coupling_lib.datasets.summaries import mean_couplings
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import UpToWidth, prompt_inputs
from coupling_lib.jacobian.operator import BlockJacobian
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.metrics.coupling import coupling_matrices
from coupling_lib.metrics.spectrum import frobenius_estimate, probes
from coupling_lib.metrics.variants import VARIANTS, locality, measure_variants, names_at
from coupling_lib.models.model import Model
from coupling_lib.store.sweep import sweep
from coupling_lib.svd.shared import isotropic_part, without_isotropic
from coupling_lib.svd.triplets import SingularTriplets, top_triplets_stacked


def coupling_of_blocks(ds: xr.Dataset) -> xr.DataArray:
    """Return each prompt's mean coupling over ordered pairs of different blocks, at the largest K."""
    return mean_couplings(ds.isel(k=-1))


@common.measurement(version=3)
def measure_depth(
    model: Model,
    prompts: common.Prompts,
    ks: Sequence[int] = UpToWidth((10, 30, 50)),
    token: int = -1,
    boundary: str = "block",
    formed: bool = True,
) -> xr.Dataset:
    r"""Measure coupling between all pairs of blocks at one token position (paper, sections 2 and 3).

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, or `Prompt` objects.
        ks: numbers of singular vectors K, each from 1 to the width. A model narrower than a default K omits it,
            and a warning names the K left out.
        token: the position t whose Jacobians $J_{tt}$ are measured; -1 is the last.
        boundary: `"block"`, or `"hidden_states"` or `"branch"` as in `Trace.jacobian`.
        formed: whether the matrix $J^l$ of every block is formed, rather than multiplied with. Products are faster
            where K is small against the width. A, and all variants computed from it, are the same either way; but
            the traceless part needs the trace, and so all of $J^l$.

    Returns:
        a dataset with dimensions `prompt`, `k`, `block_1` (l, whose Jacobian) and `block_2` (l', whose vectors), with
        one variable `(prompt, k, block_1, block_2)` per variant of `metrics.variants.VARIANTS`;
        `by_distance` `(prompt, variant, k, distance)`, each one's mean over pairs `distance` apart, from 0;
        `singular_values` `(prompt, block_1, rank)` and `frobenius_norm` `(prompt, block_1)` of each $J^l$;
        `residual` `(prompt, block_1)`, the largest of its triplets' residuals;
        `matrix` `(block_1, block_2, row, column)`, the signed $A_{ll'}$ of the first prompt at the largest K;
        `isotropic` `(prompt, block_1)`, $\mathrm{tr} J^l / d$; and under names with `shared_` before them the same of
        $J^l - (\mathrm{tr} J^l / d) I$ (`cl.shared`) with its own singular vectors, for the variants of
        `datasets.parts`, whose `shared_part` gives them as a dataset of the same form.
        Where no $J^l$ is formed, `frobenius_estimate` stands in place of `frobenius_norm`; the traceless part and the
        two variants that are computed from $V_{l'}^\top J^l U_{l'}$ are left out.

    Raises:
        ParameterError: if K exceeds the width, a token does not exist, or there is no prompt.
        UntrustworthyResultError: if a Jacobian or a singular triplet fails its check.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_depth(cl.load_model("nano-neox"), ["It was the best of times"], ks=(10,))
        >>> dict(ds.normalized_miscoupling.sizes)
        {'prompt': 1, 'k': 1, 'block_1': 12, 'block_2': 12}
    """
    given, ks, blocks = prompt_inputs(prompts, model), common.check_ks(model, ks), range(model.n_blocks)
    names = [name for name in names_at(ks) if formed or "vju" not in VARIANTS[name].needs]
    if formed:
        each = (_formed(J, ks, names) for J in common.jacobians_by_prompt(model, given, token, boundary))
    else:
        each = (_unformed(traced, ks, names, token, boundary) for traced in common.traces(model, given))
    coords = {"k": ks, "block_1": blocks, "block_2": blocks, "variant": names, "distance": blocks}
    coords |= {"shared_variant": list(VARIANTS_OF_PARTS)} if formed else {}
    details = {"measure": "depth", "token": token, "boundary": boundary}
    return common.concat_prompts(model, given, each, coords, shared=["matrix", "shared_matrix"], **details)


def _formed(J: torch.Tensor, ks: list[int], names: list[str]) -> xr.Dataset:
    def of_part(J: torch.Tensor, names: list[str]) -> common.Variables:
        variables = _of_one_prompt(J, top_triplets_stacked(J, max(ks)), ks, names)
        return variables | {"frobenius_norm": (("block_1",), torch.linalg.matrix_norm(J))}

    whole = of_part(J, names) | {"isotropic": (("block_1",), isotropic_part(J))}
    return common.to_dataset(whole | prefixed(of_part(without_isotropic(J), list(VARIANTS_OF_PARTS))))  # changes J


def _unformed(traced: Trace, ks: list[int], names: list[str], token: int, boundary: str) -> xr.Dataset:
    """Measure one prompt by products with its Jacobians, which are not formed."""
    J = [traced.jacobian(block, token, boundary=boundary) for block in range(traced.n_blocks)]
    each = [J[block].svd(max(ks), formed=False) for block in common.blocks_of(traced)]
    stacked = (torch.stack([part.to(traced.device) for part in parts]) for parts in zip(*each, strict=True))
    found = SingularTriplets(*stacked)
    probed = [_Probed(one, Vh) for one, Vh in zip(J, found.Vh, strict=True)]
    variables = _of_one_prompt(probed, found, ks, names)
    norms = frobenius_estimate(found.S, torch.stack([one.products for one in probed]))
    return common.to_dataset(variables | {"frobenius_estimate": (("block_1",), norms)})


class _Probed:
    """A Jacobian whose product with all blocks' vectors includes the probes of its norm."""

    def __init__(self, jacobian: BlockJacobian, Vh: torch.Tensor):
        self.jacobian, self.probes = jacobian, probes(Vh)

    def __matmul__(self, V: torch.Tensor) -> torch.Tensor:
        product = (self.jacobian @ torch.cat([V, self.probes], dim=1)).to(V)
        found, self.products = product.tensor_split([V.shape[1]], dim=1)
        return found


def _of_one_prompt(
    J: torch.Tensor | list[_Probed], found: SingularTriplets, ks: list[int], names: list[str]
) -> common.Variables:
    A = coupling_matrices(J, found.U, found.Vh)
    values = measure_variants(J, found.U, found.S, found.Vh, ks, names, A)
    variables: common.Variables = {name: (("k", "block_1", "block_2"), value) for name, value in values.items()}
    return variables | {
        "by_distance": (("variant", "k", "distance"), locality(torch.stack(list(values.values())))),
        "singular_values": (("block_1", "rank"), found.S),
        "residual": (("block_1",), found.residual.amax(dim=1)),
        "matrix": (("block_1", "block_2", "row", "column"), A),
    }


def other_models(others: str, besides: str) -> list[str]:
    """Parse a list of further models; each model is listed once, whatever its path."""

    def known(name: str) -> str:
        return str(Path(name).resolve()) if Path(name).is_dir() else name

    by_place = {known(besides): ""}
    for name in map(str.strip, others.split(",")):
        by_place.setdefault(known(name), name)
    return [name for name in by_place.values() if name]


def measure_models(
    names: Sequence[str],
    prompts: Sequence[Any],
    ks: Sequence[int],
    token: int = -1,
    precision: str = "float32",
    seed: int = 0,
    memory: str | int | None = None,
) -> dict[str, dict[str, xr.Dataset]]:
    """Measure coupling across depth in several models, one in memory at a time (paper, figure 20)."""

    def measured(model: Model, given: list) -> xr.Dataset:
        try:
            common.check_pairs(model)
            chosen = common.check_ks(model, ks)
        except ParameterError as error:
            message = f"{error}; or leave {model.name!r}, one of the other models, out of 'others'"
            raise ParameterError(message) from None
        return sweep(measure_depth, model, given, ks=tuple(chosen), token=token)

    return common.both_networks(measured, names, prompts, seed, precision=precision, memory=memory)
