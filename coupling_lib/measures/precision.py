"""Precision: the same measurement with weights, or arithmetic, of fewer bits.

Numbers of few bits enter a Jacobian in two places: the *weights* may be rounded or quantised, and with them the states
at which blocks are linearised; and the *arithmetic* of the derivative may be narrow, as in the released code, which
differentiates in the model's own dtype. `measure_precision` separates the two. The map measured for an int8 or a
4-bit block is defined in `coupling_lib.blocks.precision`.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import xarray as xr

from coupling_lib.blocks.precision import PRECISIONS
from coupling_lib.blocks.storage import in_few_bits
from coupling_lib.datasets.summaries import chance
from coupling_lib.errors import (
    CouplingError,
    ParameterError,
    UnsupportedModelError,
    UntrustworthyResultError,
    check_whole,
    shown,
)
from coupling_lib.inputs.prompt_arguments import inputs_for, prompt_inputs
from coupling_lib.jacobian.bf16_matmul import RoundedProducts
from coupling_lib.jacobian.tracing import Trace
from coupling_lib.measures import common
from coupling_lib.measures.depth import measure_depth
from coupling_lib.measures.random_bases import null_of
from coupling_lib.metrics.subspaces import principal_angles, random_angles
from coupling_lib.models.load import load_model
from coupling_lib.models.model import Model
from coupling_lib.store.files import digest
from coupling_lib.store.key import prompt_key
from coupling_lib.store.sweep import Shelf, sweep

REFERENCE = "float32"
"""The precision, and the arithmetic, with which all others are compared."""

ARITHMETIC = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes in which a Jacobian can be formed."""

SOURCES = ("weights", "bfloat16 arithmetic", "float16 arithmetic")
"""Sources of an error: narrow weights, or narrow arithmetic with the same weights and states."""

VARIANT = "normalized_miscoupling"


@dataclass(frozen=True, eq=False)
class _NarrowTrace(Trace):
    """A trace whose blocks are differentiated in a chosen dtype."""

    arithmetic: torch.dtype = torch.float32

    @property
    def dtype(self) -> torch.dtype:
        return self.arithmetic


def chosen_precisions(text: str) -> list[str]:
    """Parse a list of precisions to be compared with float32."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    narrow = [name for name in dict.fromkeys(names) if name != REFERENCE]
    unknown = [name for name in narrow if name not in PRECISIONS]
    if unknown or not narrow:
        others = ", ".join(name for name in PRECISIONS if name != REFERENCE)
        raise ParameterError(f"precisions is {text!r}; give some of {others}, separated by commas")
    return narrow


@common.measurement(version=3)
def measure_triplets(
    model: Model, prompts: common.Prompts, k: int = 10, token: int = -1, arithmetic: str = REFERENCE
) -> xr.Dataset:
    """Measure the top singular triplets of every block's Jacobian J_tt, vectors included, and their coupling."""
    given = prompt_inputs(prompts, model)
    common.check_k(model, k)
    if arithmetic not in ARITHMETIC:
        raise ParameterError(f"arithmetic is {arithmetic!r}; it must be one of {', '.join(ARITHMETIC)}")
    each = (_of_one_prompt(_in_arithmetic(traced, arithmetic), token, k) for traced in common.traces(model, given))
    return common.concat_prompts(model, given, each, {}, measure="triplets", k=k, token=token, arithmetic=arithmetic)


def _of_one_prompt(traced: Trace, token: int, k: int) -> common.Variables:
    with nullcontext() if traced.dtype == torch.float32 else RoundedProducts():
        jacobians = common.depth_jacobians(traced, token).float()
    found, values = common.couple_pairs(jacobians, [k], [VARIANT])
    return {
        "U": (("block", "component", "rank"), found.U),
        "V": (("block", "component", "rank"), found.Vh.mT),
        "singular_values": (("block", "rank"), found.S),
        VARIANT: (("block_1", "block_2"), values[VARIANT][0]),
    }


