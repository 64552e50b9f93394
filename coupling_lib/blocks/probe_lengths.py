"""Lengths beyond which a family computes otherwise (windows, rotary tables), reduced to those of a short probe."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

_NAMES = (
    *("sliding_window", "sliding_window_size", "window_size", "attention_window", "attention_chunk_size"),
    *("floor_scale", "log_scaling_n_floor", "original_max_position_embeddings"),
    *("index_topk", "topk_blocks", "block_topk", "index_block_size"),
)
# Among seven tokens, some are further apart, and some are not.
_LENGTH = 5


@contextmanager
def lengths(hf: PreTrainedModel) -> Generator[None]:
    """Shorten a model's windows and other such lengths inside the context."""
    # Windows of a picture are of its two sides, which are what they are.
    places = _places(hf) if hf.main_input_name == "input_ids" else ()
    before = [(place, name, place[name]) for place in places for name in _NAMES if _is_length(place.get(name))]
    for place, name, _ in before:
        place[name] = _LENGTH
    try:
        yield
    finally:
        for place, name, value in before:
            place[name] = value


def _places(hf: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Return what holds a model's settings: its modules, their configurations, and those of rotary tables."""
    seen: set[int] = set()
    for part in hf.modules():
        config = vars(getattr(part, "config", None) or part)
        rope = config.get("rope_parameters") or {}
        for place in (vars(part), config, *([rope, *(v for v in rope.values() if isinstance(v, dict))])):
            if id(place) not in seen:
                seen.add(id(place))
                yield place


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > _LENGTH
