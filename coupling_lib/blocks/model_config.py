"""Random inputs of the form that a model's configuration says."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coupling_lib.blocks.record import stack_config
from coupling_lib.errors import UnsupportedModelError


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
