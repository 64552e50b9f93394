"""What every measurement shares: prompts in any form, progress, Jacobians stacked over blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from coupling_lib.blocks import random_input
from coupling_lib.errors import ParameterError
from coupling_lib.jacobian import block_jacobians
from coupling_lib.models import Model
from coupling_lib.tracing import Trace, trace

Measure = TypeVar("Measure", bound=Callable[..., Any])


def measurement(version: int) -> Callable[[Measure], Measure]:
    """Give a measure a version, by which the store knows whether its old numbers still hold.

    Without one it counts as version 1 and is known by its code as well: a change anywhere in it or in the library
    makes it measure anew. With one, its author says when numbers change: by the next whole number.

    Args:
        version: a whole number from 1.

    Returns:
        a decorator, which leaves the function as it is.

    Raises:
        ParameterError: if the version is something else.

    Example:
        >>> @measurement(version=2)
        ... def measure_nothing(model, prompts): ...
        >>> measure_nothing.version
        2
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ParameterError(f"version is {version!r}; it must be a whole number from 1")

    def mark(function: Measure) -> Measure:
        function.version = version
        return function

    return mark


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


def inputs_for(
    model: Model, prompts: Iterable[Any], seed: int = 0, n_tokens: int = 16, longest: int | None = None
) -> list[str | torch.Tensor]:
    """Give prompts in a form that a model can read.

    A model with a tokenizer reads the texts themselves. One without (random weights saved alone, a vision
    model) gets as many random inputs instead: token ids drawn uniformly, or images of standard normal noise.
    They exercise every block, and the name of each input in the dataset says what it is.

    A text that is longer than the model can read, or than `longest`, is given by its first tokens, with a warning: in
    hundreds of prompts there is often one. So `longest` bounds the memory that any prompt can take.

    Args:
        model: a model from `load_model`.
        prompts: texts, tensors, or `Prompt` objects.
        seed: seed of the random inputs.
        n_tokens: length of random token sequences.
        longest: the most tokens of a text; by default as many as the model reads.

    Returns:
        as many texts or tensors as there are prompts.

    Raises:
        ParameterError: if `longest` is not a whole number from 1.
    """
    given = prompt_inputs(prompts)
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int) or longest < 1):
        raise ParameterError(f"longest is {longest!r}; it must be a whole number of tokens from 1, or None")
    if model.tokenizer is not None:
        return _shortened(model, given, longest)
    generator = torch.Generator().manual_seed(seed)
    n_tokens = min(n_tokens, longest or n_tokens)
    return [x if isinstance(x, torch.Tensor) else random_input(model.hf, generator, n_tokens) for x in given]


def _shortened(model: Model, given: list[str | torch.Tensor], longest: int | None) -> list[str | torch.Tensor]:
    """Replace texts that are too long by the ids of their first tokens."""
    readable = getattr(model.hf.config.get_text_config(), "max_position_embeddings", None)
    limits = [limit for limit in (readable, longest) if isinstance(limit, int) and limit > 0]
    if not limits:
        return given
    fitting, cut = list(given), 0
    for number, prompt in enumerate(given):
        # A token is at least a byte of the text, so that most texts need not be counted; special tokens come on top.
        if isinstance(prompt, str) and len(prompt.encode()) + 8 > min(limits):
            ids = model.tokenizer(prompt, verbose=False)["input_ids"]
            if len(ids) > min(limits):
                fitting[number], cut = torch.tensor([ids[: min(limits)]]), cut + 1
    if cut:
        warnings.warn(
            f"{cut} of {len(given)} prompts are longer than {min(limits)} tokens and cut after so many", stacklevel=3
        )
    return fitting


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
    # A single prompt needs no bar; where it is one of a sweep, the sweep has one.
    silent = None if len(given) > 1 else True
    for prompt in tqdm(given, desc=f"{model.name}: prompts", unit="prompt", disable=silent, leave=False):
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
    J = torch.empty(
        traced.n_blocks, traced.d_model, traced.d_model, dtype=traced.dtype, device=traced.calls[0].input.device
    )
    for block in blocks:
        J[block] = block_jacobians(traced, block, [(position, position)], boundary)[0]
    return J
