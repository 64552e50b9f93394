"""What ships of a measurement that a notebook shows beside its own, but that is too dear to be repeated there."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.models.model import Model
from coupling_lib.store import files
from coupling_lib.store.joining import join_prompts
from coupling_lib.store.key import measurement_key, prompt_key


def shipped(
    measure: Callable[..., xr.Dataset], model: Model, prompts: Sequence[str | torch.Tensor], **settings: Any
) -> xr.Dataset | None:
    """Read a measurement of several prompts, or nothing where one of them does not ship with the project."""
    # A user's own results are not looked at: what a figure shows must not depend on what was measured before it.
    try:
        key = measurement_key(measure, model, settings)
    except ParameterError:
        return None  # a model without a key, such as one with hooks
    found = [files.read(files.shipped(model.name), key | {"prompt": prompt_key(model, prompt)}) for prompt in prompts]
    return join_prompts(one[0] for one in found if one) if all(found) else None
