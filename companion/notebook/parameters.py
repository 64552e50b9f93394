"""A notebook's parameters, checked by name before anything is loaded.

papermill injects any parameter that it is given: an undeclared name is silently ignored, `-p seed false` arrives as a
text, `-p k 1e1` as 10.0. The first code cell of every notebook therefore calls `check_parameters`, and
`choices.chosen_blocks` or `choices.check_k` as soon as the model's depth and width are known.

Declared names are checked wherever they were set. Only a name that somebody *passed* can be mistyped. papermill
writes the passed parameters into a cell of its own, which begins with "# Parameters" and runs between the cell of the
parameters and the cell that checks them. In a kernel, the names in that cell are those passed; every other variable,
whether a later cell or a researcher left it, is no parameter. Without a kernel (a plain mapping, a twin
run as a script, cells run by `exec`), all plain values of the first run count as passed; later ones do not.
"""

import ast
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from coupling_lib.blocks import weight_memory
from coupling_lib.blocks.precision import PRECISIONS
from coupling_lib.errors import ParameterError, is_whole, shown

# Words that papermill leaves as text although a boolean or no value was meant.
_WORDS = {"true", "false", "none", "null", "yes", "no"}

_CHECKED = "_parameters_were_checked"
"""Mark of a namespace without a record of its cells after its parameters were checked."""

_POSITION = "a whole number: a position from 0, or from the end if negative"
_SELECTION = "or a prompt set's name or file, with :number for a selection"


@dataclass(frozen=True)
class Rule:
    """The accepted values of a parameter."""

    expected: str
    example: str
    accepts: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.strip().lower() not in _WORDS