@common.measurement(version=1)
def measure_precision(
    name: str,
    prompts: Sequence[Any],
    precisions: Sequence[str] = ("bfloat16", "int8", "nf4", "fp4"),
    k: int = 10,
    token: int = -1,
    n_vectors: int = 4,
    revision: str | None = None,
    seed: int = 0,
    memory: str | int | None = None,
) -> xr.Dataset:
    """Measure a model in several precisions, one in memory at a time, and compare each with float32.

    Args:
        name: alias, Hugging Face id or local folder.
        prompts: texts or `Prompt` objects; a model without a tokenizer gets random inputs in their place.
        precisions: precisions of the weights beside float32, names of `blocks.precision.PRECISIONS`.
        k: number of singular triplets K.
        token: the position t whose Jacobians are measured; -1 is the last.
        n_vectors: number of prompts, from the first, for which vectors and arithmetic are compared.
        revision: branch, tag, commit or training step.
        seed: seed of random inputs and of the random subspaces.
        memory: maximum memory of the weights, see `load_model`; a precision that needs more is left out.

    Returns:
        a dataset whose dimension `precision` starts with float32, blocks from 0, with
        `normalized_miscoupling` `(precision, prompt, block_1, block_2)` and `singular_values` `(precision, prompt,
        block, rank)` of all prompts; `null` and `null_error` `(precision)`, `null_of` with that precision's values;
        and of the first `n_vectors` prompts (dimension `example`) by `source` of the error (`SOURCES`), weights
        against float32 weights, or arithmetic against float32 with the same weights, NaN where it fails its checks:
        `value_error` `(precision, source, example, block, rank)`, relative, of singular values;
        `angle` `(precision, source, side, example, block, order)`, principal angles in degrees between the spans of the
        top K vectors, beside `random_angle` and `random_angle_error` `(order)` of unrelated spans;
        `coupling_error` `(precision, source, example, block_1, block_2)`, the absolute difference of coupling.
        The attribute `left_out` lists the precisions that could not be measured, with the reason, one a line.

    Raises:
        ParameterError: if K exceeds the width, a token does not exist, or there is no prompt.

    Example:
        >>> import coupling_lib as cl
        >>> ds = cl.measure_precision("nano-neox", ["It was the best of times"], ["bfloat16"], k=4)
        >>> ds.precision.values.tolist(), float(ds.value_error.sel(precision="float32", source="weights").max())
        (['float32', 'bfloat16'], 0.0)
    """
    if isinstance(precisions, str) or (unknown := [name for name in precisions if name not in PRECISIONS]):
        wrong = precisions if isinstance(precisions, str) else unknown[0]
        raise ParameterError(f"precisions has {shown(wrong)}; give a list of some of {', '.join(PRECISIONS)}")
    check_whole("n_vectors", n_vectors, 1)
    model = load_model(name, precision=REFERENCE, revision=revision, memory=memory)
    inputs = inputs_for(model, prompts, seed=seed)
    settings, examples = {"k": k, "token": token}, inputs[:n_vectors]
    chosen = settings | {"precisions": list(precisions), "n_vectors": n_vectors, "seed": seed}
    # The dataset compares several forms of one model, and is stored as a whole.
    shelf = Shelf()
    if (key := shelf.key(measure_precision, model, chosen)) is not None:
        key["prompt"] = digest({"prompts": [prompt_key(model, prompt) for prompt in inputs]})
    if (kept := shelf.find(key)) is not None:
        return kept
    reference = _measured(model, inputs, examples, settings)
    found, left_out = [reference], []
    for precision in precisions:
        del model
        try:
            model = load_model(name, precision=precision, revision=revision, memory=memory)
            found.append(_measured(model, inputs, examples, settings))
        except CouplingError as error:
            model = None
            left_out.append(f"{precision} is left out: {error}")
    ds = xr.concat([_with_errors(one, reference) for one in found], dim="precision", combine_attrs="override")
    ds = ds.assign_coords(precision=[one["depth"].attrs["precision"] for one in found], source=list(SOURCES))
    generator = torch.Generator().manual_seed(seed)
    nulls = [chance(null_of(one["depth"], VARIANT, seed=seed)) for one in found]
    angles = torch.rad2deg(random_angles(int(ds.attrs["width"]), k, generator=generator))
    ds["null"], ds["null_error"] = ("precision", list(map(float, nulls))), ("precision", [null.error for null in nulls])
    ds["random_angle"] = ("order", angles.mean(dim=0).numpy())
    ds["random_angle_error"] = ("order", (angles.std(dim=0) / len(angles) ** 0.5).numpy())
    named = {"precision": ", ".join(ds["precision"].values), "left_out": "\n".join(left_out)}
    ds = ds.assign_attrs({"measure": "precision", "k": k, "n_vectors": len(examples)} | named)
    if not left_out:  # a later run may have the missing package or memory
        shelf.keep(key, ds)
    return ds


