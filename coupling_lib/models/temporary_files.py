"""Weights in temporary files, from which a model is read; they last as long as a model with blocks on disk."""

import json
import os
import platform
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks import offload, weight_memory
from coupling_lib.blocks.placing import Placing
from coupling_lib.errors import ModelUnavailableError

# Reads a model from a folder; further arguments are those of `from_pretrained`.
Read = Callable[..., PreTrainedModel]

PREFIX = f"coupling_lib-{platform.node()}-"


def load(write: Callable[[Path], object], placing: Placing, read: Read) -> PreTrainedModel:
    """Write weights to a temporary folder and load a model from there."""
    _remove_stale()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-")))
        write(folder)
        hf = offload.load(partial(read, folder), placing)
        if placing.on_disk:
            weakref.finalize(hf, stack.pop_all().close)
    return hf


def check_room(folder: Path, size: int, what: str) -> None:
    """Refuse files that would fill the disk, before they are written."""
    if size > (free := shutil.disk_usage(folder).free):
        raise ModelUnavailableError(
            f"{what} take {weight_memory.gb(size)} of temporary files, and {weight_memory.gb(free)} are free in "
            f"{folder.parent}; set the environment variable TMPDIR to a folder with room"
        )


def write_index(folder: Path, where: Mapping[str, str], config: PreTrainedConfig) -> None:
    """Write the index of weights by file, and the configuration beside it."""
    index = json.dumps({"metadata": {}, "weight_map": where})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    config.save_pretrained(folder)


def _remove_stale() -> None:
    """Remove the folders of killed processes of this machine: the weights of a large model fill a disk."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        process = left.name.removeprefix(PREFIX).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)
