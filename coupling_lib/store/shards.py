"""Which prompts of a set a sweep measures: all of them, or one shard."""

import re
from collections.abc import Sequence
from typing import Any

from coupling_lib.errors import ParameterError, shown


def parse_shard(shard: str) -> tuple[int, int]:
    """Read "i/n", the i-th of n shards, counted from 1."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard) if isinstance(shard, str) else None
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise ParameterError(f"shard is {shown(shard)}; it must be a text i/n with i from 1 to n, such as '2/3'")
    return number, count


def parts(given: Sequence[Any]) -> list[int]:
    """Number the prompts; a text that comes twice has the number of its first, or two machines would measure it."""
    first: dict[Any, int] = {}
    return [first.setdefault(x if isinstance(x, str) else place, len(first)) for place, x in enumerate(given)]


def in_shard(given: Sequence[Any], shard: str | None) -> list[tuple[int, Any]]:
    """Return the prompts of a shard, each with its place in the whole set."""
    number, count = (1, 1) if shard is None else parse_shard(shard)
    numbered = zip(enumerate(given), parts(given), strict=True)
    return [placed for placed, part in numbered if part % count == number - 1]
