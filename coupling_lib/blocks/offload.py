"""A model larger than memory: its blocks stay in their files, and one at a time is read when it is needed.

Everything outside the blocks (embeddings, final norm, output layer) is held in memory. In a forward pass a hook of
accelerate reads a block's weights before the block runs and drops them after it; where a block is differentiated,
`precision.dense_copy` reads them into a copy of its own. The files are the model's own safetensors. Only what
transformers builds anew from several stored tensors, such as the fused experts of a mixture-of-experts layer, is
written to a temporary folder that lives as long as the model.

Tensors are read, not mapped: a mapped file counts towards the limits on a process's memory that batch systems set
and is resident as far as it has been touched. The operating system keeps pages of files it has read in whatever
memory is free, so a budget well below the machine's memory costs little time.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_submodules
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, modeling_utils
from transformers.core_model_loading import WeightConverter

from coupling_lib.blocks import fits as memory
from coupling_lib.blocks.record import find_blocks


@dataclass(frozen=True)
class Plan:
    """Which parts of a model stay on disk, and what memory that takes."""

    path: str
    outside: int
    largest: int
    n_blocks: int
    others: tuple[str, ...]

    def bytes(self, dtype: torch.dtype) -> int:
        """Compute the most memory that weights take at any moment."""
        # While a block is measured its weights are held in float32, whatever they are stored in.
        return self.outside * dtype.itemsize + self.largest * torch.float32.itemsize

    def device_map(self, device: torch.device) -> dict[str, torch.device | str]:
        """Say where each part goes, in the form that `from_pretrained` takes."""
        on_disk = {f"{self.path}.{number}": "disk" for number in range(self.n_blocks)}
        return on_disk | dict.fromkeys(self.others, device)


def plan(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> Plan:
    """Divide a model into its blocks and the rest, without making its weights."""
    hf = memory.skeleton(model_class, config)
    found = find_blocks(hf)
    sizes = [_size(block) for block in found.modules]
    others = []
    owner, prefix = hf, ""
    for part in found.path.split("."):
        # All that stands directly here: modules, parameters and buffers, but for what leads to the blocks.
        here = (*owner.named_children(), *owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
        others += [prefix + name for name, _ in here if name != part]
        owner, prefix = owner.get_submodule(part), f"{prefix}{part}."
    return Plan(found.path, _size(hf) - sum(sizes), max(sizes), len(sizes), tuple(others))


@dataclass(frozen=True)
class Placing:
    """Where the weights of a model go: what stays on disk, and whether fresh ones are drawn one block at a time."""

    on_disk: Plan | None = None
    by_block: bool = False


def choose(
    model_class: type[PreTrainedModel],
    config: PreTrainedConfig,
    precision: str,
    arguments: Mapping[str, Any],
    device: torch.device,
    name: str,
    *,
    untrained: bool,
    budget: int | None,
) -> Placing:
    """Decide whether a model's blocks stay on disk, and refuse a model that fits in neither way."""
    need, division = memory.needed(model_class, config), plan(model_class, config)
    on_disk = None if "quantization_config" in arguments else division.bytes(arguments["dtype"])
    # A block whose weights are not float32 is measured on a float32 copy.
    whole = need[precision] + (0 if precision == "float32" else 4 * division.largest)
    if budget is not None:
        if stays := whole > budget:
            memory.check_offloaded(whole, on_disk, budget, precision, device, name)
        else:
            memory.check(need, precision, device, name, division.bytes(torch.bfloat16))
    else:
        # Next to the weights: the Jacobians of all blocks, and activations, which take less than a block.
        width = getattr(config.get_text_config(), "hidden_size", 0)
        total, free = whole + 4 * (division.n_blocks * width**2 + division.largest), memory.available(device)
        stays = on_disk is not None and on_disk < whole and total > free and on_disk <= free
        if stays:
            print(
                f"{name}: measuring it in {precision} needs {memory.gb(total)}, and {memory.gb(free)} are free on "
                f"{device}; its blocks stay on disk and are read one at a time, the rest takes {memory.gb(on_disk)}",
                flush=True,
            )
        else:
            memory.check(need, precision, device, name, division.bytes(torch.bfloat16))
    by_block = untrained and (stays or need["float32"] > min(budget or need["float32"], _host()))
    if by_block:
        memory.check_drawn(4 * (division.outside + 2 * division.largest), _host(), name)
    return Placing(division if stays else None, by_block)


