"""Untrained weights, each block drawn from a seed of its own: the same numbers in any order and on any device.

The model is built without weights. Each block, and last the rest, gets its weights from the family's own
`_init_weights`, with random numbers from a generator seeded by the user's seed and the block's name. So blocks can
be drawn in parallel, each is stored at once in its final form, and few are ever held in float32.

A model that was trained here began with other numbers, drawn by its constructor from its training's seed (`start`).
"""

import copy
import hashlib
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.quantizers.auto import AutoHfQuantizer

from coupling_lib.blocks.find import find_blocks
from coupling_lib.blocks.placing import Placing
from coupling_lib.errors import UnsupportedModelError
from coupling_lib.memory import give_back
from coupling_lib.models import temporary_files
from coupling_lib.models.temporary_files import Read

# A block, or the rest of a model: its modules in the order in which they are initialised, each with its name and with
# the model that initialises it (a composite model has several).
Part = list[tuple[str, nn.Module, PreTrainedModel]]


def initialise(
    family: type[PreTrainedModel],
    config: PreTrainedConfig,
    seed: int,
    placing: Placing,
    arguments: dict[str, Any],
    read: Read,
    start: bool = False,
) -> PreTrainedModel:
    """Draw fresh weights in float32 on the CPU, each stored at once as a loaded model's would be."""
    dtype, device = arguments["dtype"], placing.device
    if placing.blocks:
        write = partial(draw, family, config, seed, dtype, at_once=placing.at_once, start=start)
        hf = temporary_files.load(write, placing, read)
        hf.config.dtype = torch.float32  # the dtype of the draws, as in memory: part of the store's key
        return hf
    hf = stored = _initial_model(family, config, seed) if start else _without_weights(family, config)
    keep = partial(_convert, dtype, device)
    if quantisation := arguments.get("quantization_config"):
        # bitsandbytes' layers without weights, as in loading from files.
        stored = _without_weights(family, config)
        stored.hf_quantizer = AutoHfQuantizer.from_config(quantisation, pre_quantized=False)
        stored.hf_quantizer.preprocess_model(model=stored, dtype=torch.float32, device_map={"": device})
        keep = partial(_quantise, stored, device)
    _draw_parts(hf, None if start else seed, keep, placing.at_once)
    _keep_buffers(hf, stored, dtype, device)
    stored.tie_weights()
    if quantisation:
        stored.hf_quantizer.postprocess_model(stored)
    return stored


def draw(
    family: type[PreTrainedModel],
    config: PreTrainedConfig,
    seed: int,
    dtype: torch.dtype,
    folder: Path,
    at_once: int = 1,
    start: bool = False,
) -> None:
    """Draw a model's weights into the files of a folder, with a few blocks in memory at a time."""
    hf = _without_weights(family, config)
    size = sum(parameter.numel() for parameter in hf.parameters()) * dtype.itemsize
    temporary_files.check_room(folder, size, f"untrained weights of {family.__name__}")
    files = _Files(folder, dtype, set(hf.all_tied_weights_keys))
    _draw_parts(_initial_model(family, config, seed) if start else hf, None if start else seed, files.write, at_once)
    config = copy.deepcopy(config)
    config.architectures = [family.__name__]  # as `save_pretrained` notes it
    temporary_files.write_index(folder, files.where, config)


def _initial_model(family: type[PreTrainedModel], config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """Draw a model as at the start of its training: all of it, by its constructor."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family._from_config(copy.deepcopy(config), dtype=torch.float32)


def _without_weights(family: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model whose weights have shapes alone; buffers that it computes have values."""
    with torch.random.fork_rng(devices=[]), no_init_weights(), init_empty_weights(include_buffers=False):
        hf = family._from_config(copy.deepcopy(config), dtype=torch.float32)
    hf.tie_weights()
    return hf


def _draw_parts(hf: PreTrainedModel, seed: int | None, keep: Callable[[Part], None], at_once: int) -> None:
    """Draw each block and store it, a few at once, and then the rest; without a seed they are only stored."""
    parts, tied = _parts(hf), set(hf.all_tied_weights_keys)
    outside = parts.pop("")

    def one(name: str, part: Part) -> None:
        if seed is not None:
            # Each block has a seed of its own, a hash of the user's seed and its name.
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            _draw(part, int.from_bytes(digest[:4], "big"), tied)
        drawn = sum(weight.nbytes for *_, weight in _weights(part))
        keep(part)
        give_back(drawn)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, *zip(*parts.items(), strict=True)))
    one("", outside)


def _parts(hf: PreTrainedModel) -> dict[str, Part]:
    """Divide a model into its blocks, by name, and the rest, "", in the order of transformers."""
    found = find_blocks(hf)
    names = {block: f"{found.path}.{number}" for number, block in enumerate(found.modules)}
    parts: dict[str, Part] = {name: [] for name in names.values()} | {"": []}
    seen: set[nn.Module] = set()  # a layer that several blocks share is drawn with the first

    def visit(path: str, module: nn.Module, owner: PreTrainedModel, part: str) -> None:
        seen.add(module)
        part = names.get(module, part)
        for name, child in module.named_children():
            if child not in seen:
                here = f"{path}.{name}".removeprefix(".")
                visit(here, child, child if isinstance(child, PreTrainedModel) else owner, part)
        parts[part].append((path, module, owner))

    visit("", hf, hf, "")
    return parts


