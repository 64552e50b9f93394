"""What a notebook's parameters stand for: which blocks of a model, which pair, which prompts.

A parameter is a number or a short text that papermill can inject, checked by `parameters`. Here it is set against the
model that was loaded, and where it leaves the choice open, one is made.
"""

from __future__ import annotations

from types import SimpleNamespace

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.parameters import RULES, parse_blocks, parse_pair, refusal
from coupling_lib.inputs.prompts import Prompt, load_prompts

DEFAULT_BLOCKS = 8
"""How many blocks are drawn as matrices when none are chosen: as many as in the paper's figure 3."""


def check_against_model(parameters: SimpleNamespace, n_blocks: int, d_model: int, name: str) -> list[int]:
    """Check what depends on the model, and say which blocks are meant.

    Args:
        parameters: What `check_parameters` returned.
        n_blocks: Number of blocks of the model.
        d_model: Its width.
        name: What to call it.

    Returns:
        The chosen blocks, counted from 0; without a choice those in the middle, at most `DEFAULT_BLOCKS`.

    Raises:
        ParameterError: If `k` exceeds the width or a block does not exist.

    Examples:
        >>> check_against_model(SimpleNamespace(k=10, blocks="1-3,5"), n_blocks=12, d_model=96, name="nano-neox")
        [0, 1, 2, 4]
    """
    k, blocks = getattr(parameters, "k", 1), getattr(parameters, "blocks", "")
    if k > d_model:
        expected = f"a whole number from 1 to {d_model} (the width of {name})"
        raise ParameterError(refusal("k", k, expected, str(min(10, d_model))))
    if blocks == "":
        count = min(DEFAULT_BLOCKS, n_blocks)
        first = (n_blocks - count) // 2
        return list(range(first, first + count))
    chosen = parse_blocks(blocks)
    for block in chosen:
        if block >= n_blocks:
            expected = f"blocks from 1 to {n_blocks} (the depth of {name}), and there is no block {block + 1}"
            raise ParameterError(refusal("blocks", blocks, expected, f"1-{min(DEFAULT_BLOCKS, n_blocks)}"))
    return chosen


def spread_blocks(parameters: SimpleNamespace, n_blocks: int, d_model: int, name: str, count: int = 4) -> list[int]:
    """Check what depends on the model, and say which blocks stand for the whole depth.

    Args:
        parameters: What `check_parameters` returned.
        n_blocks: Number of blocks of the model.
        d_model: Its width.
        name: What to call it.
        count: How many to take where none are chosen.

    Returns:
        The chosen blocks, counted from 0; without a choice `count` of them from the first to the last, evenly spread.

    Raises:
        ParameterError: If `k` exceeds the width or a block does not exist.

    Examples:
        >>> spread_blocks(SimpleNamespace(blocks=""), n_blocks=12, d_model=96, name="nano-neox")
        [0, 4, 7, 11]
    """
    chosen = check_against_model(parameters, n_blocks, d_model, name)
    if getattr(parameters, "blocks", ""):
        return chosen
    return sorted({round(place * (n_blocks - 1) / (count - 1)) for place in range(count)})


def chosen_prompts(parameters: SimpleNamespace) -> list[Prompt]:
    """Read the prompts that the parameter `prompts` stands for.

    Args:
        parameters: What `check_parameters` returned.

    Returns:
        So many embedded prompts if it is a number; else the named set or file, or with ":number" a selection from
        it. Selections are balanced over styles and drawn with the parameter `seed`.

    Raises:
        ParameterError: If there is no such set or file, or it has fewer prompts.

    Examples:
        >>> [prompt.dataset for prompt in chosen_prompts(SimpleNamespace(prompts="embedded:2", seed=0))]
        ['arc-style', 'gsm8k-style']
    """
    given = parameters.prompts
    if isinstance(given, int):
        return load_prompts(n=given, seed=parameters.seed)
    name, _, count = given.rpartition(":")
    if name and count.isdecimal():
        if int(count) < 1:
            raise ParameterError(refusal("prompts", given, RULES["prompts"].expected))
        return load_prompts(name, n=int(count), seed=parameters.seed)
    return load_prompts(given, seed=parameters.seed)


def chosen_pair(parameters: SimpleNamespace, n_blocks: int, name: str) -> tuple[int, int]:
    """Say which two blocks the parameter `pair` stands for.

    Args:
        parameters: What `check_parameters` returned.
        n_blocks: Number of blocks of the model.
        name: What to call it.

    Returns:
        The block whose Jacobian is taken and the block whose singular vectors are used, counted from 0; without a
        choice the one at three quarters of the depth and the next.

    Raises:
        ParameterError: If a block does not exist.

    Examples:
        >>> chosen_pair(SimpleNamespace(pair=""), n_blocks=12, name="nano-neox")
        (8, 9)
    """
    if parameters.pair == "":
        first = max(1, 3 * n_blocks // 4) - 1
        return first, min(first + 1, n_blocks - 1)
    pair = parse_pair(parameters.pair)
    if max(pair) >= n_blocks:
        expected = f"two blocks from 1 to {n_blocks} (the depth of {name}), and there is no block {max(pair) + 1}"
        raise ParameterError(refusal("pair", parameters.pair, expected, f"1,{n_blocks}"))
    return pair


def chosen_questions(parameters: SimpleNamespace) -> list[Prompt]:
    """Read the prompts that the parameter `questions` stands for: those whose reasoning steps are counted.

    Args:
        parameters: What `check_parameters` returned.

    Returns:
        So many embedded questions if it is a number; else those of the named set or file, or of a selection from it.

    Raises:
        ParameterError: If fewer than two of the prompts, or fewer than asked for, have counted steps.

    Examples:
        >>> [prompt.dataset for prompt in chosen_questions(SimpleNamespace(questions=2, seed=0))]
        ['gsm8k-style', 'gsm8k-style']
    """
    given = parameters.questions
    wanted = max(2, given) if isinstance(given, int) else 2
    named = "embedded" if isinstance(given, int) else given
    found = chosen_prompts(SimpleNamespace(prompts=named, seed=parameters.seed))
    counted = [prompt for prompt in found if prompt.steps is not None]
    if len(counted) < wanted:
        expected = f"at least {wanted} prompts with counted reasoning steps, and there are {len(counted)}"
        raise ParameterError(refusal("questions", given, expected))
    return counted[:wanted] if isinstance(given, int) else counted
