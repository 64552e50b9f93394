"""Coupling in its two parts: of whole Jacobians, and of what is left without their isotropic part (`svd.shared`).

A dataset holds what was measured of the shared part beside the whole, its names with `shared_` before them;
`shared_part` gives it as a dataset of its own, on which all works that works on the whole.
"""

import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.measures import frame

VARIANTS_OF_PARTS = ("normalized_miscoupling", "mismatch", "released_norm")
"""What is measured of the shared part: one variant each of the paper, its project page and its released code."""

_PREFIX = "shared_"


def prefixed(variables: frame.Variables) -> frame.Variables:
    """Name variables as those of the shared part; so are the variants along which some of them lie."""
    return {
        f"{_PREFIX}{name}": (tuple("shared_variant" if dim == "variant" else dim for dim in dims), values)
        for name, (dims, values) in variables.items()
    }


def shared_part(ds: xr.Dataset) -> xr.Dataset:
    """Give what a dataset holds of the shared part, under the names that the same has of the whole."""
    names = [name for name in ds.data_vars if name.startswith(_PREFIX)]
    if not names:
        raise ParameterError(
            f"the measurement of {ds.attrs.get('model', 'this model')} holds no shared part; measure_depth forms it "
            "unless `formed` is False"
        )
    found = ds[names].rename({name: name.removeprefix(_PREFIX) for name in names})
    return found.rename({"shared_variant": "variant"} if "shared_variant" in found.coords else {})


def in_parts(whole: xr.Dataset) -> dict[str, xr.Dataset]:
    """Give a dataset and its shared part by the names under which figures show them beside each other."""
    return {"trained": whole, "shared part": shared_part(whole)}
