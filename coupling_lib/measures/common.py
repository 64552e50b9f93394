"""What every measurement shares: prompts in any form, progress, Jacobians stacked over blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from coupling_lib.blocks import random_input
from coupling_lib.derivatives import prompts_jacobians
from coupling_lib.errors import ParameterError
from coupling_lib.heap import give_back
from coupling_lib.models import Model
from coupling_lib.precision import arithmetic
from coupling_lib.tracing import Trace, trace

Measure = TypeVar("Measure", bound=Callable[..., Any])

# What is measured together has so many prompts at most, Jacobians of so many bytes, so many tokens with padding.
_MOST_TOGETHER, _BYTES_TOGETHER, _TOKENS_TOGETHER = 16, 2**25, 1024


def measurement(version: int) -> Callable[[Measure], Measure]:
    """Give a measure a version, by which the store knows whether its old numbers still hold.

    This is the rule, and the only place that states it:

    - **Raise the version by 1** when a number that the measure returns changes by more than rounding for the same
      model, prompt and settings, or when what it returns is called, shaped or defined otherwise. It does not matter
      where the cause lies: a changed metric, surrogate or Jacobian raises the version of every measure it enters.
    - **Leave it** when docstrings, comments, names inside, speed or memory change: what was measured is read back.
      The weights, the prompt with its tokens and the settings are in the store's key by themselves (see `identity`).
    - Every measure of this library that is handed to `sweep` or `stream` has a version. `tests/measures/test_versions`
      keeps a few numbers of each beside it, and fails when they change and the version does not.

    A measure of one's own may go without. It then counts as version 1 and is known by the text of the file that it
    stands in, or in a notebook by its own text: editing that measures anew. What it calls elsewhere, this library
    included, is not looked at, so after an update that matters give it a version, or raise it.

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


def batched(function: Measure) -> Measure:
    """Mark a measure that takes less time for several prompts at once than for one after the other.

    Each variable of its data set with a prompt dimension holds, up to rounding, what it holds for that prompt alone.

    Args:
        function: the measure.

    Returns:
        the measure, which is left as it is; `sweep` gives it `prompts_together` prompts at a time.
    """
    function.batched = True
    return function


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
    # What is measured in one go needs no bar; where it is a part of a sweep, the sweep has one.
    silent = None if len(given) > prompts_together(model) else True
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


def prompts_together(model: Model) -> int:
    """Say how many prompts are measured together, so that short ones do not leave the hardware idle.

    Wide models keep it busy with one. So it is as many as have Jacobians of all blocks within 32 MB, at most 16.

    Args:
        model: the model.

    Returns:
        the number, from 1.

    Example:
        >>> import coupling_lib as cl
        >>> prompts_together(cl.load_model("nano-neox"))
        16
    """
    each = model.n_blocks * model.d_model**2 * arithmetic(model.hf).itemsize
    return max(1, min(_MOST_TOGETHER, _BYTES_TOGETHER // each))


def traced_jacobians(
    model: Model, given: Sequence[str | torch.Tensor], token: int, boundary: str = "block"
) -> Iterator[tuple[Trace, torch.Tensor]]:
    """Trace prompts and form the Jacobian J_tt of every block at one token, for several short prompts at a time.

    Args:
        model: the model.
        given: texts or tensors.
        token: the position t in each; -1 is the last.
        boundary: see `Trace.jacobian`.

    Yields:
        for each prompt its trace and the Jacobians, shape `(L, d, d)`.
    """
    for group in _groups(model, given):
        J = _jacobians(group, token, boundary)
        for number in range(len(J)):
            yield group.pop(0), J[number]


def _groups(model: Model, given: Sequence[str | torch.Tensor]) -> Iterator[list[Trace]]:
    """Trace prompts, and give as many at a time as are measured together, in lists that are the caller's to empty."""
    waiting: list[Trace] = []
    most = prompts_together(model)
    for traced in traces(model, given):
        longest = max([traced.n_tokens, *(other.n_tokens for other in waiting)])
        if waiting and (len(waiting) == most or longest * (len(waiting) + 1) > _TOKENS_TOGETHER):
            yield waiting
            waiting = []
        waiting.append(traced)
        del traced  # the next step of the loop would hold it until after its own forward pass
    yield waiting


def jacobians_by_prompt(
    model: Model, given: Sequence[str | torch.Tensor], token: int, boundary: str = "block"
) -> Iterator[torch.Tensor]:
    """Form what `traced_jacobians` does, for those who need no trace: its memory goes as the Jacobians come.

    Args:
        model: the model.
        given: texts or tensors.
        token: the position t in each; -1 is the last.
        boundary: see `Trace.jacobian`.

    Yields:
        for each prompt the Jacobians, shape `(L, d, d)`.
    """
    for group in _groups(model, given):
        J = _jacobians(group, token, boundary, forget=True)
        group.clear()
        yield from J


def depth_jacobians(traced: Trace, token: int, boundary: str = "block") -> torch.Tensor:
    """Form the Jacobian J_tt of every block at one token.

    Args:
        traced: a trace.
        token: the position t; -1 is the last.
        boundary: see `Trace.jacobian`.

    Returns:
        the Jacobians, shape `(L, d, d)`.
    """
    return _jacobians([traced], token, boundary)[0]


def spent_jacobians(traced: Trace, token: int, boundary: str = "block") -> torch.Tensor:
    """Form what `depth_jacobians` does, and let the trace forget each block whose Jacobian is there.

    Args:
        traced: a trace, of no use afterwards.
        token: the position t; -1 is the last.
        boundary: see `Trace.jacobian`.

    Returns:
        the Jacobians, shape `(L, d, d)`.
    """
    return _jacobians([traced], token, boundary, forget=True)[0]


def _jacobians(together: Sequence[Trace], token: int, boundary: str, forget: bool = False) -> torch.Tensor:
    """Form the Jacobians of every block in several prompts, shape `(prompts, L, d, d)`."""
    first = together[0]
    pairs = [(traced.position(token),) * 2 for traced in together]
    # Blocks that are read from disk take long enough to be counted.
    silent = None if first.model.offloaded else True
    blocks = tqdm(range(first.n_blocks), desc=first.model.name, unit="block", disable=silent, leave=False)
    shape = (len(together), first.n_blocks, first.d_model, first.d_model)
    J = torch.empty(shape, dtype=first.dtype, device=first.device)
    for block in blocks:
        prompts_jacobians(together, block, pairs, boundary, out=J[:, block])
        if forget:
            for traced in together:
                traced.forget(block)
            # Memory that is given back has to be fetched again, which takes a tenth of a block's time.
            if block % 2 or block == first.n_blocks - 1:
                give_back(J.nbytes)
    return J
