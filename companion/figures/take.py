"""What a figure is made of: one measurement or several by name, and what is left open about them.

Every `take_...` is handed what a measure gave: a dataset; several under their names, as `{"untrained": a, "trained":
b}`; or several side by side. A lone network is called by its role. Where K is not given, it is the first that was
measured. The null beside coupling is handed over as well: a number, or what `cl.null_of` gives of the trained network.
What is taken keeps the records of all measurements in it, from which `show` says where a figure comes from.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import xarray as xr

from companion.figures.labels import coupling_label
from companion.figures.style import TRAINED, UNTRAINED
from companion.tables import arrays
from coupling_lib.datasets.parts import SHARED
from coupling_lib.datasets.summaries import Chance, chance
from coupling_lib.errors import ParameterError
from coupling_lib.models.registry import by_size

VARIANT = "normalized_miscoupling"
"""The mismatch that figures show where none is asked for."""

MOST_BLOCKS = 8
"""How many blocks are drawn as matrices when none are chosen: as many as in the paper's figure 3."""

Networks = Mapping[str, xr.Dataset]
Measured = xr.Dataset | Networks
K = int | None
Null = float | xr.Dataset | None
"""What a variant is by chance: a number, or what `cl.null_of` gave; where it is None, the figure is refused."""
Given = Measured | None
"""What belongs to each network, such as its null; where it is None, the figure is refused."""
Records = list[Mapping[str, Any]]


def by_name(measured: Measured) -> dict[str, xr.Dataset]:
    """Return every network under its name; a lone one is called by its role."""
    if not isinstance(measured, xr.Dataset):
        return dict(measured)
    if "network" in measured.dims:
        return {str(name): measured.sel(network=name, drop=True) for name in measured.network.values}
    return {UNTRAINED if measured.attrs.get("untrained") else TRAINED: measured}


def side_by_side(measured: Measured) -> xr.Dataset:
    """Join networks along a first dimension `network`, with the record of each."""
    if isinstance(measured, xr.Dataset) and "network" in measured.dims:
        return measured.assign_attrs(records=records_of(measured))
    networks = by_name(measured)
    return arrays.side_by_side(**networks).assign_attrs(records=records_of(networks))


def by_model(measured: Measured | Mapping[str, Networks]) -> dict[str, dict[str, xr.Dataset]]:
    """Return every model's networks under its name; networks that bear roles are one model's."""
    if isinstance(measured, xr.Dataset) or (measured and set(measured) <= {TRAINED, UNTRAINED, SHARED}):
        networks = by_name(measured)
        model = str(next(iter(networks.values())).attrs.get("model", "model"))
        return {model: networks}
    return {name: by_name(one) for name, one in measured.items()}


def belonging(both: xr.Dataset, given: Given, how: str) -> xr.Dataset:
    """Set side by side what belongs to each network, such as its null; that of a lone network needs no name."""
    if given is None:
        raise ParameterError(f"{how.partition(' ')[0]} is None; this figure needs one of each network: {how}")
    alone = isinstance(given, xr.Dataset) and "network" not in given.dims
    return side_by_side({str(both.network.item()): given} if alone else given)


def the_only(measured: Measured) -> xr.Dataset:
    """Return the one measurement of a figure that shows one."""
    if isinstance(measured, xr.Dataset):
        return measured
    if len(measured) != 1:
        seen = ", ".join(measured) or "none"
        raise ParameterError(f"the measurements are {seen}; this figure shows one, so take one after the other")
    return next(iter(measured.values()))


def records_of(found: Any) -> Records:
    """List the records of all measurements in what a measure gave, or in what was taken of it."""
    if isinstance(found, Mapping) and not isinstance(found, xr.Dataset):
        found = list(found.values())
    if isinstance(found, list):
        return [record for one in found for record in records_of(one)]
    attrs = getattr(found, "attrs", {})
    return attrs.get("records", [attrs] if "model" in attrs else [])


def kept(found: Any, records: Iterable[Mapping[str, Any]]) -> Any:
    """Keep the records with what was taken."""
    for one in found.values() if isinstance(found, dict) else [found]:
        one.attrs.setdefault("records", list(records))
    return found


def _handed(prepare: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a selection so that it prepares its input and keeps the records in its output."""

    def let(select: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(select)
        def taking(measured: Any, *chosen: Any, **named: Any) -> Any:
            return kept(select(prepare(measured), *chosen, **named), records_of(measured))

        return taking

    return let


of_networks, of_models, of_one = map(_handed, (side_by_side, by_model, the_only))
"""Decorate a selection so that it takes networks side by side, several models' networks by name, or one measurement."""


def of_each_model(select: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a selection so that it selects the same of every model, ordered by size; of one, without its name."""

    @wraps(select)
    def of_them(models: dict[str, Networks], *chosen: Any, **named: Any) -> Any:
        found = {name: select(side_by_side(models[name]), *chosen, **named) for name in by_size(models)}
        return found if len(found) > 1 else found.popitem()[1]

    return of_models(of_them)


def chosen_k(ds: xr.Dataset, k: K) -> int:
    """Return the number of singular vectors that is asked for, or the first that was measured."""
    known = ds.k.values.tolist() if "k" in ds.dims else [ds.attrs["k"]]
    if k is not None and k not in known:
        raise ParameterError(f"k is {k!r}; measured were {', '.join(map(str, known))}; take one of them")
    return int(known[0] if k is None else k)


def decisive(networks: Iterable[str]) -> str:
    """Name the network that stands for a model: the trained one, or the last."""
    names = [str(name) for name in networks]
    return TRAINED if TRAINED in names else names[-1]


def null_beside(ds: xr.Dataset, variant: str, k: K, null: Null) -> Chance | float:
    """Return a variant's value by chance as one number: the number handed over, or the mean of what `null_of` gave."""
    if not isinstance(null, xr.Dataset) and null is not None:
        return null
    one = null_of_variant(null, variant)
    return chance(one.sel(k=chosen_k(one, chosen_k(ds, k))) if "k" in one.dims else one)


def null_of_variant(null: xr.Dataset | None, variant: str) -> xr.Dataset:
    """Return the null of one variant, out of what `cl.null_of` gave."""
    hint = f"pass what cl.null_of(ds, {variant!r}) gives of the trained network"
    if null is None:
        raise ParameterError(f"null is None; coupling stands beside its value by chance: {hint}")
    several = "variant" in null.dims
    known = null["variant"].values.tolist() if several else [null.attrs.get("variant")]
    if variant not in known:
        raise ParameterError(f"the null is of {', '.join(map(str, known))}; {variant!r} is drawn: {hint}")
    return null.sel(variant=variant) if several else null


def notes_on(both: xr.Dataset, variant: str, k: K, null: Null) -> dict[str, Any]:
    """Return what a figure of coupling says beside its values: the label of an axis, and the null."""
    k = chosen_k(both, k)
    return {"label": coupling_label(variant, k), "null": null_beside(both, variant, k, null)}


def middle_blocks(count: int) -> list[int]:
    """Choose the blocks that are drawn as matrices where none are asked for: up to eight in the middle."""
    most = min(MOST_BLOCKS, count)
    first = (count - most) // 2
    return list(range(first, first + most))