def _host() -> int:
    return memory.available(torch.device("cpu"))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def load(read: Callable[..., PreTrainedModel], division: Plan, device: torch.device) -> PreTrainedModel:
    """Load a model with its blocks left on disk."""
    folder = TemporaryDirectory(prefix="coupling_lib-")
    try:
        with _read_what_memory_holds():
            hf = read(device_map=division.device_map(device), offload_folder=folder.name)
    except BaseException:
        folder.cleanup()
        raise
    weakref.finalize(hf, folder.cleanup)
    # accelerate hooks every layer. One hook per block reads the block as a whole, which also serves families
    # whose layers use each other's weights, and leaves everything outside the blocks as plain modules.
    modules = hf.get_submodule(division.path)
    index = next(hook for module in modules.modules() if (hook := _hook(module))).weights_map.dataset.index
    remove_hook_from_submodules(hf)
    for number, block in enumerate(modules):
        stored = StoredWeights(index, f"{division.path}.{number}.")
        add_hook_to_module(block, AlignDevicesHook(device, offload=True, weights_map=stored, place_submodules=True))
    return hf


@contextmanager
def _read_what_memory_holds() -> Generator[None]:
    """Let transformers read what stays in memory and nothing else, where it would map all files and read all of it."""
    mapped, convert = modeling_utils.safe_open, modeling_utils.convert_and_load_state_dict_in_model
    modeling_utils.safe_open = lambda file, **options: mapped(file, **options | {"backend": "pread"})
    modeling_utils.convert_and_load_state_dict_in_model = partial(_leave, convert)
    # accelerate warns that there are parameters on the meta device, which is what was asked for.
    log = logging.getLogger("accelerate.big_modeling")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        modeling_utils.safe_open, modeling_utils.convert_and_load_state_dict_in_model = mapped, convert


class _Unread:
    """A tensor that stays in its file: where transformers would read it and drop it, its shape is enough."""

    def __init__(self, stored: Any):
        self._shape = stored.get_shape()

    def __getitem__(self, _: object) -> _Unread:
        return self

    def to(self, *, device: object, dtype: torch.dtype) -> torch.Tensor:
        """Give what is on no device, and in the dtype that the index of files promises."""
        return torch.empty(self._shape, dtype=dtype, device="meta")


def _leave(
    convert: Callable[..., Any], model: Any, state_dict: Mapping[str, Any], load_config: Any, disk_offload_index: Any
) -> Any:
    """Keep transformers from reading what stays in its file as it is; what is built from several tensors is read."""
    if not any(isinstance(entry, WeightConverter) for entry in load_config.weight_mapping or ()):
        stay = {at["weight_name"] for at in (disk_offload_index or {}).values()}
        state_dict = {name: _Unread(stored) if name in stay else stored for name, stored in state_dict.items()}
    return convert(model=model, state_dict=state_dict, load_config=load_config, disk_offload_index=disk_offload_index)


class StoredWeights(Mapping[str, torch.Tensor]):
    """The weights of one block, each read from its file when it is asked for."""

    def __init__(self, index: Mapping[str, Mapping[str, str]], prefix: str):
        self._entries = {name.removeprefix(prefix): at for name, at in index.items() if name.startswith(prefix)}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read one weight, on the CPU, in the dtype that the model is loaded in."""
        at = self._entries[name]
        with safe_open(at["safetensors_file"], framework="pt", backend="pread") as file:
            return memory.aligned(file.get_tensor(at["weight_name"]).to(getattr(torch, at["dtype"])))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def is_offloaded(module: nn.Module) -> bool:
    """Tell whether weights of a module are on disk."""
    return any(_hook(part) is not None for part in module.modules())


def fill(duplicate: nn.Module, block: nn.Module, dtype: torch.dtype) -> None:
    """Read the weights of an offloaded block into a copy of it."""
    for name, part in block.named_modules():
        if (hook := _hook(part)) is None:
            continue
        for parameter, _ in part.named_parameters(recurse=hook.place_submodules):
            owner, _, last = f"{name}.{parameter}".strip(".").rpartition(".")
            weight = hook.weights_map[parameter].to(hook.execution_device, dtype)
            setattr(duplicate.get_submodule(owner), last, nn.Parameter(weight, requires_grad=False))


def _hook(module: nn.Module) -> AlignDevicesHook | None:
    """Give the hook that reads a module's weights, if there is one."""
    hook = getattr(module, "_hf_hook", None)
    return hook if getattr(hook, "offload", False) else None
