"""Sweeps over many prompts: one after the other, each stored as soon as it is done.

A run that was stopped resumes where it was, and shards measured into one store are merged by a sweep of all.
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from coupling_lib import paths, progress
from coupling_lib.errors import ParameterError, shown
from coupling_lib.inputs.prompt_arguments import Prompts, prompt_inputs
from coupling_lib.models.model import Model
from coupling_lib.provenance import command_line, prompts_hash
from coupling_lib.store import StoreWarning, join_prompts, write
from coupling_lib.store.files import NOT_SHIPPED, read, shipped
from coupling_lib.store.key import measurement_key, prompt_key

Measure = Callable[..., xr.Dataset]
Key = dict[str, Any] | None


def sweep(
    measure: Measure,
    model: Model,
    prompts: Prompts,
    *,
    store: str | Path | None = None,
    shard: str | None = None,
    variables: Collection[str] | None = None,
    **settings: Any,
) -> xr.Dataset:
    """Measure many prompts, store each as soon as it is done, and repeat none that is stored.

    A prompt that was measured before, by the same version of the measure, with the same settings, on the same
    weights, is read from the store. If no `store` is named, shipped measurements are read too, provided that all the
    `variables` asked for ship. A damaged file is set aside and its prompt measured again. If the store
    cannot be written to, one warning reports it and the measurement goes on.

    The dataset grows with the number of prompts, and no other memory does; if even that is too large, use
    `stream`. A sweep of more than 20 seconds shows a bar on stderr.

    Args:
        measure: a function such as `measure_depth`, called as `measure(model, [prompt], **settings)`.
        model: a model from `load_model` or `wrap_model`.
        prompts: texts, tensors of `input_ids` `(1, n)`, images `(1, c, h, w)`, or `Prompt` objects.
        store: folder of all results; by default `results`, or the environment variable `COUPLING_RESULTS`.
        shard: "i/n" measures the i-th of n shards: every n-th prompt, and with shard 1 variables shared by all prompts.
            Sweeping the whole set afterwards, on the same store, gives the bytes of an undivided run.
        variables: names of those that are wanted; by default all. For public models, variables of the book's figures
            ship with the project, single pairs rounded to 16 bits, and are read if they are all that is named here;
            the attribute `not_shipped` names those left out.
        settings: keyword arguments of `measure`, plain values.

    Returns:
        what `measure(model, prompts, **settings)` returns, or of it the `variables`. Where entries of different prompts
        differ in length, the shorter are padded with NaN. The attribute `versions` lists all that were used, if
        there are several.

    Raises:
        ParameterError: if there is no prompt, or `measure` refuses one; if a shard does not exist or is empty.

    Example:
        >>> import tempfile
        >>> import coupling_lib as cl
        >>> model, texts = cl.load_model("nano-neox"), ["It was the best of times", "it was the worst of times"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ds = cl.sweep(cl.measure_trajectories, model, texts, store=folder)
        >>> dict(ds.norm.sizes)
        {'prompt': 2, 'level': 13}
    """
    whole, versions = prompt_inputs(prompts, model), []
    given = [prompt for _, prompt in in_shard(whole, shard)]
    if not given:
        most = max(prompt_numbers(whole)) + 1
        message = f"shard {shard} of {len(whole)} prompts is empty; make at most {most} shard{'s' * (most > 1)}"
        raise ParameterError(message)

    def measurements() -> Iterator[xr.Dataset]:
        for ds in stream(measure, model, whole, store=store, shard=shard, variables=variables, **settings):
            versions.append(ds.attrs.get("versions", ""))
            yield ds

    joined = join_prompts(measurements())
    present = {"n_prompts": len(given), "prompts_sha256": prompts_hash(given)}
    present |= {"versions": "; ".join(dict.fromkeys(versions)), "command": command_line()}
    present = {name: value for name, value in present.items() if name in joined.attrs}
    return joined.assign_attrs(present)


def stream(
    measure: Measure,
    model: Model,
    prompts: Prompts,
    *,
    store: str | Path | None = None,
    shard: str | None = None,
    variables: Collection[str] | None = None,
    **settings: Any,
) -> Iterator[xr.Dataset]:
    """Measure like `sweep`, and yield the measurements one at a time: memory does not grow with their number."""
    chosen = in_shard(prompt_inputs(prompts, model), shard)
    if not callable(measure):
        raise ParameterError(f"measure is {shown(measure)}; pass a function, such as cl.measure_depth")
    if isinstance(variables, str):
        raise ParameterError(f"variables is {variables!r}; expected a list of names, for example [{variables!r}]")
    shelf = Shelf(store)
    described = shelf.key(measure, model, settings)
    for number, prompt in progress.bar(chosen, model, "prompt"):
        first, key = number == 0, described and described | {"prompt": prompt_key(model, prompt)}
        ds = shelf.find(key, first, variables)
        if ds is None:
            ds = measure(model, [prompt], **settings)
            ds = ds if first else _without_shared(ds)
            shelf.keep(key, ds, complete=first)
        if variables and not {*variables} & {*ds.data_vars}:  # some models lack some of them
            known = ", ".join(map(str, ds.data_vars))
            raise ParameterError(f"variables is {shown(variables)}; this measurement has {known}")
        yield ds if variables is None else ds[[name for name in ds.data_vars if name in variables]]


def parse_shard(shard: str) -> tuple[int, int]:
    """Parse "i/n", the i-th of n shards, counted from 1."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard) if isinstance(shard, str) else None
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise ParameterError(f"shard is {shown(shard)}; it must be a text i/n with i from 1 to n, such as '2/3'")
    return number, count


def prompt_numbers(given: Sequence[Any]) -> list[int]:
    """Number the prompts; a repeated text has the number of its first, so that no two shards measure it."""
    first: dict[Any, int] = {}
    return [first.setdefault(x if isinstance(x, str) else place, len(first)) for place, x in enumerate(given)]


def in_shard(given: Sequence[Any], shard: str | None) -> list[tuple[int, Any]]:
    """Return the prompts of a shard, each with its position in the whole set."""
    number, count = (1, 1) if shard is None else parse_shard(shard)
    numbered = zip(enumerate(given), prompt_numbers(given), strict=True)
    return [placed for placed, part in numbered if part % count == number - 1]


def _folder(store: str | Path) -> Path:
    """Return the folder of a store, and refuse anything else."""
    if not isinstance(store, str | Path) or not str(store).strip() or "\0" in str(store):
        raise ParameterError(f"store is {shown(store)}; it must be a folder, or None for the usual one")
    if Path(store).is_file():
        raise ParameterError(f"store is the file {str(store)!r}; give a folder, which is made if it is not there")
    return Path(store)


class Shelf:
    """A store of measurements by their keys; disk errors are reported once and otherwise ignored."""

    def __init__(self, store: str | Path | None = None) -> None:
        self.usual, self.warned = store is None, False
        self.root = paths.RESULTS if store is None else _folder(store)

    def key(self, measure: Measure, model: Model, settings: dict[str, Any]) -> Key:
        """Return the key of a measurement but for its prompt; None if it cannot be stored."""
        try:
            return measurement_key(measure, model, settings)
        except TypeError:
            return None  # an argument that the measure does not have: calling it raises
        except ParameterError as error:
            return self._warn(error)

    def find(self, key: Key, complete: bool = True, variables: Collection[str] | None = None) -> xr.Dataset | None:
        """Read a stored measurement; without `complete` only the variables that depend on the prompt."""
        try:
            found = key and read(self.root, key)
            if key and self.usual and (found is None or (complete and not found[1])):
                found = read(shipped(key["model"]), key)
                lacking = {*found[0].attrs.get(NOT_SHIPPED, "").split(", ")} - {""} if found else set()
                if lacking and (variables is None or lacking & {*variables}):
                    found = None
        except OSError as error:
            return self._warn(error)
        if found is None or (complete and not found[1]):
            return None
        return found[0] if complete else _without_shared(found[0])

    def keep(self, key: Key, ds: xr.Dataset, complete: bool = True) -> None:
        """Store a measurement, if it has a key."""
        try:
            if key is not None:
                write(self.root, key, ds, complete)
        except (OSError, ParameterError) as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        message = f"measurements are not kept in {self.root}: {reason}; measuring goes on, and a later run repeats it"
        if not self.warned:
            warnings.warn(message, StoreWarning, stacklevel=2)
        self.warned = True


def _without_shared(ds: xr.Dataset) -> xr.Dataset:
    """Drop the variables that do not depend on the prompt; coordinates stay."""
    shared = [name for name, variable in ds.data_vars.items() if "prompt" not in variable.dims]
    return ds.drop_vars(shared) if len(shared) < len(ds.data_vars) else ds