def _weights(part: Part) -> list[tuple[str, nn.Module, str, nn.Parameter]]:
    """List the weights of a part: full name, module, name in the module, and the weight."""
    return [
        (f"{path}.{name}".removeprefix("."), module, name, weight)
        for path, module, _ in part
        for name, weight in module._parameters.items()
        if weight is not None
    ]


@torch.no_grad()
def _draw(part: Part, seed: int, tied: Collection[str] = ()) -> None:
    """Initialise the weights of a part's modules."""
    # A parameter shared by two modules stays one, except tied ones, which transformers ties after all are drawn.
    made: dict[Tensor, nn.Parameter] = {}
    apart: list[tuple[nn.Module, str, Tensor]] = []
    for full, module, name, weight in _weights(part):
        new = nn.Parameter(torch.full_like(weight, nan, device="cpu"), weight.requires_grad)
        if full in tied:
            apart.append((module, name, weight))
        else:
            new = made.setdefault(weight, new)
        module._parameters[name] = new
    with _SeededMode(torch.Generator().manual_seed(seed)):
        for _, module, owner in part:
            owner._initialize_weights(module)
    for module, name, weight in apart:
        module._parameters[name] = _tied(made.setdefault(weight, module._parameters[name]), module._parameters[name])
    for full, module, _, weight in _weights(part):
        if weight.sum().isnan():
            owner = next(owner for _, each, owner in part if each is module)
            raise UnsupportedModelError(
                f"{type(owner).__name__} gives {full} no value where it is freshly initialised; measure it with "
                "trained weights"
            )


def _tied(own: nn.Parameter, second: nn.Parameter) -> nn.Parameter:
    """Return a tied weight as its owner draws it; if both draws are alike, with the second's numbers."""
    a, b = (float(each.std(correction=0)) for each in (own, second))
    if own is second or abs(a - b) > a * max(0.05, 4 / max(1, own.numel()) ** 0.5):
        return own
    own.data = second.data
    return own


class _SeededMode(TorchDispatchMode):
    """Mode that draws random numbers from a given generator, and refuses changes of released weights."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func._schema.is_mutable and args and isinstance(args[0], Tensor) and args[0].is_meta:
            raise UnsupportedModelError("its weights are not drawn block after block; take a machine with more memory")
        if torch.Tag.nondeterministic_seeded in func.tags:
            if not any(argument.name == "generator" for argument in func._schema.arguments):
                func = func.overloadpacket.generator
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)


def _convert(dtype: torch.dtype, device: torch.device, part: Part) -> None:
    """Convert the weights of a part to the precision asked for, in place."""
    for _, _, _, weight in _weights(part):
        weight.data = weight.data.to(device, dtype)


def _quantise(stored: PreTrainedModel, device: torch.device, part: Part) -> None:
    """Move the weights of a part into the quantised model."""
    convert, quantised = stored.hf_quantizer.get_quantize_ops().convert, stored.hf_quantizer.param_needs_quantization
    for full, _, name, weight in _weights(part):
        value = weight.detach().to(device)
        new = nn.Parameter(value, requires_grad=False)
        if quantised(stored, full):
            new = convert({full: value}, full_layer_name=full, model=stored)[full]
        setattr(stored.get_submodule(full.rpartition(".")[0]), name, new)
    _release(part)


def _release(part: Part) -> None:
    """Release the weights of a part, and keep their shapes."""
    for _, module, name, weight in _weights(part):
        module._parameters[name] = nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)


def _keep_buffers(hf: PreTrainedModel, stored: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> None:
    """Store the buffers; those that a model computes for itself, such as rotary tables, keep their dtype."""
    # A model that is read from files keeps these in float32, whatever its dtype.
    for path, module in hf.named_modules():
        for name, value in module.named_buffers(recurse=False):
            stays = name in module._non_persistent_buffers_set or not value.is_floating_point()
            stored.get_submodule(path)._buffers[name] = value.to(device, value.dtype if stays else dtype)


class _Files:
    """The files of a model that is written part by part."""

    def __init__(self, folder: Path, dtype: torch.dtype, tied: set[str]):
        self.folder, self.dtype, self.tied = folder, dtype, tied
        self.where: dict[str, str] = {}

    def write(self, part: Part) -> None:
        """Write a part, in its final precision, and release it."""
        kept: dict[str, Tensor] = {}
        for path, module, _ in part:
            for name, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                full = f"{path}.{name}".removeprefix(".")
                if full in self.tied or name in module._non_persistent_buffers_set:
                    continue
                value = value.detach().to(self.dtype if value.is_floating_point() else value.dtype).contiguous()
                # A file holds no tensor twice: weights tied within a part are written for each of their names.
                shared = any(value.data_ptr() == other.data_ptr() for other in kept.values())
                kept[full] = value.clone() if shared else value
        file = f"{part[-1][0] or 'outside'}.safetensors"
        save_file(kept, self.folder / file, metadata={"format": "pt"})
        self.where |= dict.fromkeys(kept, file)
        _release(part)
