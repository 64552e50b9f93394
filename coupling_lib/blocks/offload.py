"""Models larger than one card: their blocks lie on several, or stay in their files and are read one at a time.

In a forward pass a hook of accelerate moves a block's arguments to its card and the stream back, or reads a
block's weights before it runs and drops them after it; `storage.dense_copy` reads them into its own copy. Only
weights that transformers builds from several stored tensors, such as fused experts, are written to a folder, which is
removed with the model. Tensors are read, not mapped: mapped pages count towards the memory limits of batch systems.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_submodules
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel, modeling_utils
from transformers.core_model_loading import WeightConverter

from coupling_lib.blocks.placing import DISK, Placing
from coupling_lib.blocks.storage import Storage
from coupling_lib.blocks.weight_memory import aligned


def load(read: Callable[..., PreTrainedModel], placing: Placing) -> PreTrainedModel:
    """Load a model with each block in its place."""
    if not placing.blocks:
        return read()
    folder = TemporaryDirectory(prefix="coupling_lib-")
    try:
        with _reading_resident_weights():
            hf = read(device_map=placing.device_map(), offload_folder=folder.name)
    except BaseException:
        folder.cleanup()
        raise
    weakref.finalize(hf, folder.cleanup)
    # accelerate hooks every layer. One hook per block also serves families whose layers use each other's weights, and
    # leaves everything outside the blocks as plain modules on one device.
    path = placing.division.path
    modules = hf.get_submodule(path)
    stored = next((hook.weights_map.dataset.index for module in modules.modules() if (hook := _hook(module))), {})
    remove_hook_from_submodules(hf)
    for number, (block, place) in enumerate(zip(modules, placing.blocks, strict=True)):
        if place == DISK:
            weights = StoredWeights(stored, f"{path}.{number}.")
            hook = AlignDevicesHook(placing.device, offload=True, weights_map=weights, place_submodules=True)
        else:
            hook = AlignDevicesHook(place, io_same_device=True)
        add_hook_to_module(block, hook)
    return hf


@contextmanager
def _reading_resident_weights() -> Generator[None]:
    """Make transformers read only weights that stay in memory, where it would map and read all files."""
    mapped, convert = modeling_utils.safe_open, modeling_utils.convert_and_load_state_dict_in_model
    modeling_utils.safe_open = lambda file, **options: mapped(file, **options | {"backend": "pread"})
    modeling_utils.convert_and_load_state_dict_in_model = partial(_convert, convert)
    # accelerate warns of parameters on the meta device, which is what was asked for.
    log = logging.getLogger("accelerate.big_modeling")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        modeling_utils.safe_open, modeling_utils.convert_and_load_state_dict_in_model = mapped, convert


class _Unread:
    """A tensor that stays in its file: transformers would read and drop it, and its shape is enough."""

    def __init__(self, stored: Any):
        self._shape = stored.get_shape()

    def __getitem__(self, _: object) -> _Unread:
        return self

    def to(self, *, device: object, dtype: torch.dtype) -> torch.Tensor:
        """Return an empty tensor on the meta device, in the dtype that the index of files promises."""
        return torch.empty(self._shape, dtype=dtype, device="meta")


def _convert(
    convert: Callable[..., Any], model: Any, state_dict: Mapping[str, Any], load_config: Any, disk_offload_index: Any
) -> Any:
    """Convert weights as transformers does, without reading those that stay in their files unchanged."""
    if not any(isinstance(entry, WeightConverter) for entry in load_config.weight_mapping or ()):
        stay = {at["weight_name"] for at in (disk_offload_index or {}).values()}
        state_dict = {name: _Unread(stored) if name in stay else stored for name, stored in state_dict.items()}
    return convert(model=model, state_dict=state_dict, load_config=load_config, disk_offload_index=disk_offload_index)


class StoredWeights(Mapping[str, torch.Tensor]):
    """The weights of one block, each read from its file on access."""

    def __init__(self, index: Mapping[str, Mapping[str, str]], prefix: str):
        self._entries = {name.removeprefix(prefix): at for name, at in index.items() if name.startswith(prefix)}

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read one weight, on the CPU, in the dtype that the model is loaded in."""
        at = self._entries[name]
        with safe_open(at["safetensors_file"], framework="pt", backend="pread") as file:
            return aligned(file.get_tensor(at["weight_name"]).to(getattr(torch, at["dtype"])))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class OnDisk(Storage):
    """Weights that stay in their files."""

    on_disk = True

    def stores(self, module: nn.Module) -> bool:
        """Return whether a hook reads a module's weights."""
        return _hook(module) is not None

    def fill(self, duplicate: nn.Module, block: nn.Module, dtype: torch.dtype) -> None:
        """Read the weights of an offloaded block into a copy of it."""
        for name, part in block.named_modules():
            if (hook := _hook(part)) is None:
                continue
            for parameter, _ in part.named_parameters(recurse=hook.place_submodules):
                owner, _, last = f"{name}.{parameter}".strip(".").rpartition(".")
                weight = hook.weights_map[parameter].to(hook.execution_device, dtype)
                setattr(duplicate.get_submodule(owner), last, nn.Parameter(weight, requires_grad=False))


def _hook(module: nn.Module) -> AlignDevicesHook | None:
    """Return the hook that reads a module's weights, if there is one."""
    hook = getattr(module, "_hf_hook", None)
    return hook if getattr(hook, "offload", False) else None
