"""Resolution of a notebook's parameters: blocks of a model, a pair of blocks, prompts.

A parameter is a number or a short text that papermill can inject, checked by `parameters`. Here it is compared with the
loaded model, and replaced by a default where it leaves the choice open.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from companion.figures.take import MOST_BLOCKS, middle_blocks
from companion.notebook.parameters import parse_blocks, parse_pair, refusal
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import Prompt, load_prompts


class Sized(Protocol):
    """Properties of a model on which choices depend."""

    name: str
    n_blocks: int
    d_model: int


def check_k(model: Sized, k: int) -> None:
    """Refuse more singular vectors than a model has."""
    if k > model.d_model:
        expected = f"a whole number from 1 to {model.d_model} (the width of {model.name})"
        raise ParameterError(refusal("k", k, expected, str(min(10, model.d_model))))


def chosen_blocks(model: Sized, blocks: str | int, k: int) -> list[int]:
    """Check parameters against the model, and return the chosen blocks: by default up to eight in the middle."""
    check_k(model, k)
    if blocks == "":
        return middle_blocks(model.n_blocks)
    chosen = parse_blocks(blocks)
    if deeper := [block for block in chosen if block >= model.n_blocks]:
        depth = f"blocks from 1 to {model.n_blocks} (the depth of {model.name})"
        expected = f"{depth}, and there is no block {deeper[0] + 1}"
        raise ParameterError(refusal("blocks", blocks, expected, f"1-{min(MOST_BLOCKS, model.n_blocks)}"))
    return chosen


def spread_blocks(model: Sized, blocks: str | int, k: int) -> list[int]:
    """Check parameters against the model, and return the chosen blocks: by default four over the whole depth."""
    chosen = chosen_blocks(model, blocks, k)
    spread = sorted({round(place * (model.n_blocks - 1) / 3) for place in range(4)})
    return spread if blocks == "" else chosen


def chosen_prompts(given: int | str, seed: int) -> list[Prompt]:
    """Return the prompts that the parameter `prompts` refers to."""
    if isinstance(given, int):
        return load_prompts(n=given, seed=seed)
    name, _, count = given.rpartition(":")
    if name and count.isdecimal() and len(count) <= 18:
        if int(count) < 1:
            raise ParameterError(refusal("prompts", given))
        return load_prompts(name, n=int(count), seed=seed)
    return load_prompts(given, seed=seed)


def chosen_pair(model: Sized, given: str | int) -> tuple[int, int]:
    """Return the two blocks that the parameter `pair` refers to."""
    n_blocks = model.n_blocks
    if given == "":
        first = max(1, 3 * n_blocks // 4) - 1
        return first, min(first + 1, n_blocks - 1)
    pair = parse_pair(given)
    if max(pair) >= n_blocks:
        expected = f"two blocks from 1 to {n_blocks} (the depth of {model.name}), and there is no block {max(pair) + 1}"
        raise ParameterError(refusal("pair", given, expected, f"1,{n_blocks}"))
    return pair


def chosen_middle(given: int, steps: Sequence[int]) -> int | None:
    """Return the step of training that the parameter `middle` refers to; None for the most coupled one."""
    between = tuple(steps)[1:-1]
    if given == 0:
        return None
    if given not in between:
        some = f"one of {', '.join(map(str, between))}" if between else "0, as no step lies between the first and last"
        expected = f"{some} (steps that are measured between the first and the last)" if between else some
        raise ParameterError(refusal("middle", given, expected, str(between[0] if between else 0)))
    return given


def chosen_centres(given: str | int, known: Sequence[int], name: str) -> list[int]:
    """Return the middle blocks of windows, from 0, that the parameter `centres` refers to; none for the usual three."""
    chosen = [] if given == "" else parse_blocks(given)
    if outside := [block for block in chosen if block not in known]:
        first, last = min(known) + 1, max(known) + 1
        expected = (
            f"blocks from {first} to {last}, about which a window fits into {name}, "
            f"and block {outside[0] + 1} is none of them"
        )
        raise ParameterError(refusal("centres", given, expected, str(first)))
    return chosen


def chosen_turn(given: int, depths: Mapping[str, int]) -> int:
    """Return the block of every model that `turn` marks: 0 for none, -1 to find one, which takes four blocks."""
    for name, n_blocks in depths.items():
        if given > n_blocks or (given < 0 and n_blocks < 4):
            expected = f"a block from 1 to {n_blocks} (the depth of {name}), or 0 for no line"
            raise ParameterError(refusal("turn", given, expected, "0"))
    return given


def chosen_questions(given: int | str, seed: int) -> list[Prompt]:
    """Return the prompts that `questions` refers to: those with counted reasoning steps or a rating."""
    numbered = isinstance(given, int)
    wanted = max(2, given) if numbered else 2
    found = chosen_prompts("embedded" if numbered else given, seed)
    counted = [prompt for prompt in found if prompt.steps is not None or prompt.rating is not None]
    if len(counted) < wanted:
        expected = f"at least {wanted} prompts with counted reasoning steps or a rating, and there are {len(counted)}"
        raise ParameterError(refusal("questions", given, expected))
    return counted[:wanted] if numbered else counted
