"""Shared parts of measurements: prompts traced, Jacobians stacked over blocks, and one dataset."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import xarray as xr

from coupling_lib import progress
from coupling_lib.errors import ParameterError, check_whole, shown
from coupling_lib.inputs.prompt_arguments import Prompts, UpToWidth, inputs_for, prompt_inputs, prompt_name
from coupling_lib.inputs.traced import trace
from coupling_lib.jacobian.derivatives import form
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.memory import give_back
from coupling_lib.metrics.variants import measure_variants, names_at
from coupling_lib.models.load import load_model
from coupling_lib.models.model import Model
from coupling_lib.provenance import prompts_hash, provenance
from coupling_lib.svd.triplets import SingularTriplets, top_triplets_stacked

Measure = TypeVar("Measure", bound=Callable[..., Any])

Variables = dict[str, Any]
"""Variables of one prompt by name: dimensions with a tensor or a list, or a single number or text."""


def measurement(version: int) -> Callable[[Measure], Measure]:
    """Attach a version to a measure, by which the store decides whether its old results are still valid.

    This is the rule, stated nowhere else:

    - **Raise the version by 1** when a number that the measure returns changes by more than rounding for the same
      model, prompt and settings, or when a result is renamed, reshaped or redefined; wherever the cause
      lies: a changed metric, surrogate or Jacobian raises the version of every measure it enters.
    - **Leave it** when docstrings, comments, internal names, speed or memory change: old results are read back.
      The weights, the prompt with its tokens and the settings are in the store's key by themselves (`store.key`).
    - Every measure of this library that is handed to `sweep` or `stream` has a version, and
      `tests/coupling_lib/measures/test_versions` fails when its numbers change and the version does not.

    A user's own measure may go without. It then counts as version 1 and is identified by the text of its file, or in a
    notebook by its own text, and by what it uses: closures, attributes, global values and functions of no library. When
    any of these changes, it is measured anew. Libraries, this one included, are not inspected: after an update that
    matters give the measure a version, or raise it.

    Args:
        version: a whole number from 1.

    Returns:
        a decorator, which returns the function itself.

    Raises:
        ParameterError: if the version is anything else.

    Example:
        >>> @measurement(version=2)
        ... def measure_nothing(model, prompts): ...
        >>> measure_nothing.version
        2
    """
    version = check_whole("version", version, 1)

    def mark(function: Measure) -> Measure:
        function.version = version
        return function

    return mark


def traces(model: Model, given: Sequence[str | torch.Tensor]) -> Iterator[Trace]:
    """Trace prompts one after the other, with a progress bar unless they are a part of a sweep."""
    for prompt in progress.bar(given, model, "prompt"):
        yield trace(model, prompt)


def check_k(model: Model, *ks: int) -> None:
    """Refuse a K larger than the width of a model's Jacobians, before anything is measured."""
    for k in ks:
        check_whole("k", k, 1, model.d_model, f"{model.name} has width {model.d_model}")


def check_pairs(model: Model) -> None:
    """Refuse a model of one block, which has no pairs of different blocks."""
    if model.n_blocks < 2:
        message = f"{model.name} has 1 block; coupling needs pairs of different blocks, take a deeper model"
        raise ParameterError(message)


def check_ks(model: Model, ks: Iterable[int]) -> list[int]:
    """Return the values of K, sorted; refuse any above a model's width, and warn of defaults left out."""
    # A measure with one K calls it `k`. One with several calls them `ks`, and its dataset has a dimension `k`.
    if isinstance(ks, UpToWidth) and (fitting := ks.of(model)) != ks:
        left = ", ".join(str(k) for k in ks if k not in fitting)
        message = f"{model.name} has width {model.d_model}: of the default ks {tuple(ks)}, {left} is left out"
        warnings.warn(message, stacklevel=3)
        ks = fitting
    if isinstance(ks, str | bytes) or not isinstance(ks, Iterable) or not (chosen := list(ks)):
        raise ParameterError(f"ks is {shown(ks)}; it must be whole numbers from 1 to {model.d_model}, such as (10,)")
    check_k(model, *chosen)
    return sorted({int(k) for k in chosen})


