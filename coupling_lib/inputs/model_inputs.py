"""What a model is given for one trace: checked, and brought into the form that it takes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from coupling_lib.blocks.model_config import images_config, sides
from coupling_lib.blocks.record import first_states
from coupling_lib.errors import ParameterError
from coupling_lib.inputs import token_ids
from coupling_lib.inputs.lengths import longest, too_long
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.inputs.prompts import Prompt
from coupling_lib.models.model import Model

# Larger than any normalised pixel, and smaller than the bytes of any but a black picture.
_BRIGHTEST = 50


def model_inputs(model: Model, given: str | Tensor | Prompt) -> dict[str, Tensor]:
    """Turn what the user gave into what the model takes, or say in one line why not."""
    hf, wanted = model.hf, model.hf.main_input_name
    pixels, given = wanted == "pixel_values", getattr(given, "text", given)
    if isinstance(given, str):
        (text,) = prompt_inputs(given)
        if model.tokenizer is None:
            raise ParameterError(f"{model.name} has no tokenizer and was given a text; give {wanted} as a tensor")
        given = torch.tensor([text.ids(model.tokenizer)], dtype=torch.long)
    if not isinstance(given, Tensor):
        masked = "; of what a tokenizer returns: made.input_ids[:, made.attention_mask[0] == 1]"
        message = f"the input is a {type(given).__name__}; give a text, a `Prompt` or a tensor of {wanted}"
        raise ParameterError(message + masked * (isinstance(given, Mapping) and wanted in given))
    whole = not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)
    fits = given.ndim == (4 if pixels else 2) and (given.is_floating_point() if pixels else whole)
    fits = fits and given.layout == torch.strided and not given.is_meta
    if not fits or len(given) != 1 or given.numel() == 0:
        form = "(1, channels, height, width), floating point" if pixels else "(1, n) with n >= 1, integer"
        raise ParameterError(f"the input has shape {tuple(given.shape)} and dtype {given.dtype}; {wanted} is {form}")
    if pixels:
        _check_pixels(model, given)
        return {wanted: given.to(hf.device, hf.dtype, copy=True)}
    config = hf.config.get_text_config()
    if given.shape[1] > (most := longest(hf) or given.shape[1]):
        raise too_long(model, given.shape[1], most)
    if int(given.max()) >= config.vocab_size or int(given.min()) < 0:
        raise ParameterError(f"a token id lies outside the vocabulary of {model.name}, 0 to {config.vocab_size - 1}")
    token_ids.check(given[0].tolist(), model.tokenizer, config, model.name)
    return {wanted: given.to(hf.device, torch.long, copy=True)}  # which may be written over after the trace


def _reads(model: Model, pixels: Tensor) -> bool:
    """Return whether a model takes images of this size."""
    try:
        return bool(first_states(model.hf, model.blocks, pixels).numel())
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError):
        return False


def _check_pixels(model: Model, given: Tensor) -> None:
    """Refuse an image of the wrong size, or one that was not normalised as those of the model's training."""
    config = images_config(model.hf.config)
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", given.shape[1])
    size = tuple(given.shape[2:]) if size is None else sides(size)
    # Some families read other sizes too, and stretch their position embeddings.
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