def _measured(model: Model, inputs: Sequence[Any], examples: Sequence[Any], settings: dict[str, int]) -> dict[str, Any]:
    """Return all measurements of one loaded model: depth over all prompts, triplets of some in every arithmetic."""
    # Blocks without quantised layers would look like an exact quantisation.
    if model.precision in ("int8", "nf4", "fp4") and not in_few_bits(model.blocks.modules):
        raise UnsupportedModelError(
            f"bitsandbytes finds no linear layer to quantise in the blocks of {type(model.hf).__name__}"
        )
    found: dict[str, Any] = {"depth": sweep(measure_depth, model, inputs, ks=(settings["k"],), token=settings["token"])}
    for arithmetic in ARITHMETIC:
        try:
            found[arithmetic] = sweep(measure_triplets, model, examples, **settings, arithmetic=arithmetic)
        except UntrustworthyResultError:
            if arithmetic == REFERENCE:
                raise
            found[arithmetic] = None
    return found


def _with_errors(one: dict[str, Any], reference: dict[str, Any]) -> xr.Dataset:
    """Return one precision's measurements and their errors by source."""
    plain = one[REFERENCE]
    pairs = [(plain, reference[REFERENCE]), *((one[kind], plain) for kind in ARITHMETIC if kind != REFERENCE)]
    errors = xr.concat([_errors(narrow, wide) for narrow, wide in pairs], dim="source")
    depth = one["depth"]
    kept = depth[[VARIANT]].isel(k=0, drop=True)
    kept["singular_values"] = depth["singular_values"].rename(block_1="block").drop_vars("block")
    return xr.merge([kept, errors], combine_attrs="drop").assign_attrs(depth.attrs)


def _errors(narrow: xr.Dataset | None, wide: xr.Dataset) -> xr.Dataset:
    """Return the differences of two measurements of the same triplets; NaN where the narrow one failed."""
    if narrow is None:
        return xr.full_like(_errors(wide, wide), np.nan)
    order = ("prompt", "block", "component", "rank")
    frames = [[torch.from_numpy(ds[side].transpose(*order).values) for ds in (narrow, wide)] for side in "UV"]
    angles = [principal_angles(*both).rad2deg().numpy() for both in frames]
    value_error = np.abs(narrow["singular_values"] / wide["singular_values"] - 1)
    variables = {
        "value_error": (("example", "block", "rank"), value_error.transpose("prompt", "block", "rank").values),
        "angle": (("side", "example", "block", "order"), np.stack(angles)),
        "coupling_error": (("example", "block_1", "block_2"), np.abs(narrow[VARIANT].values - wide[VARIANT].values)),
    }
    return xr.Dataset(variables, {"side": ["U", "V"]})


def _in_arithmetic(traced: Trace, arithmetic: str) -> Trace:
    """Return the trace with its blocks differentiated in another dtype."""
    if arithmetic == REFERENCE:
        return traced
    parts = {field.name: getattr(traced, field.name) for field in fields(Trace)}
    return _NarrowTrace(**parts, arithmetic=ARITHMETIC[arithmetic])
