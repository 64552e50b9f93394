"""Inputs of one trace: texts converted to token ids, and inputs that a model cannot read refused."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coupling_lib.blocks.makeup import modifications, modified
from coupling_lib.blocks.model_config import sides
from coupling_lib.blocks.record import family_of, images_config
from coupling_lib.blocks.state import restored
from coupling_lib.errors import CouplingError, ParameterError, UnsupportedModelError
from coupling_lib.inputs import token_ids
from coupling_lib.inputs.images import first_states
from coupling_lib.inputs.prompt_arguments import check_model, longest_input, prompt_inputs, prompt_tokens
from coupling_lib.inputs.prompts import Prompt
from coupling_lib.jacobian import tracing
from coupling_lib.memory import ran_out
from coupling_lib.models.model import Model
from coupling_lib.modes import exclusive, refuse_narrow

# Larger than any normalised pixel, and smaller than the brightest byte of any image that is not black.
_BRIGHTEST = 50


@exclusive
def trace(model: Model, given: str | Tensor | Prompt) -> tracing.Trace:
    """Run a model once and record every block's input, output and call.

    Args:
        model: a model from `load_model`.
        given: a text, or a `Prompt` with one; token ids, shape `(1, n)`, integer; or an image, shape `(1, c, h, w)`,
            floating point.

    Returns:
        the trace. An input that is empty, of another shape or longer than the model can read, and a text
        for a model without a tokenizer, raise `ParameterError`.

    Raises:
        UntrustworthyResultError: if states are NaN or infinite; under autocast, or with a default dtype of half
            precision, which would silently narrow states and Jacobians.

    Example:
        >>> import coupling_lib as cl
        >>> model = cl.load_model("nano-neox")
        >>> cl.trace(model, "It was a dark and stormy night").hidden.shape[0]
        13
    """
    check_model(model)
    refuse_narrow()
    inputs = _checked(model, given)
    (tensor,) = inputs.values()
    with _explained(model, inputs):
        found = tracing.trace(model, tensor)
    ids = inputs.get("input_ids")
    if ids is None:
        return found
    return replace(found, last_token_warning=token_ids.last_token_warning(ids[0].tolist(), model.tokenizer, model.name))


@contextmanager
def _explained(model: Model, inputs: Mapping[str, Tensor]) -> Generator[None]:
    """Raise errors of a model's run on an input as one line with their cause."""
    try:
        yield
    except CouplingError:
        raise
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[-1][:200]
        # A hook of the user's, and no parametrisation, such as wav2vec2's own.
        if any(functions for _, _, *functions in modifications(model.hf)):
            raise UnsupportedModelError(
                f"{family_of(model.hf)} failed while {modified(model.hf)} carried a hook or a forward of your own "
                f"({type(error).__name__}: {message}); mend it or take it off, and trace again"
            ) from error
        if ran_out(error) or _runs(model.hf, inputs):
            raise
        raise UnsupportedModelError(
            f"{model.name} does not run on this input ({type(error).__name__}: {message}); see that model.hf runs on "
            "it, or give a shorter one"
        ) from error


@torch.no_grad()
def _runs(hf: PreTrainedModel, inputs: Mapping[str, Any]) -> bool:
    with restored(hf), suppress(Exception):
        hf(**inputs)
        return True
    return False


def _checked(model: Model, given: str | Tensor | Prompt) -> dict[str, Tensor]:
    """Convert the user's input to the model's, or raise an error of one line."""
    wanted, given = model.hf.main_input_name, getattr(given, "text", given)
    if isinstance(given, str):
        (text,) = prompt_inputs(given)
        if model.tokenizer is None:
            raise ParameterError(f"{model.name} has no tokenizer and was given a text; give {wanted} as a tensor")
        given = torch.tensor([prompt_tokens(text, model.tokenizer)], dtype=torch.long)
    if not isinstance(given, Tensor):
        masked = "; of what a tokenizer returns: made.input_ids[:, made.attention_mask[0] == 1]"
        message = f"the input is a {type(given).__name__}; give a text, a `Prompt` or a tensor of {wanted}"
        raise ParameterError(message + masked * (isinstance(given, Mapping) and wanted in given))
    inputs = tracing.model_inputs(model, given)
    if wanted == "pixel_values":
        _check_pixels(model, given)
        return inputs
    if given.shape[1] > (most := longest_input(model.hf) or given.shape[1]):
        raise ParameterError(f"the input has {given.shape[1]} tokens; {model.name} reads at most {most}; shorten it")
    token_ids.check(given[0].tolist(), model.tokenizer, model.hf.config.get_text_config(), model.name)
    return inputs


def _reads(model: Model, pixels: Tensor) -> bool:
    """Return whether a model accepts images of this size."""
    with suppress(AssertionError, IndexError, RuntimeError, TypeError, ValueError):
        return bool(first_states(model, pixels).numel())
    return False


def _check_pixels(model: Model, given: Tensor) -> None:
    """Refuse an image of the wrong size, or without the normalisation of the model's training."""
    config = images_config(model.hf.config)
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", given.shape[1])
    size = tuple(given.shape[2:]) if size is None else sides(size)
    # Some families read other sizes too, and interpolate their position embeddings.
    if tuple(given.shape[1:]) != (channels, *size) and not _reads(model, given):
        raise ParameterError(
            f"the image has shape {tuple(given.shape)}, and {model.name} reads {(1, channels, *size)}; "
            "cl.load_images brings pictures into its format"
        )
    if not bool(given.isfinite().all()):
        raise ParameterError("the image holds NaN or infinite values; give finite ones")
    if (largest := float(given.abs().max())) > _BRIGHTEST:
        raise ParameterError(
            f"the image has values up to {largest:.4g}; a model reads pixels that are normalised to a few units around "
            "0: divide bytes by 255 and normalise them as cl.load_images does"
        )
