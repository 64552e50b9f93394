"""Random inputs of a model's form for a probe, and lengths in its configuration, which the probe reduces.

Beyond a sliding window, or the length from which a rotary table is stretched, a family computes otherwise. A probe of
seven tokens never reaches those of a released model, and would miss a mistake beyond them.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coupling_lib.blocks.record import stack_config
from coupling_lib.errors import UnsupportedModelError

_LENGTH_SETTINGS = (
    *("sliding_window", "sliding_window_size", "window_size", "attention_window", "attention_chunk_size"),
    *("floor_scale", "log_scaling_n_floor", "original_max_position_embeddings"),
    *("index_topk", "topk_blocks", "block_topk", "index_block_size"),
)
# Of the probe's seven tokens, some are further apart than this, and some are not.
_LENGTH = 5


def random_input(hf: PreTrainedModel, generator: torch.Generator, n_tokens: int) -> Tensor:
    """Draw a valid input for a model: uniform token ids, or an image of standard normal noise."""
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
    """Return height and width of an image or a patch, which a configuration gives as one number or two."""
    return (size, size) if isinstance(size, int) else tuple(size)


@contextmanager
def shortened_lengths(hf: PreTrainedModel) -> Generator[None]:
    """Shorten a model's windows and other such lengths inside the context."""
    # Windows of a vision model belong to the image's two sides and stay as they are.
    places = _places(hf) if hf.main_input_name == "input_ids" else ()
    found = [(place, name, place.get(name)) for place in places for name in _LENGTH_SETTINGS]
    before = [each for each in found if type(each[2]) in (int, float) and each[2] > _LENGTH]
    for place, name, _ in before:
        place[name] = _LENGTH
    try:
        yield
    finally:
        for place, name, value in before:
            place[name] = value


def _places(hf: PreTrainedModel) -> list[dict[str, Any]]:
    """List the dictionaries of a model's settings: modules, their configurations, and rotary parameters."""
    places: list[dict[str, Any]] = []
    for part in hf.modules():
        config = vars(getattr(part, "config", None) or part)
        rope = config.get("rope_parameters") or {}
        places += [vars(part), config, rope, *(value for value in rope.values() if isinstance(value, dict))]
    return list({id(place): place for place in places}.values())