def concat_prompts(
    model: Model,
    given: Sequence[Any],
    each: Iterable[Variables | xr.Dataset],
    coords: Mapping[str, Any],
    shared: Sequence[str] = (),
    **details: Any,
) -> xr.Dataset:
    """Combine the variables of each prompt to one dataset; those that are `shared` are the first prompt's."""
    whole = (one if isinstance(one, xr.Dataset) else to_dataset(one) for one in each)
    first = next(whole)
    apart = [ds.drop_vars(shared, errors="ignore") for ds in itertools.chain([first], whole)]
    first = first.drop_vars(list(apart[0].data_vars))
    ds = xr.concat(apart, dim="prompt").assign(first.data_vars)
    ds = ds.assign_coords({**coords, "prompt": [prompt_name(prompt) for prompt in given]})
    return ds.assign_attrs(provenance(model, given, **details, route=model.blocks.route))


def to_dataset(variables: Variables) -> xr.Dataset:
    """Return one prompt's variables as a dataset of numpy arrays."""
    tensors = {name: value for name, value in variables.items() if isinstance(value, tuple)}
    arrays = {name: (dims, x.cpu().numpy()) for name, (dims, x) in tensors.items() if isinstance(x, torch.Tensor)}
    return xr.Dataset(variables | arrays)


def couple_pairs(
    J: torch.Tensor, ks: Sequence[int], names: Sequence[str] | None = None
) -> tuple[SingularTriplets, dict[str, torch.Tensor]]:
    """Decompose Jacobians, and measure variants between all pairs of them at several K: each (K, L, L)."""
    found = top_triplets_stacked(J, max(ks))
    return found, measure_variants(J, found.U, found.S, found.Vh, ks, names or names_at(ks))


def both_networks(
    measured: Callable[[Model, list], xr.Dataset], names: Sequence[str], prompts: Prompts, seed: int, **first: Any
) -> dict[str, dict[str, xr.Dataset]]:
    """Measure models one after the other, each "untrained" and "trained"; a revision is of the first alone."""
    if isinstance(names, str) or not (names := list(names)):
        raise ParameterError(f"names is {names!r}; give a list of models, such as ['nano-neox']")
    prompts = prompt_inputs(prompts)
    found: dict[str, dict[str, xr.Dataset]] = {}
    for name in names:
        found[name] = {}
        for state in ("untrained", "trained"):
            model = load_model(name, untrained=state == "untrained", seed=seed, **first)
            found[name][state] = measured(model, inputs_for(model, prompts, seed=seed))
            del model  # before the next one is loaded
        first["revision"] = None
    return found


def traced_jacobians(
    model: Model, given: Sequence[str | torch.Tensor], token: int
) -> Iterator[tuple[Trace, torch.Tensor]]:
    """Trace prompts and form the Jacobian J_tt of every block at one token."""
    for traced in traces(model, given):
        yield traced, depth_jacobians(traced, token)


def generator_for(prompt: str | torch.Tensor, seed: int) -> torch.Generator:
    """Return a generator seeded by the prompt as well: a prompt has the same numbers alone and among others."""
    check_whole("seed", seed, 0, 2**62)
    return torch.Generator().manual_seed(seed + int(prompts_hash([prompt]), 16))


def jacobians_by_prompt(
    model: Model, given: Sequence[str | torch.Tensor], token: int, boundary: str = "block"
) -> Iterator[torch.Tensor]:
    """Form the Jacobians of `traced_jacobians` without keeping the traces: their memory is released block by block."""
    # A loop would hold each trace until after the next one's forward pass.
    return map(partial(depth_jacobians, token=token, boundary=boundary, forget=True), traces(model, given))


def depth_jacobians(traced: Trace, token: int, boundary: str = "block", forget: bool = False) -> torch.Tensor:
    """Form the Jacobian J_tt of every block at one token; with `forget` each block's record is released afterwards."""
    pair, width = (traced.position(token),) * 2, traced.d_model
    J = torch.empty(traced.n_blocks, width, width, dtype=traced.dtype, device=traced.device)
    for block in blocks_of(traced):
        form(traced, block, [pair], boundary, out=J[block : block + 1])
        if forget:
            traced.forget(block)
            # Memory returned to the system has to be fetched again, which takes a tenth of a block's time.
            if block % 2 or block == traced.n_blocks - 1:
                give_back(J.nbytes)
    return J


def blocks_of(traced: Trace) -> Iterable[int]:
    """Iterate over the blocks of a model, with a progress bar where they take long."""
    return progress.bar(range(traced.n_blocks), traced.model, "block")
