"""What a notebook's parameters stand for: which blocks of a model, which pair, which prompts.

A parameter is a number or a short text that papermill can inject, checked by `parameters`. Here it is set against the
model that was loaded, and where it leaves the choice open, one is made.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from companion.notebook.parameters import parse_blocks, parse_pair, refusal
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import Prompt, load_prompts

DEFAULT_BLOCKS = 8
"""How many blocks are drawn as matrices when none are chosen: as many as in the paper's figure 3."""


def check_against_model(parameters: SimpleNamespace, n_blocks: int, d_model: int, name: str) -> list[int]:
    """Check what depends on the model, and say which blocks are meant."""
    k, blocks = getattr(parameters, "k", 1), getattr(parameters, "blocks", "")
    if k > d_model:
        expected = f"a whole number from 1 to {d_model} (the width of {name})"
        raise ParameterError(refusal("k", k, expected, str(min(10, d_model))))
    if blocks == "":
        count = min(DEFAULT_BLOCKS, n_blocks)
        first = (n_blocks - count) // 2
        return list(range(first, first + count))
    chosen = parse_blocks(blocks)
    if deeper := [block for block in chosen if block >= n_blocks]:
        expected = f"blocks from 1 to {n_blocks} (the depth of {name}), and there is no block {deeper[0] + 1}"
        raise ParameterError(refusal("blocks", blocks, expected, f"1-{min(DEFAULT_BLOCKS, n_blocks)}"))
    return chosen


def spread_blocks(parameters: SimpleNamespace, n_blocks: int, d_model: int, name: str) -> list[int]:
    """Check what depends on the model, and say which blocks stand for the whole depth: four where none are chosen."""
    chosen = check_against_model(parameters, n_blocks, d_model, name)
    spread = sorted({round(place * (n_blocks - 1) / 3) for place in range(4)})
    return chosen if getattr(parameters, "blocks", "") else spread


def chosen_prompts(parameters: SimpleNamespace) -> list[Prompt]:
    """Read the prompts that the parameter `prompts` stands for."""
    given = parameters.prompts
    if isinstance(given, int):
        return load_prompts(n=given, seed=parameters.seed)
    name, _, count = given.rpartition(":")
    if name and count.isdecimal() and len(count) <= 18:
        if int(count) < 1:
            raise ParameterError(refusal("prompts", given))
        return load_prompts(name, n=int(count), seed=parameters.seed)
    return load_prompts(given, seed=parameters.seed)


def chosen_pair(parameters: SimpleNamespace, n_blocks: int, name: str) -> tuple[int, int]:
    """Say which two blocks the parameter `pair` stands for."""
    if parameters.pair == "":
        first = max(1, 3 * n_blocks // 4) - 1
        return first, min(first + 1, n_blocks - 1)
    pair = parse_pair(parameters.pair)
    if max(pair) >= n_blocks:
        expected = f"two blocks from 1 to {n_blocks} (the depth of {name}), and there is no block {max(pair) + 1}"
        raise ParameterError(refusal("pair", parameters.pair, expected, f"1,{n_blocks}"))
    return pair


def chosen_middle(parameters: SimpleNamespace, steps: Sequence[int]) -> int | None:
    """Say which step of training the parameter `middle` stands for; None for the most coupled one."""
    between = tuple(steps)[1:-1]
    if parameters.middle == 0:
        return None
    if parameters.middle not in between:
        some = f"one of {', '.join(map(str, between))}" if between else "0, as no step lies between the first and last"
        expected = f"{some} (steps that are measured between the first and the last)" if between else some
        raise ParameterError(refusal("middle", parameters.middle, expected, str(between[0] if between else 0)))
    return parameters.middle


def chosen_centres(parameters: SimpleNamespace, centres: Sequence[int], name: str) -> list[int]:
    """Say which middle blocks of windows, from 0, the parameter `centres` stands for; none for the usual three."""
    chosen = [] if parameters.centres == "" else parse_blocks(parameters.centres)
    if outside := [block for block in chosen if block not in centres]:
        first, last = min(centres) + 1, max(centres) + 1
        expected = (
            f"blocks from {first} to {last}, about which a window fits into {name}, "
            f"and block {outside[0] + 1} is none of them"
        )
        raise ParameterError(refusal("centres", parameters.centres, expected, str(first)))
    return chosen


def chosen_turn(parameters: SimpleNamespace, depths: Mapping[str, int]) -> int:
    """Say which block of every model `turn` marks: 0 for none, -1 for one that is found, which takes four blocks."""
    for name, n_blocks in depths.items():
        if parameters.turn > n_blocks or (parameters.turn < 0 and n_blocks < 4):
            expected = f"a block from 1 to {n_blocks} (the depth of {name}), or 0 for no line"
            raise ParameterError(refusal("turn", parameters.turn, expected, "0"))
    return parameters.turn


def chosen_questions(parameters: SimpleNamespace) -> list[Prompt]:
    """Read the prompts that the parameter `questions` stands for: those with counted reasoning steps or a rating."""
    given = parameters.questions
    wanted = max(2, given) if isinstance(given, int) else 2
    named = "embedded" if isinstance(given, int) else given
    found = chosen_prompts(SimpleNamespace(prompts=named, seed=parameters.seed))
    counted = [prompt for prompt in found if prompt.steps is not None or prompt.rating is not None]
    if len(counted) < wanted:
        expected = f"at least {wanted} prompts with counted reasoning steps or a rating, and there are {len(counted)}"
        raise ParameterError(refusal("questions", given, expected))
    return counted[:wanted] if isinstance(given, int) else counted
