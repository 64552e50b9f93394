"""A measurement that takes several forms of one model: kept as a whole, since no single one of them gives it."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr

from coupling_lib import paths
from coupling_lib.models.load import Model
from coupling_lib.store.files import StoreWarning, digest, find, write
from coupling_lib.store.key import measurement_key, prompt_key


def whole_key(
    measure: Callable[..., xr.Dataset], model: Model, inputs: Sequence[Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe a measurement of several prompts, whose first form of the model is given."""
    prompts = digest({"prompts": [prompt_key(model, prompt) for prompt in inputs]})
    return measurement_key(measure, model, settings) | {"prompt": prompts}


def find_whole(key: Mapping[str, Any]) -> xr.Dataset | None:
    """Find it in the store, or among what ships with the project."""
    found = find(paths.RESULTS, key)
    return found[0] if found else None


def keep_whole(key: Mapping[str, Any], ds: xr.Dataset) -> xr.Dataset:
    """Keep it and give it back; where nothing can be written, a warning says so."""
    try:
        write(paths.RESULTS, key, ds)
    except OSError as error:
        reason = error.strerror or error
        warnings.warn(f"the measurement is not kept in {paths.RESULTS}: {reason}", StoreWarning, stacklevel=3)
    return ds
