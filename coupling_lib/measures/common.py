"""What every measurement shares: prompts in any form, progress, Jacobians stacked over blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from tqdm import tqdm

from coupling_lib.blocks import random_input
from coupling_lib.errors import ParameterError
from coupling_lib.jacobian import block_jacobians
from coupling_lib.models import Model
from coupling_lib.tracing import Trace, trace


def prompt_inputs(prompts: str | torch.Tensor | Iterable[Any]) -> list[str | torch.Tensor]:
    """Bring prompts into a list of texts or tensors.

    Args:
        prompts: a text, `input_ids` or `pixel_values`; or several of these; or `prompts.Prompt` objects.

    Returns:
        a list of texts and tensors.

    Raises:
        ParameterError: if there is no prompt.
    """
    single = isinstance(prompts, str | torch.Tensor)
    given = [getattr(prompt, "text", prompt) for prompt in ([prompts] if single else prompts)]
    if not given:
        raise ParameterError("prompts is empty; give at least one text or tensor of input_ids")
    return given


def inputs_for(model: Model, prompts: Iterable[Any], seed: int = 0, n_tokens: int = 16) -> list[str | torch.Tensor]:
    """Give prompts in a form that a model can read.

    A model with a tokenizer reads the texts themselves. One without (random weights saved alone, a vision
    model) gets as many random inputs instead: token ids drawn uniformly, or images of standard normal noise.
    They exercise every block, and the name of each input in the dataset says what it is.

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors, or `Prompt` objects.
        seed: seed of the random inputs.
        n_tokens: length of random token sequences.

    Returns:
        as many texts or tensors as there are prompts.
    """
    given = prompt_inputs(prompts)
    if model.tokenizer is not None:
        return given
    generator = torch.Generator().manual_seed(seed)
    return [x if isinstance(x, torch.Tensor) else random_input(model.hf, generator, n_tokens) for x in given]


def prompt_name(given: str | torch.Tensor) -> str:
    """Name a prompt in a dataset: its text, or its token ids.

    Args:
        given: a text or a tensor.

    Returns:
        a short string.
    """
    if isinstance(given, str):
        return given
    return f"ids {given[0].tolist()}" if given.ndim == 2 else f"image {tuple(given.shape)}"


def traces(model: Model, given: Sequence[str | torch.Tensor]) -> Iterator[Trace]:
    """Trace prompts one after the other, with a progress bar on a terminal and none in a log.

    Args:
        model: the model.
        given: texts or tensors.

    Yields:
        one trace per prompt.
    """
    for prompt in tqdm(given, desc=f"{model.name}: prompts", unit="prompt", disable=None, leave=False):
        yield trace(model, prompt)


def check_k(model: Model, k: int) -> None:
    """Refuse a number of singular vectors that a model's Jacobians do not have, before anything is measured.

    Args:
        model: the model.
        k: number of singular vectors.

    Raises:
        ParameterError: if `k` is not from 1 to the width of the model.
    """
    if not 1 <= k <= model.d_model:
        raise ParameterError(f"k is {k}; {model.name} has width {model.d_model}, so k is from 1 to {model.d_model}")


def depth_jacobians(traced: Trace, token: int, boundary: str = "block") -> torch.Tensor:
    """Form the Jacobian J_tt of every block at one token.

    Args:
        traced: a trace.
        token: the position t; -1 is the last.
        boundary: see `Trace.jacobian`.

    Returns:
        the Jacobians, shape `(L, d, d)`.
    """
    position = traced.position(token)
    # Blocks that are read from disk take long enough to be counted.
    silent = None if traced.model.offloaded else True
    blocks = tqdm(range(traced.n_blocks), desc=traced.model.name, unit="block", disable=silent, leave=False)
    return torch.cat([block_jacobians(traced, block, [(position, position)], boundary) for block in blocks])
