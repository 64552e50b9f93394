"""Shipped measurements that a notebook shows beside its own, too expensive to repeat there.

Measurements of some public decoders ship without their weights: these are read by name, without loading the model.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import xarray as xr

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import Prompts, prompt_inputs, prompt_name
from coupling_lib.models.model import Model
from coupling_lib.store import files, listing
from coupling_lib.store.joining import join_prompts
from coupling_lib.store.key import measurement_key, plain_settings, prompt_key


def shipped(
    measure: Callable[..., xr.Dataset], model: Model, prompts: Sequence[str | torch.Tensor], **settings: Any
) -> xr.Dataset | None:
    """Read a measurement of several prompts; None unless all of them ship with the project."""
    # A user's own results are not read: a figure must not depend on earlier measurements.
    try:
        key = measurement_key(measure, model, settings)
    except ParameterError:
        return None  # a model without a key, such as one with hooks
    found = [files.read(files.shipped(model.name), key | {"prompt": prompt_key(model, prompt)}) for prompt in prompts]
    return join_prompts(one[0] for one in found if one) if all(found) else None


def shipped_networks(
    measure: Callable[..., xr.Dataset],
    name: str,
    prompts: Prompts,
    precision: str = "float32",
    seed: int = 0,
    **settings: Any,
) -> dict[str, xr.Dataset]:
    """Read a measurement of a model, untrained and trained, without its weights; empty if a prompt is missing."""
    if Path(name).is_dir():
        return {}  # a folder takes precedence over an alias of that name
    table = listing(name, files.shipped(name))
    table = table[(table["measure"] == measure.__name__.removeprefix("measure_")) & (table["precision"] == precision)]
    wanted = json.dumps(plain_settings(measure, settings), sort_keys=True)
    table = table[(table["version"] == measure.version) & (table["settings"] == wanted)]
    fresh = table["untrained"].astype(bool)
    found = {}
    for network, own in (("untrained", table[fresh & (table["seed"] == seed)]), ("trained", table[~fresh])):
        kept = dict(zip(own["prompt"], own["path"], strict=True))
        asked = [kept.get(prompt_name(prompt)) for prompt in prompt_inputs(prompts)]
        if not all(asked):
            return {}
        found[network] = join_prompts(files.open_file(Path(path))[1] for path in asked)
    return found
