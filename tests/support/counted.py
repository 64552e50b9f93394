"""A measure that writes down what it was called with."""

import numpy as np
import xarray as xr

from coupling_lib.inputs.prompt_arguments import prompt_inputs, prompt_name
from coupling_lib.provenance import provenance


class Counted:
    """Measures the length of a text, and has one number that does not exist and two that no prompt changes."""

    __name__ = "measure_counted"
    version = 1  # without one, what it was called with would be part of its key

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, model, prompts, scale: float = 1.0) -> xr.Dataset:
        given = prompt_inputs(prompts)
        names = [prompt_name(prompt) for prompt in given]
        self.seen += names
        lengths = [scale * len(name) for name in names]
        ds = xr.Dataset({"length": ("prompt", lengths), "gap": ("prompt", [np.nan] * len(names))})
        ds = ds.assign(shared=("place", [1, 2])).assign_coords(prompt=names)
        return ds.assign_attrs(provenance(model, given, measure="counted"))
