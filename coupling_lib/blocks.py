"""Finding a model's blocks, and recording how each is called: the one place that touches nnsight.

A transformer is a list of blocks that read and write one residual stream. Nothing here knows a family by
name: the blocks are the list of modules as long as the configuration says the model is deep, one nnsight
trace records what each is called with and what it returns, and `validate` refuses, at load, a model whose
blocks do not behave as the definitions of the paper need.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from nnsight import NNsight
from torch import nn
from transformers import Cache, PreTrainedModel

from coupling_lib.errors import UnsupportedModelError


@dataclass(frozen=True, eq=False)
class Blocks:
    """Where a model keeps its transformer blocks.

    Args:
        path: dotted name of the list of blocks, e.g. `"model.layers"`.
        modules: the blocks, in order of depth.
    """

    path: str
    modules: nn.ModuleList

    def __len__(self) -> int:
        """Give the number of blocks L."""
        return len(self.modules)


@dataclass(frozen=True, eq=False)
class BlockCall:
    """One call of one block, as the model made it.

    Args:
        input: the residual stream that enters, shape `(1, n, d)`.
        output: the residual stream that leaves, shape `(1, n, d)`.
        args: the positional arguments; `None` stands where the residual stream goes.
        kwargs: the keyword arguments, likewise.
    """

    input: torch.Tensor
    output: torch.Tensor
    args: tuple
    kwargs: dict[str, Any]

    def replay(self, block: nn.Module, stream: torch.Tensor) -> torch.Tensor:
        """Call a block as the model did, on another residual stream.

        Args:
            block: the block, or a dense copy of it.
            stream: the residual stream in its place, shape `(1, n, d)`.

        Returns:
            the residual stream that leaves, shape `(1, n, d)`, in the dtype of `stream`.
        """

        def place(value: Any) -> Any:
            return stream if value is _STREAM else _as_dtype(value, stream.dtype)

        returned = block(*(place(v) for v in self.args), **{name: place(v) for name, v in self.kwargs.items()})
        return residual_stream(returned, stream.shape)


class _Stream:
    """Marks the argument that is the residual stream."""


_STREAM = _Stream()


def _as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Cast the floating-point tensors of an argument (masks, rotary tables), leaving the rest as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple | list):
        return type(value)(_as_dtype(part, dtype) for part in value)
    if isinstance(value, Mapping) and not isinstance(value, Cache):
        return {name: _as_dtype(part, dtype) for name, part in value.items()}
    return value


def residual_stream(returned: Any, shape: torch.Size) -> torch.Tensor:
    """Take the residual stream out of what a block returns: a bare tensor or a tuple that starts with it.

    Indexing a bare tensor with `[0]` would silently take batch element 0, so the shape is checked.

    Args:
        returned: what the block returned.
        shape: the shape of the stream that entered.

    Returns:
        the stream that leaves.

    Raises:
        UnsupportedModelError: if no tensor of that shape is where it should be.
    """
    stream = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(stream, torch.Tensor) or stream.shape != shape:
        seen = tuple(stream.shape) if isinstance(stream, torch.Tensor) else type(stream).__name__
        raise UnsupportedModelError(f"a block returned {seen}; a residual stream of shape {tuple(shape)} was expected")
    return stream


def find_blocks(hf: PreTrainedModel) -> Blocks:
    """Find the list of transformer blocks of a model, whatever its family calls it.

    Args:
        hf: a Hugging Face model.

    Returns:
        the blocks: the outermost list of modules with as many entries as the configuration has layers.

    Raises:
        UnsupportedModelError: if there is no such list.
    """
    lists = [(name, module) for name, module in hf.named_modules() if isinstance(module, nn.ModuleList) and len(module)]
    depth = getattr(hf.config.get_text_config(), "num_hidden_layers", None) or max(
        (len(m) for _, m in lists), default=0
    )
    fitting = [(name.count("."), name, module) for name, module in lists if len(module) == depth]
    if not fitting:
        raise UnsupportedModelError(
            f"{type(hf).__name__} has no list of {depth} blocks; decoders, encoders and vision transformers with a "
            "list of equal blocks can be measured"
        )
    _, name, module = min(fitting, key=lambda found: found[:2])
    return Blocks(name, module)


@torch.no_grad()
def record(hf: PreTrainedModel, blocks: Blocks, inputs: dict[str, torch.Tensor]) -> list[BlockCall]:
    """Run a model once, in one nnsight trace, and record the call of every block.

    Args:
        hf: the model.
        blocks: its blocks.
        inputs: the model's input, e.g. `{"input_ids": (1, n)}`.

    Returns:
        the calls, one per block, in order of depth.

    Raises:
        UnsupportedModelError: if a block is not called with one residual stream of shape `(1, n, d)`.
    """
    # Without a cache a block is a function of its input alone; replaying one with a filled cache attends to
    # every token twice and gives a wrong Jacobian without any error.
    if "use_cache" in inspect.signature(hf.forward).parameters or hasattr(hf.config, "use_cache"):
        inputs = {**inputs, "use_cache": False}
    with warnings.catch_warnings():
        # BERT and ViT name a submodule `output`; nnsight says that its own `output` wins, which is what is read here.
        warnings.simplefilter("ignore", UserWarning)
        tracer = NNsight(hf)
    envoys = attrgetter(blocks.path)(tracer)
    with tracer.trace(**inputs):
        recorded = list().save()
        for envoy in envoys:
            recorded.append((envoy.inputs, envoy.output))
    return [_block_call(args, kwargs, output) for (args, kwargs), output in recorded]


def _block_call(args: tuple, kwargs: dict[str, Any], output: Any) -> BlockCall:
    """Sort out a block's arguments: the residual stream, caches (dropped), and the rest."""
    first = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(first, torch.Tensor) or first.ndim != 3 or len(first) != 1 or not first.is_floating_point():
        seen = tuple(first.shape) if isinstance(first, torch.Tensor) else type(first).__name__
        raise UnsupportedModelError(
            f"a block was called with {seen}; a residual stream of shape (1, n, d) was expected"
        )

    def keep(value: Any) -> Any:
        if value is first:
            return _STREAM
        return None if isinstance(value, Cache) else value

    return BlockCall(
        input=first.detach(),
        output=residual_stream(output, first.shape).detach(),
        args=tuple(keep(value) for value in args),
        kwargs={name: keep(value) for name, value in kwargs.items()},
    )