def _or_empty(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value == "" or accepts(value)


def _read_by(parse: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Return a function that accepts values which can be parsed."""

    def accepts(value: Any) -> bool:
        try:
            return bool(parse(value))
        except ParameterError:
            return False

    return accepts


def parse_blocks(text: str | int) -> list[int]:
    """Parse a choice of blocks."""
    blocks: list[int] = []
    parts = [str(text)] if is_whole(text) else text.split(",") if isinstance(text, str) else []
    for part in parts:
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip(), flags=re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ParameterError(refusal("blocks", text))
        # Deeper than any model; a mistyped range must not fill the memory.
        blocks += range(first - 1, min(last, first + 100_000))
    if not blocks or min(blocks) < 0 or len(set(blocks)) < len(blocks):
        raise ParameterError(refusal("blocks", text))
    return blocks


def parse_levels(text: str | float) -> tuple[float, ...]:
    """Parse a list of noise levels."""
    seen = "" if isinstance(text, bool) or not isinstance(text, str | int | float) else str(text)
    try:
        levels = sorted(float(part) for part in seen.split(","))
    except ValueError:
        levels = []
    if not levels or not all(0 < level < float("inf") for level in levels) or len(set(levels)) < len(levels):
        raise ParameterError(refusal("noise", text))
    return tuple(levels)


def parse_pair(text: str | int) -> tuple[int, int]:
    """Parse a choice of two blocks, which may be the same."""
    seen = str(text) if is_whole(text) or isinstance(text, str) else ""
    match = re.fullmatch(r"\s*(\d{1,18})\s*(?:,\s*(\d{1,18})\s*)?", seen, flags=re.ASCII)
    first, second = (int(match[1]) - 1, int(match[2] or match[1]) - 1) if match else (-1, -1)
    if min(first, second) < 0:
        raise ParameterError(refusal("pair", text))
    return first, second


RULES: dict[str, Rule] = {
    "model": Rule("an alias of data/models.csv, a Hugging Face id or a local folder", "nano-neox", _is_text),
    "precision": Rule(f"one of {', '.join(PRECISIONS)}", "float32", lambda v: v in tuple(PRECISIONS)),
    "precisions": Rule(
        f"some of {', '.join(PRECISIONS)}, separated by commas",
        "bfloat16,nf4",
        lambda v: _is_text(v) and {part.strip() for part in v.split(",")} <= set(PRECISIONS),
    ),
    "memory": Rule(
        "an amount of memory with its unit, or empty for what is free",
        "8GB",
        _or_empty(lambda v: isinstance(v, str) and _read_by(weight_memory.parse)(v)),
    ),
    "others": Rule(
        "aliases, Hugging Face ids or local folders, separated by commas, or empty", "nano-llama", _or_empty(_is_text)
    ),
    "revision": Rule(
        "a branch, tag, commit or training step as text, or empty for the newest", "step1000", _or_empty(_is_text)
    ),
    "network": Rule("trained or untrained", "untrained", lambda v: v in ("trained", "untrained")),
    "out": Rule("the path of the file to write, or empty for results/atlas", "card.json", _or_empty(_is_text)),
    "prompts": Rule(
        f"a whole number of embedded prompts from 1, {_SELECTION}", "12", lambda v: is_whole(v, 1) or _is_text(v)
    ),
    "k": Rule("a whole number from 1 to the width of the model", "10", partial(is_whole, least=1)),
    "blocks": Rule("blocks counted from 1, such as 3-10 or 1,4,9, or empty", "1-8", _or_empty(_read_by(parse_blocks))),
    "token": Rule(_POSITION, "-1", is_whole),
    "example": Rule("a text, the prompt whose matrices are drawn", "'The capital is'", _is_text),
    "pair": Rule("two blocks counted from 1, such as 9,10 or 7,7, or empty", "9,10", _or_empty(_read_by(parse_pair))),
    "tokens": Rule("a whole number of token positions from 2", "12", partial(is_whole, least=2)),
    "token_in": Rule(_POSITION, "1", is_whole),
    "token_out": Rule(_POSITION, "-1", is_whole),
    "questions": Rule(
        f"a whole number of embedded questions from 2, {_SELECTION}", "16", lambda v: is_whole(v, 2) or _is_text(v)
    ),
    "steps": Rule(
        "two or more training steps, separated by commas, or empty",
        "0,1000",
        lambda v: v == "" or (isinstance(v, str) and bool(re.fullmatch(r"\s*\d+(\s*,\s*\d+)+\s*", v))),
    ),
    "middle": Rule("a training step, or 0 for the most coupled", "4000", partial(is_whole, least=0)),
    "centres": Rule(
        "one to five blocks counted from 1, separated by commas, or empty",
        "6,16,31",
        _or_empty(_read_by(lambda value: len(parse_blocks(value)) <= 5)),
    ),
    "window": Rule(
        "an odd number of blocks from 3, or 0 to choose by depth",
        "5",
        lambda v: is_whole(v) and (v == 0 or (v > 2 and v % 2)),
    ),
    "turn": Rule(
        "a block counted from 1, 0 for no line, or -1 for where the growth of the norm changes most",
        "-1",
        partial(is_whole, least=-1),
    ),
    "fit_from": Rule("a block counted from 1, or 0 to choose by depth", "10", partial(is_whole, least=0)),
    "noise": Rule("noise levels above 0, separated by commas", "0.1,0.3,1", _read_by(parse_levels)),
    "kind": Rule("gaussian, absolute or empty", "gaussian", lambda v: v in ("", "gaussian", "absolute")),
    "draws": Rule("a whole number from 1", "4", partial(is_whole, least=1)),
    "images": Rule("a whole number of images from 2", "8", partial(is_whole, least=2)),
    "pictures": Rule(
        "digits, cifar10, a copy of CIFAR-10, a folder of pictures, or noise for random images", "digits", _is_text
    ),
    "table": Rule("the path of a grid's table, or empty for the book's", "cifar10.csv", _or_empty(_is_text)),
    "rate": Rule(
        "a rate of stochastic depth, from 0 to below 1",
        "0.3",
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1,
    ),
    "seed": Rule("a whole number from 0", "0", partial(is_whole, least=0)),
}
"""Rules of all parameters; a name means the same in every notebook."""

COMMON = ("model", "precision", "memory", "revision", "prompts", "k", "blocks", "token", "seed")
"""Parameters of a notebook about coupling across depth."""


def check_parameters(namespace: Mapping[str, Any], declared: Iterable[str] = COMMON) -> SimpleNamespace:
    """Check a notebook's parameters, their names included, and return their values."""
    declared = tuple(declared)
    for name in _given(namespace, declared):
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out."
            raise ParameterError(f"unknown parameter {name!r}; this notebook takes {', '.join(declared)}; {hint}")
    for name in declared:
        if name not in namespace:
            raise ParameterError(f"parameter {name!r} is missing; set it in the cell tagged 'parameters'")
        if not RULES[name].accepts(namespace[name]):
            raise ParameterError(refusal(name, namespace[name]))
    if isinstance(namespace, dict):
        namespace[_CHECKED] = True
    return SimpleNamespace(**{name: namespace[name] for name in declared})


def refusal(name: str, value: Any, expected: str = "", example: str = "") -> str:
    """Return one line with the refused value and the accepted ones, by default from the parameter's rule."""
    expected, example = expected or RULES[name].expected, example or RULES[name].example
    seen = f"{shown(value)} ({type(value).__name__})"
    return f"parameter {name!r} is {seen}; it must be {expected}; pass -p {name} {example}"


def _given(namespace: Mapping[str, Any], declared: tuple[str, ...]) -> list[str]:
    """Return the names passed as parameters: in a kernel, those of papermill's cell after the parameters' own cell."""
    history = namespace.get("_ih")  # IPython's record of the cells that ran, the present one included
    if not isinstance(history, list):
        if _CHECKED in namespace:
            return []
        return [name for name, value in namespace.items() if not name.startswith("_") and _is_plain(value)]
    for cell in reversed(history):
        names = _assigned(cell)
        if cell.startswith("# Parameters\n"):
            return names
        if set(declared) <= set(names):
            break
    return []


def _assigned(cell: str) -> list[str]:
    """Return the variables that a cell sets at its top level."""
    try:
        statements = ast.parse(cell).body
    except SyntaxError:  # such a cell sets nothing
        return []
    targets = [target for part in statements if isinstance(part, ast.Assign) for target in part.targets]
    targets += [part.target for part in statements if isinstance(part, ast.AnnAssign) and part.value is not None]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_plain(value: Any) -> bool:
    """Return whether papermill can inject a value."""
    if isinstance(value, Mapping | list | tuple):
        return all(map(_is_plain, value.values() if isinstance(value, Mapping) else value))
    return value is None or isinstance(value, str | int | float)
