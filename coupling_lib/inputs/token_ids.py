"""Faults of token ids: padding at an edge, a beginning-of-text token twice."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

from coupling_lib.errors import ParameterError


@functools.lru_cache(maxsize=4)
def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids that a tokenizer puts before and after each text."""
    try:
        plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
        whole = list(tokenizer("a")["input_ids"])
    except (TypeError, ValueError, KeyError):  # no tokenizer of transformers: unknown
        return [], []
    starts = range(len(whole) - len(plain) + 1)
    found = next((at for at in starts if plain and whole[at : at + len(plain)] == plain), None)
    return ([], []) if found is None else (whole[:found], whole[found + len(plain) :])


def check(ids: Sequence[int], tokenizer: Any, config: Any, name: str) -> None:
    """Refuse padding at an edge of one input, and warn of a first token that is there twice."""
    first = special_tokens(tokenizer)[0] if tokenizer is not None else []
    _refuse_padding(ids, tokenizer, config, first)
    if first and list(ids[: 2 * len(first)]) == 2 * first:
        warnings.warn(
            f"{name}: the input begins with {tokenizer.decode(first)!r} twice, as where a chat template wrote it and "
            "a tokenizer added another; give tokenizer(text, add_special_tokens=False, return_tensors='pt').input_ids",
            stacklevel=4,
        )


def last_token_warning(ids: Sequence[int], tokenizer: Any, name: str) -> str:
    """Return a warning that the last token is not of the text but of the tokenizer; empty where it is of the text."""
    last = special_tokens(tokenizer)[1] if tokenizer is not None else []
    if not last or len(ids) <= len(last) or list(ids[-len(last) :]) != last:
        return ""
    return (
        f"{name}: the last token is {tokenizer.decode(last[-1:])!r}, which its tokenizer puts behind each text; "
        f"the last of the text itself is token=-{len(last) + 1}"
    )


def _refuse_padding(ids: Sequence[int], tokenizer: Any, config: Any, first: list[int]) -> None:
    """Refuse ids that begin or end with padding: no mask is passed to the model, which would read it as text."""
    source = config if tokenizer is None else tokenizer
    named = {role: getattr(source, f"{role}_token_id", None) for role in ("bos", "eos", "unk", "cls", "sep", "mask")}
    pad = getattr(source, "pad_token_id", None)
    if pad is None and tokenizer is not None:
        pad = named["eos"]  # the usual choice for a tokenizer without a padding token
    if not isinstance(pad, int) or all(token == pad for token in ids):
        return
    # A single such token is text where it also separates texts, or without a tokenizer, as a configuration may name any
    # id; two at the beginning are, where a tokenizer and a template add one each.
    single = int(tokenizer is None or pad in named.values())
    own = pad in first
    left, right = _leading(ids, pad), _leading(ids[::-1], pad)
    left = left - own if left > single + own else 0
    right = right if right > single else 0
    if not left and not right:
        return
    where = " and ".join(f"{n} at its {end}" for n, end in ((left, "beginning"), (right, "end")) if n)
    raise ParameterError(
        f"the input holds padding (id {pad}), {where}, which the model would read as text, as no mask is passed on; "
        f"give the text alone: input_ids=ids[:, {left or ''}:{-right if right else ''}]"
    )


def _leading(ids: Sequence[int], token: int) -> int:
    """Return how often a token stands at the beginning."""
    return next((n for n, other in enumerate(ids) if other != token), len(ids))
