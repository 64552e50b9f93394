"""Finding a model's blocks, and recording how each is called: the one place that touches nnsight.

A transformer is a list of blocks that read and write one residual stream. Nothing here knows a family by name: the
blocks are the list of modules as long as the configuration says the model is deep, one nnsight trace records what each
is called with and what it returns. Whether they behave as the definitions of the paper need is `validate`'s business.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from nnsight import NNsight
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks.attention import KeysValues, recording
from coupling_lib.errors import UnsupportedModelError


@dataclass(frozen=True, eq=False)
class Blocks:
    """Where a model keeps its transformer blocks."""

    path: str
    modules: nn.ModuleList
    routes: tuple[str, ...] = ()
    post_norm: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def route(self) -> str:
        """Name the routes to the blocks' maps: one, or those of a model whose blocks differ in kind."""
        return " and ".join(sorted(set(self.routes)))

    @property
    def norm_position(self) -> str:
        """Say where the norms stand: `"pre"`, `"post"` (block minus identity couples trivially), `"mixed"` for some."""
        if not self.post_norm:
            return "pre"
        return "post" if len(self.post_norm) == len(self) else "mixed"


@dataclass(frozen=True, eq=False)
class BlockCall:
    """One call of one block, as the model made it."""

    block: nn.Module
    input: Tensor
    output: Tensor
    stream: str
    arguments: dict[str, Any]
    keys_values: dict[str, KeysValues] = field(default_factory=dict)
    config: PreTrainedConfig | None = None

    def with_arguments(self, change: Callable[[str, Tensor], Any]) -> "BlockCall":
        """Change every tensor among the arguments but the residual stream."""
        changed = {name: on_tensors(partial(change, name), value) for name, value in self.arguments.items()}
        return replace(self, arguments=changed)

    def with_argument(self, name: str, value: Any) -> "BlockCall":
        """Set one argument."""
        return replace(self, arguments={**self.arguments, name: value})

    def on(self, device: torch.device | str) -> "BlockCall":
        """Bring all that a block was called with to one device, that of the block where a model lies on several."""
        moved = self.with_arguments(lambda _, value: value.to(device))
        return replace(moved, input=self.input.to(device), output=self.output.to(device))

    def replay(self, block: nn.Module, stream: Tensor) -> Tensor:
        """Call a block as the model did, on another residual stream."""
        cast = self.with_arguments(lambda _, value: value.to(stream.dtype) if value.is_floating_point() else value)
        return residual_stream(block(**{self.stream: stream}, **cast.arguments), stream.shape)


def on_tensors(change: Callable[..., Any], *values: Any) -> Any:
    """Change a tensor, or each one in a tuple, list or dictionary; of several values alike, those in the same place."""
    first = values[0]
    if isinstance(first, Tensor):
        return change(*values)
    if isinstance(first, tuple | list):
        return type(first)(map(partial(on_tensors, change), *values))
    if isinstance(first, Mapping) and not isinstance(first, Cache):
        return {name: on_tensors(change, *(value[name] for value in values)) for name in first}
    return first


def _form(value: Any) -> tuple[int, ...] | str:
    """Say what was seen where a tensor of some shape was expected."""
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def residual_stream(returned: Any, shape: torch.Size) -> Tensor:
    """Take the residual stream out of what a block returns: a bare tensor or a tuple that starts with it."""
    # Indexing a bare tensor with `[0]` would silently take batch element 0, so the shape is checked.
    stream = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(stream, Tensor) or stream.shape != shape:
        raise UnsupportedModelError(
            f"a block returned {_form(stream)}; a residual stream of shape {tuple(shape)} was expected"
        )
    return stream


def find_blocks(hf: PreTrainedModel) -> Blocks:
    """Find the list of transformer blocks of a model, whatever its family calls it."""
    lists = [(name, module) for name, module in hf.named_modules() if isinstance(module, nn.ModuleList) and len(module)]
    depth = getattr(stack_config(hf), "num_hidden_layers", None)
    depth = depth or max((len(module) for _, module in lists), default=0)
    fitting = [(name.count("."), name, module) for name, module in lists if len(module) == depth]
    if not fitting:
        raise UnsupportedModelError(
            f"{type(hf).__name__} has no list of {depth} blocks; decoders, encoders and vision transformers with a "
            "list of equal blocks can be measured"
        )
    _, name, module = min(fitting, key=lambda found: found[:2])
    return Blocks(name, module)


def watched(hf: PreTrainedModel, blocks: Blocks) -> tuple[NNsight, Any]:
    """Give nnsight's view of a model, and of its blocks."""
    with warnings.catch_warnings():
        # BERT and ViT name a submodule `output`; nnsight says that its own `output` wins, which is what is read here.
        warnings.simplefilter("ignore", UserWarning)
        tracer = NNsight(hf)
    return tracer, attrgetter(blocks.path)(tracer)