def example_inputs(hf: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Make a small valid input for a model: seven tokens, or one random image.

    Args:
        hf: the model.

    Returns:
        the input by the name the model gives it.
    """
    generator = torch.Generator().manual_seed(0)
    config = hf.config
    if hf.main_input_name == "pixel_values":
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        pixels = torch.randn(1, config.num_channels, size, size, generator=generator)
        return {"pixel_values": pixels.to(hf.device, hf.dtype)}
    vocabulary = config.get_text_config().vocab_size
    return {"input_ids": torch.randint(0, vocabulary, (1, 7), generator=generator).to(hf.device)}


@torch.no_grad()
def validate(hf: PreTrainedModel) -> Blocks:
    """Find a model's blocks and refuse the model unless they behave as the definitions need.

    With X^l = X^{l-1} + f^l(X^{l-1}): every block is called once on a stream of shape `(1, n, d)` and
    returns one of the same shape; each block reads exactly what the one before it wrote; two runs agree
    bit for bit; and replaying a block on its own gives what it gave inside the model, so that output
    minus input is the residual branch f^l and a function of the stream alone.

    Args:
        hf: a Hugging Face model in evaluation mode.

    Returns:
        its blocks.

    Raises:
        UnsupportedModelError: if any of this does not hold; the message names the family and the block.
    """
    family = f"{type(hf).__name__} (model type {hf.config.model_type!r})"
    blocks = find_blocks(hf)
    inputs = example_inputs(hf)
    first, second = record(hf, blocks, inputs), record(hf, blocks, inputs)
    for number, (call, again, module) in enumerate(zip(first, second, blocks.modules, strict=True), start=1):
        if number > 1 and not torch.equal(call.input, first[number - 2].output):
            raise UnsupportedModelError(f"block {number} of {family} does not read what block {number - 1} wrote")
        if not torch.equal(call.output, again.output):
            raise UnsupportedModelError(
                f"block {number} of {family} gives two answers in two runs; is it in training mode?"
            )
        if not torch.allclose(call.replay(module, call.input), call.output, rtol=1e-3, atol=1e-4):
            raise UnsupportedModelError(f"block {number} of {family} depends on more than its residual stream")
    return blocks
