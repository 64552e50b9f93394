"""Coupling of whole Jacobians, and of their traceless part (`svd.shared`).

A dataset holds measurements of the traceless part beside those of the whole, under names that begin with `shared_`.
The difference comes from blocks that shrink or stretch every direction alike.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import xarray as xr

from coupling_lib.errors import ParameterError

VARIANTS_OF_PARTS = ("normalized_miscoupling", "mismatch", "released_norm")
"""Variants measured for the traceless part: one each of the paper, its project page and its released code."""

SHARED = "traceless part"
"""Label of the traceless part of the trained network in figures and tables, beside the networks."""

_PREFIX = "shared_"


def prefixed(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Rename variables to those of the traceless part, and their axis of variants to its own."""
    axes = {"variant": "shared_variant"}
    return {f"{_PREFIX}{name}": (tuple(axes.get(dim, dim) for dim in dims), x) for name, (dims, x) in variables.items()}


def has_parts(ds: xr.Dataset) -> bool:
    """Return whether a dataset holds the traceless part."""
    return any(str(name).startswith(_PREFIX) for name in ds.data_vars)


def shared_part(ds: xr.Dataset) -> xr.Dataset:
    r"""Return the measurements of $J - (\mathrm{tr} J / d) I$ as a dataset like that of the whole Jacobians $J$.

    Functions of a measurement accept it: `null_of`, `depth_summary`, figures. Its coupling is of shared directions
    alone; that of the whole also holds the isotropic action of blocks (`cl.shared`).

    Args:
        ds: A dataset of `measure_depth` or `measure_tokens`.

    Returns:
        The dataset with the variants of `datasets.parts.VARIANTS_OF_PARTS`, `singular_values`, `frobenius_norm`,
        `residual` and matrices of the traceless part, under the names and in the units of the whole.

    Raises:
        ParameterError: If the dataset holds no traceless part, as where no Jacobian was formed.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_depth(cl.load_model("nano-neox"), ["It was the best of times"], ks=(10,))
        >>> means = [1 - float(part.normalized_miscoupling.mean()) for part in (ds, shared_part(ds))]
        >>> means[0] > means[1]
        True
    """
    if not has_parts(ds):
        raise ParameterError(
            f"the measurement of {ds.attrs.get('model', 'this model')!r} holds no traceless part; measure_depth has it "
            "unless `formed` is False, and measure_tokens always"
        )
    own = {name: str(name).removeprefix(_PREFIX) for name in ds.data_vars if str(name).startswith(_PREFIX)}
    # Variables of both parts, such as the texts of tokens, stay; variants that the traceless part lacks are dropped.
    pairs = ds[f"{_PREFIX}{VARIANTS_OF_PARTS[0]}"].dims
    whole = [name for name in ds.data_vars if name not in own and (name in own.values() or ds[name].dims == pairs)]
    found = ds.drop_vars(whole).rename(own)
    if "shared_variant" in found.coords:
        found = found.drop_vars("variant", errors="ignore").rename(shared_variant="variant")
    return found


def with_shared_part(both: xr.Dataset) -> xr.Dataset:
    """Return the whole of every network and, where it was measured, the traceless part of the network "trained"."""
    if not has_parts(both):
        return both
    names = pd.Index([*map(str, both.network.values), SHARED], name="network")
    whole = both.drop_vars([name for name in both.variables if str(name).startswith(_PREFIX)])
    wholes = [whole.sel(network=name, drop=True) for name in both.network.values]
    shared = shared_part(both.sel(network="trained", drop=True))
    return xr.concat([*wholes, shared], names, join="outer", combine_attrs="override")


def known_shared_part(ds: xr.Dataset, variant: str) -> xr.Dataset | None:
    """Return the traceless part; None where it was not measured, or not in this variant."""
    return shared_part(ds) if variant in VARIANTS_OF_PARTS and has_parts(ds) else None