@torch.no_grad()
def record(hf: PreTrainedModel, blocks: Blocks, inputs: dict[str, Tensor], count: int | None = None) -> list[BlockCall]:
    """Run a model once, in one nnsight trace, and record the call of every block, or of the first so many."""
    # Without a cache a block is a function of its input alone; replaying one with a filled cache attends to
    # every token twice and gives a wrong Jacobian without any error.
    if "use_cache" in inspect.signature(hf.forward).parameters or hasattr(hf.config, "use_cache"):
        inputs = {**inputs, "use_cache": False}
    tracer, envoys = watched(hf, blocks)
    with recording() as keys_values:
        with tracer.trace(**inputs) as run:
            recorded = list().save()
            for envoy in list(envoys)[:count]:
                recorded.append((envoy.inputs, envoy.output))
            # What follows, such as logits of a whole vocabulary, would take a third of a short prompt's time.
            run.stop()
    calls = [
        replace(block_call(block, args, kwargs, output, keys_values), config=hf.config)
        for block, ((args, kwargs), output) in zip(list(blocks.modules)[:count], recorded, strict=True)
    ]
    # nnsight keeps these variables in a cycle that lasts until the next garbage collection, and every layer's keys and
    # values with them.
    recorded.clear()
    keys_values.clear()
    if len({weight.device for weight in blocks.modules.parameters()}) > 1:
        calls = [call.on(next(call.block.parameters()).device) for call in calls]
    for number, (before, call) in enumerate(pairwise(calls), start=2):
        # A NaN is refused by another check, which says where it comes from.
        if not torch.equal(*(state.nan_to_num() for state in (before.output.to(call.input), call.input))):
            raise UnsupportedModelError(
                f"block {number} of {family_of(hf)} does not read what block {number - 1} wrote"
            )
    return calls


def family_of(hf: PreTrainedModel) -> str:
    """Name a model's architecture for a message."""
    return f"{type(hf).__name__} (model type {hf.config.model_type!r})"


def block_call(
    block: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any, keys_values: dict[nn.Module, KeysValues]
) -> BlockCall:
    """Sort out a block's arguments by name: the residual stream, caches (dropped), and the rest."""
    signature = inspect.signature(type(block).forward)
    bound = signature.bind(block, *args, **kwargs).arguments
    rest = next((name for name, p in signature.parameters.items() if p.kind is p.VAR_KEYWORD), None)
    arguments = {name: value for name, value in list(bound.items())[1:] if name != rest} | bound.get(rest, {})
    stream, first = next(iter(arguments.items()), ("", None))
    if not isinstance(first, Tensor) or first.ndim != 3 or len(first) != 1 or not first.is_floating_point():
        raise UnsupportedModelError(
            f"a block was called with {_form(first)}; a residual stream of shape (1, n, d) was expected"
        )
    others = {name: None if isinstance(value, Cache) else value for name, value in arguments.items() if name != stream}
    recorded = {name: keys_values[part] for name, part in block.named_modules() if part in keys_values}
    return BlockCall(block, first.detach(), residual_stream(output, first.shape).detach(), stream, others, recorded)


def random_input(hf: PreTrainedModel, generator: torch.Generator, n_tokens: int) -> Tensor:
    """Make a valid input for a model: uniform token ids, or an image of standard normal noise."""
    if hf.main_input_name == "pixel_values":
        config = stack_config(hf)
        if not hasattr(config, "image_size"):
            raise UnsupportedModelError(
                f"{type(hf).__name__} does not say how large its images are; take a vision transformer, whose "
                "configuration has an image_size"
            )
        shape = (1, config.num_channels, *sides(config.image_size))
        return torch.randn(shape, generator=generator).to(hf.device, hf.dtype)
    return torch.randint(0, stack_config(hf).vocab_size, (1, n_tokens), generator=generator).to(hf.device)


def stack_config(hf: PreTrainedModel) -> PreTrainedConfig:
    """Give the part of a model's configuration that describes the stack which reads its input."""
    return images_config(hf.config) if hf.main_input_name == "pixel_values" else hf.config.get_text_config()


def images_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Give the part of a configuration that says how large the images are; of CLIP's that is nested."""
    return config if hasattr(config, "image_size") else getattr(config, "vision_config", config)


def sides(size: int | Sequence[int]) -> tuple[int, ...]:
    """Give height and width of an image or a patch, of which a configuration says one number or both."""
    return (size, size) if isinstance(size, int) else tuple(size)
