"""Inputs of a figure: one dataset, several networks along its dimension `network`, and what is left open.

Every `take_...` receives a dataset: the result of a measure, or `side_by_side(untrained=a, trained=b)`. A lone network
is named by its role; several models are a dataset each, by name. K defaults to the first that was measured. The null
beside coupling is an argument as well: a number, or the result of `cl.null_of` for the trained network. A selection
keeps the records of all its measurements, from which `show` writes the origin of a figure.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import Any

import xarray as xr

from companion.figures.labels import coupling_label
from companion.figures.style import TRAINED, UNTRAINED
from companion.tables.arrays import records_of, side_by_side
from coupling_lib.datasets.summaries import Chance, chance
from coupling_lib.errors import ParameterError
from coupling_lib.models.registry import by_size

VARIANT = "normalized_miscoupling"
"""Default mismatch of figures."""

MOST_BLOCKS = 8
"""Default number of blocks drawn as matrices, as in the paper's figure 3."""

Models = xr.Dataset | Mapping[str, xr.Dataset]
"""Measurements of one model, or of several by name."""
K = int | None
Null = float | xr.Dataset | None
"""A variant's value by chance: a number, or the result of `cl.null_of`; where it is None, the figure is refused."""


def with_networks(measured: xr.Dataset) -> xr.Dataset:
    """Return a measurement with the dimension `network`; a lone network is named by its role."""
    if "network" in measured.dims:
        return measured
    return side_by_side(**{UNTRAINED if measured.attrs.get("untrained") else TRAINED: measured})


def by_model(measured: Models, alone: str = "") -> dict[str, xr.Dataset]:
    """Return every model's measurement by name; one without a name is called `alone`, or after its model."""
    if isinstance(measured, xr.Dataset):
        return {alone or str(measured.attrs.get("model", "model")): measured}
    return dict(measured)


def networks_by_name(measured: Models, alone: str = "") -> dict[str, xr.Dataset]:
    """Return measurements by name as `by_model` does, each with the dimension `network`."""
    return {name: with_networks(one) for name, one in by_model(measured, alone).items()}


def relative_matrices(both: xr.Dataset, mismatch: xr.DataArray) -> xr.DataArray:
    r"""Return $|A|/\sigma_1(J)$ of the first prompt, and refuse matrices whose mis-coupling is another prompt's."""
    diagonal = xr.DataArray([*range(both.sizes["row"])], dims="rank")
    energy = both.matrix.astype(float) ** 2
    on = energy.isel(row=diagonal, column=diagonal).sum("rank") / energy.sum(("row", "column"))
    if "prompt" in both.matrix.dims or (abs(1 - on - mismatch.isel(prompt=0).astype(float) ** 2) > 0.01).any():
        raise ParameterError(
            "the first prompt here is not that of the coupling matrices, which are kept of the first prompt measured; "
            "measure the prompt to be drawn alone"
        )
    return abs(both.matrix / both.singular_values.isel(prompt=0, rank=0, drop=True))


def per_network(both: xr.Dataset, given: xr.Dataset | None, how: str) -> xr.Dataset:
    """Return the data of each network, such as its null; those of a lone network need no name."""
    if given is None:
        raise ParameterError(f"{how.partition(' ')[0]} is None; this figure needs one of each network: {how}")
    if "network" not in given.dims and both.sizes["network"] > 1:
        raise ParameterError(f"there are {both.sizes['network']} networks and one set of theirs; expected {how}")
    return given if "network" in given.dims else side_by_side(**{str(both.network.item()): given})


def with_records(found: Any, records: Iterable[Mapping[str, Any]]) -> Any:
    """Attach records to a selection."""
    for one in found.values() if isinstance(found, dict) else [found]:
        one.attrs.setdefault("records", list(records))
    return found


def _selection(prepare: Callable[[Any], Any], select: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a selection function to prepare its input and to attach the records to its output."""

    @wraps(select)
    def wrapper(measured: Any, *chosen: Any, **named: Any) -> Any:
        return with_records(select(prepare(measured), *chosen, **named), records_of(measured))

    return wrapper


of_networks, of_models, of_one = (
    partial(_selection, prepare) for prepare in (with_networks, networks_by_name, lambda measured: measured)
)
"""Decorate a selection so that it takes networks side by side, several models' networks by name, or one measurement."""


def of_each_model(select: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a selection function to apply to every model, ordered by size; a single model keeps no name."""

    @wraps(select)
    def select_each(models: dict[str, xr.Dataset], *chosen: Any, **named: Any) -> Any:
        found = {name: select(models[name], *chosen, **named) for name in by_size(models)}
        return found if len(found) > 1 else found.popitem()[1]

    return of_models(select_each)


def chosen_k(ds: xr.Dataset, k: K) -> int:
    """Return the number of singular vectors that is asked for, or the first that was measured."""
    known = ds.k.values.tolist() if "k" in ds.dims else [ds.attrs["k"]]
    if k is not None and k not in known:
        raise ParameterError(f"k is {k!r}; measured were {', '.join(map(str, known))}; take one of them")
    return int(known[0] if k is None else k)


def main_network(networks: Iterable[str]) -> str:
    """Return the name of the network that represents a model: the trained one, or the last."""
    names = [str(name) for name in networks]
    return TRAINED if TRAINED in names else names[-1]


def trained_alone(both: xr.Dataset, name: str) -> xr.Dataset:
    """Select the network that represents a model, under the model's name."""
    return both.sel(network=[main_network(both.network.values)]).assign_coords(network=[name])


def null_beside(ds: xr.Dataset, variant: str, k: K, null: Null) -> Chance | float:
    """Return a variant's value by chance as one number: the number given, or the mean of the result of `null_of`."""
    if not isinstance(null, xr.Dataset) and null is not None:
        return null
    one = null_of_variant(null, variant)
    return chance(one.sel(k=chosen_k(one, chosen_k(ds, k))) if "k" in one.dims else one)


def null_of_variant(null: xr.Dataset | None, variant: str) -> xr.Dataset:
    """Return the null of one variant from the result of `cl.null_of`."""
    hint = f"pass what cl.null_of(ds, {variant!r}) gives of the trained network"
    if null is None:
        raise ParameterError(f"null is None; coupling stands beside its value by chance: {hint}")
    several = "variant" in null.dims
    known = null["variant"].values.tolist() if several else [null.attrs.get("variant")]
    if variant not in known:
        raise ParameterError(f"the null is of {', '.join(map(str, known))}; {variant!r} is drawn: {hint}")
    return null.sel(variant=variant) if several else null


def notes_on(both: xr.Dataset, variant: str, k: K, null: Null) -> dict[str, Any]:
    """Return the annotations of a figure of coupling: the label of an axis, and the null."""
    k = chosen_k(both, k)
    return {"label": coupling_label(variant, k), "null": null_beside(both, variant, k, null)}


def middle_blocks(count: int) -> list[int]:
    """Return the default blocks drawn as matrices: up to eight in the middle."""
    most = min(MOST_BLOCKS, count)
    first = (count - most) // 2
    return list(range(first, first + most))
