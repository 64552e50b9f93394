"""What a probe takes from a model's configuration: random inputs of its form, and lengths, which are reduced.

Beyond a window or the length from which a rotary table is stretched a family computes otherwise, and no prompt of seven
tokens comes near those of a released model: a mistake beyond would not be seen.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coupling_lib.blocks.record import stack_config
from coupling_lib.errors import UnsupportedModelError

_NAMES = (
    *("sliding_window", "sliding_window_size", "window_size", "attention_window", "attention_chunk_size"),
    *("floor_scale", "log_scaling_n_floor", "original_max_position_embeddings"),
    *("index_topk", "topk_blocks", "block_topk", "index_block_size"),
)
# Among seven tokens, some are further apart, and some are not.
_LENGTH = 5


def random_input(hf: PreTrainedModel, generator: torch.Generator, n_tokens: int) -> Tensor:
    """Make a valid input for a model: uniform token ids, or an image of standard normal noise."""
    if hf.main_input_name == "pixel_values":
        config = stack_config(hf)
        if not hasattr(config, "image_size"):
            raise UnsupportedModelError(
                f"{type(hf).__name__} does not say how large its images are; take a vision transformer, whose "
                "configuration has an image_size"
            )
        shape = (1, getattr(config, "num_channels", 3), *sides(config.image_size))
        return torch.randn(shape, generator=generator).to(hf.device, hf.dtype)
    if hf.main_input_name != "input_ids":
        raise UnsupportedModelError(
            f"{type(hf).__name__} reads {hf.main_input_name}; what reads input_ids or pixel_values can be measured"
        )
    return torch.randint(0, stack_config(hf).vocab_size, (1, n_tokens), generator=generator).to(hf.device)


def sides(size: int | Sequence[int]) -> tuple[int, ...]:
    """Return height and width of an image or a patch, of which a configuration says one number or both."""
    return (size, size) if isinstance(size, int) else tuple(size)


@contextmanager
def lengths(hf: PreTrainedModel) -> Generator[None]:
    """Shorten a model's windows and other such lengths inside the context."""
    # Windows of a picture are of its two sides, which are what they are.
    places = _places(hf) if hf.main_input_name == "input_ids" else ()
    found = [(place, name, place.get(name)) for place in places for name in _NAMES]
    before = [each for each in found if type(each[2]) in (int, float) and each[2] > _LENGTH]
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
