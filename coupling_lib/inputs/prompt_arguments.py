"""Prompt arguments of a measurement: strings, prompts or token ids, checked and converted to a model's inputs."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from coupling_lib.blocks.model_config import random_input
from coupling_lib.errors import ParameterError, check_whole, shown
from coupling_lib.inputs.prompts import unreadable
from coupling_lib.models.model import Model

Prompts = str | torch.Tensor | Iterable[Any]
"""Prompts of a measurement: texts, tensors of `input_ids` or `pixel_values`, or `Prompt` objects; or a single one."""


class UpToWidth(tuple[int, ...]):
    """Default numbers of singular vectors, limited to the width of a model."""

    def of(self, model: Model) -> tuple[int, ...]:
        """Return the numbers up to a model's width, or all if none is."""
        return tuple(k for k in self if k <= model.d_model) or tuple(self)


def prompt_tokens(text: str, tokenizer: Any) -> list[int]:
    """Return the token ids of a text, with its tokenizer's special tokens."""
    return tokenizer(text, verbose=False)["input_ids"]


def prompt_inputs(prompts: Prompts, *models: Any) -> list[str | torch.Tensor]:
    """Return prompts as a list of texts or tensors, and refuse anything else, or a model that was not loaded."""
    for model in models:
        check_model(model)
    single = isinstance(prompts, str | torch.Tensor)
    if isinstance(prompts, Mapping | bytes) or not (single or isinstance(prompts, Iterable)):
        raise ParameterError(f"prompts is {shown(prompts)}; give a list of texts, tensors or `Prompt` objects")
    given = [getattr(prompt, "text", prompt) for prompt in ([prompts] if single else prompts)]
    if not given:
        raise ParameterError("prompts is empty; give at least one text or tensor of input_ids")
    return [_checked(prompt, f"prompt {number} of {len(given)}") for number, prompt in enumerate(given, start=1)]


def _checked(prompt: Any, place: str) -> str | torch.Tensor:
    if isinstance(prompt, torch.Tensor):
        return prompt
    if not isinstance(prompt, str):
        message = f"{place} is {shown(prompt)} ({type(prompt).__name__}); give texts, tensors or `Prompt` objects"
        raise ParameterError(message)
    if not prompt.strip():
        raise ParameterError(f"{place} is an empty text; write one, or leave it out")
    if why := unreadable(prompt):
        raise ParameterError(f"{place} {why}; take it out of the text")
    return prompt


def check_model(model: Any) -> None:
    """Refuse anything but a loaded model, such as a name or a model of another library."""
    if not (hasattr(model, "hf") and hasattr(model, "blocks")):
        raise ParameterError(
            f"model is {shown(model, 60)} ({type(model).__name__}); pass what cl.load_model or cl.wrap_model returns"
        )


def inputs_for(
    model: Model, prompts: Iterable[Any], seed: int = 0, n_tokens: int = 16, longest: int | None = None
) -> list[str | torch.Tensor]:
    """Return prompts as inputs that a model can read.

    A model with a tokenizer reads the texts themselves. One without (random weights saved alone, a vision
    model) gets as many random inputs instead: token ids drawn uniformly, or images of standard normal noise.
    They exercise every block; a warning, and the name of each input in the dataset, tell that they are random.

    A text longer than the model can read, or than `longest`, is truncated, with a warning: among hundreds of
    prompts there is often one. So `longest` bounds the memory that any prompt can take.

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors, or `Prompt` objects.
        seed: seed of the random inputs.
        n_tokens: length of random token sequences.
        longest: maximum number of tokens of a text; by default as many as the model reads.

    Returns:
        as many texts or tensors as there are prompts.

    Raises:
        ParameterError: if `longest` is not a whole number from 1.

    Example:
        >>> from coupling_lib.models.load import load_model
        >>> inputs_for(load_model("nano-neox"), ["It was the best of times"])
        ['It was the best of times']
        >>> inputs_for(load_model("nano-vit"), ["a picture"])[0].shape
        torch.Size([1, 1, 8, 8])
    """
    given = prompt_inputs(prompts, model)
    if longest is not None:
        longest = check_whole("longest", longest, 1)
    check_whole("seed", seed, 0, 2**63 - 1)
    check_whole("n_tokens", n_tokens, 1)
    if model.tokenizer is not None:
        return _truncated(model, given, longest)
    generator = torch.Generator().manual_seed(seed)
    n_tokens = min(n_tokens, longest or n_tokens)
    if drawn := sum(not isinstance(x, torch.Tensor) for x in given):
        what = f"{drawn} random input{'s' * (drawn > 1)} in place of as many texts"
        warnings.warn(f"{model.name} has no tokenizer and reads {what}", stacklevel=2)
    return [x if isinstance(x, torch.Tensor) else random_input(model.hf, generator, n_tokens) for x in given]


def longest_input(hf: PreTrainedModel) -> int | None:
    """Return the maximum number of tokens that a model reads; None if it is unbounded."""
    config = hf.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    ropes = getattr(config, "rope_parameters", None) or {}
    ropes = [each for each in (ropes, *ropes.values()) if isinstance(each, Mapping) and "rope_type" in each]
    if any(each["rope_type"] == "dynamic" for each in ropes):
        return None  # stretched to the input's length
    # Some configurations give the length before stretching in both places.
    stretched = [each.get("factor", 1) * each.get("original_max_position_embeddings", 0) for each in ropes]
    # In a table of positions with a row for padding, positions begin after that row.
    tables = [part for part in hf.modules() if isinstance(part, nn.Embedding) and part is not hf.get_input_embeddings()]
    sized = [table for table in tables if table.num_embeddings == positions and table.padding_idx is not None]
    before = max((table.padding_idx + 1 for table in sized), default=0)
    return int(max(positions, *stretched)) if stretched else positions - before


def _truncated(model: Model, given: list[str | torch.Tensor], longest: int | None) -> list[str | torch.Tensor]:
    """Truncate texts that are too long to the ids of their first tokens."""
    limits = [limit for limit in (longest_input(model.hf), longest) if limit]
    if not limits:
        return given
    fitting, cut = list(given), 0
    for number, prompt in enumerate(given):
        # A token is at least a byte of the text, so that most texts need not be counted; special tokens are added.
        if isinstance(prompt, str) and len(prompt.encode()) + 8 > min(limits):
            ids = prompt_tokens(prompt, model.tokenizer)
            if len(ids) > min(limits):
                fitting[number], cut = torch.tensor([ids[: min(limits)]]), cut + 1
    if cut:
        warnings.warn(
            f"{cut} of {len(given)} prompts are longer than {min(limits)} tokens and cut after so many", stacklevel=3
        )
    return fitting


def prompt_name(given: str | torch.Tensor) -> str:
    """Return the name of a prompt in a dataset: its text, or its token ids."""
    if isinstance(given, str):
        return given
    return f"ids {given[0].tolist()}" if given.ndim == 2 else f"image {tuple(given.shape)}"
