"""Untrained weights: drawn from a seed, all at once or one block at a time, the same numbers either way.

A model's constructor draws twice. Each layer fills its weights when it is made, all blocks before anything else
happens; then `_init_weights` goes through the finished modules, in depth-first order, and draws most of them anew.
Both use the one generator, so that a weight depends on all draws before it. To have no more than one block in memory,
the constructor runs as it is, but for two things. A block that was just made gives its weights away. When
`_init_weights` comes to it, it is made again from the state that the generator had then, its weights are drawn on top,
and go to a file.
"""

import copy
import json
import os
import platform
import shutil
import tempfile
import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks import offload, weight_memory
from coupling_lib.blocks.placing import Placing
from coupling_lib.blocks.record import find_blocks
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError

# Reads a model from a folder; further arguments are those of `from_pretrained`.
Read = Callable[..., PreTrainedModel]

_PREFIX = f"coupling_lib-{platform.node()}-"


def initialise(
    family: type[PreTrainedModel],
    config: PreTrainedConfig,
    seed: int,
    placing: Placing,
    arguments: dict[str, Any],
    read: Read,
) -> PreTrainedModel:
    """Draw fresh weights in float32 on the CPU, then store them as a loaded model's would be."""
    if placing.by_block:
        hf = _from_files(lambda folder: draw(family, config, seed, arguments["dtype"], folder), placing, read)
        hf.config.dtype = torch.float32  # what it was drawn in, as where it is drawn at once: the store's key has it
        return hf
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hf = family._from_config(config, dtype=torch.float32)
    if "quantization_config" not in arguments:
        return _stored(hf, arguments["dtype"], placing.device)
    # Quantisation happens while weights are read, so they are written first.
    drawn = [hf]
    del hf
    return _from_files(lambda folder: drawn.pop().save_pretrained(folder), placing, read)


def _stored(hf: PreTrainedModel, dtype: torch.dtype, place: torch.device) -> PreTrainedModel:
    """Store a model's weights in a precision; what it computed for itself, as the rotary tables, stays as it is."""
    # A model that is read from files keeps these in float32 whatever it is loaded in.
    computed = [(m, name, m._buffers[name]) for m in hf.modules() for name in m._non_persistent_buffers_set]
    hf = hf.to(dtype=dtype, device=place)
    for module, name, value in computed:
        module._buffers[name] = None if value is None else value.to(place)
    return hf


def _from_files(write: Callable[[Path], object], placing: Placing, read: Read) -> PreTrainedModel:
    """Write weights to a temporary folder and read them from there; it lives as long as a model that needs it."""
    _clear_up()
    folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-")
    try:
        write(Path(folder.name))
        hf = offload.load(partial(read, Path(folder.name)), placing)
    except BaseException:
        folder.cleanup()
        raise
    if placing.on_disk:
        weakref.finalize(hf, folder.cleanup)
    else:
        folder.cleanup()
    return hf


def _clear_up() -> None:
    """Remove what a process of this machine left that was killed: the weights of a large model fill a disk."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        process = left.name.removeprefix(_PREFIX).partition("-")[0]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def draw(family: type[PreTrainedModel], config: PreTrainedConfig, seed: int, dtype: torch.dtype, folder: Path) -> None:
    """Draw a model's weights and write them to files, with one block in memory at a time."""
    skeleton = weight_memory.skeleton(family, config)
    _check_disk(skeleton, dtype, folder)
    config = copy.deepcopy(config)
    config.architectures = [family.__name__]  # as `save_pretrained` notes it
    files = _Files(folder, dtype)
    drawn = _Drawn(family, config, files)
    with torch.random.fork_rng(devices=[]), drawn.in_turn():
        torch.manual_seed(seed)
        hf = family._from_config(config, dtype=torch.float32)
        drawn.finish()
    tied = set(hf.all_tied_weights_keys)
    files.write({name: x for name, x in hf.state_dict().items() if x.device.type != "meta" and name not in tied})
    files.finish()
    config.save_pretrained(folder)


def _check_disk(skeleton: PreTrainedModel, dtype: torch.dtype, folder: Path) -> None:
    """Refuse before anything is drawn where the files would fill the disk."""
    size = sum(parameter.numel() for parameter in skeleton.parameters()) * dtype.itemsize
    if size > (free := shutil.disk_usage(folder).free):
        raise ModelUnavailableError(
            f"untrained weights of {type(skeleton).__name__} take {weight_memory.gb(size)} of temporary files, and "
            f"{weight_memory.gb(free)} are free in {folder.parent}; set the environment variable TMPDIR to a folder "
            "with room"
        )


class _Files:
    """The files of a model that is written bit by bit."""

    def __init__(self, folder: Path, dtype: torch.dtype):
        self.folder, self.dtype = folder, dtype
        self.where: dict[str, str] = {}

    def write(self, tensors: dict[str, Tensor]) -> None:
        """Write some weights, in the precision that they will be read in."""
        file = f"model-{len(set(self.where.values())) + 1:05d}.safetensors"
        kept: dict[str, Tensor] = {}
        for name, value in tensors.items():
            value = value.detach().to(self.dtype if value.is_floating_point() else value.dtype).contiguous()
            # A file holds no tensor twice: what is tied within a block is written for each of its names.
            shared = any(value.data_ptr() == other.data_ptr() for other in kept.values())
            kept[name] = value.clone() if shared else value
        save_file(kept, self.folder / file, metadata={"format": "pt"})
        self.where |= dict.fromkeys(kept, file)

    def finish(self) -> None:
        """Write which file holds which weight."""
        index = {"metadata": {}, "weight_map": self.where}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@dataclass(eq=False)
class _Block:
    """One block: how to make it again, and where it stands."""

    module: nn.Module
    again: Callable[[nn.Module], None]
    name: str
    taken: bool = False
    written: bool = False

    def take(self) -> None:
        """Make the block's weights again, as its constructor drew them, and leave the generator as it is."""
        twin = type(self.module).__new__(type(self.module))
        with torch.random.fork_rng(devices=[]):
            self.again(twin)
        for own, made in zip(self.module.modules(), twin.modules(), strict=True):
            own._parameters.update(made._parameters)
        self.taken = True

    def give_away(self) -> None:
        """Forget the weights, and keep their shapes."""
        kept: dict[int, nn.Parameter] = {}
        for part in self.module.modules():
            for name, weight in part._parameters.items():
                if weight is not None:
                    shape = nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
                    part._parameters[name] = kept.setdefault(id(weight), shape)


class _Untouched(TorchDispatchMode):
    """Refuse a change to weights that were given away: it would be lost, and the draws after it would be others."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func._schema.is_mutable and args and isinstance(args[0], Tensor) and args[0].device.type == "meta":
            raise UnsupportedModelError("its weights are not drawn block after block; take a machine with more memory")
        return func(*args, **(kwargs or {}))


class _Drawn:
    """What happens to the blocks of a model while its constructor runs."""

    def __init__(self, family: type[PreTrainedModel], config: PreTrainedConfig, files: _Files):
        self.files = files
        self.kinds = {type(block) for block in find_blocks(weight_memory.skeleton(family, config)).modules}
        self.names = _in_order_of_making(family, config, self.kinds)
        self.owner: dict[nn.Module, _Block] = {}
        self.blocks: list[_Block] = []
        self.making = False

    @contextmanager
    def in_turn(self) -> Generator[None]:
        """Have one block at a time in memory, inside the context."""
        with ExitStack() as stack:
            for kind in self.kinds:
                stack.enter_context(_replaced(kind, "__init__", partial(self._make, kind.__init__)))
            original = PreTrainedModel._initialize_weights
            stack.enter_context(_replaced(PreTrainedModel, "_initialize_weights", partial(self._initialise, original)))
            stack.enter_context(_Untouched())
            yield

    def finish(self) -> None:
        """Write the blocks that draw all of their weights when they are made."""
        for block in self.blocks:
            if block.name and not block.written:
                block.take()
                self._write(block)

    def _make(self, original: Callable[..., None], module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Make a block, note how, and forget its weights."""
        if self.making:
            return original(module, *args, **kwargs)
        state, self.making = torch.get_rng_state(), True
        try:
            original(module, *args, **kwargs)
        finally:
            self.making = False

        def again(twin: nn.Module) -> None:
            torch.set_rng_state(state)
            self.making = True
            try:
                original(twin, *args, **kwargs)
            finally:
                self.making = False

        block = _Block(module, again, self.names[len(self.blocks)])
        self.blocks.append(block)
        self.owner |= dict.fromkeys(module.modules(), block)
        block.give_away()

    def _initialise(
        self, original: Callable[..., None], model: PreTrainedModel, module: nn.Module, *args: Any, **kwargs: Any
    ) -> None:
        """Draw a module's weights as transformers does; those of a block are there from its first part to its last."""
        block = self.owner.get(module)
        if block is None or getattr(module, "_is_hf_initialized", False):
            return original(model, module, *args, **kwargs)
        if not block.taken:
            block.take()
        original(model, module, *args, **kwargs)
        if module is block.module:
            self._write(block)

    def _write(self, block: _Block) -> None:
        if block.name:
            self.files.write({f"{block.name}.{name}": value for name, value in block.module.state_dict().items()})
        block.written = True
        block.give_away()


def _in_order_of_making(family: type[PreTrainedModel], config: PreTrainedConfig, kinds: set[type]) -> list[str]:
    """Name the modules of some kinds in the order in which a constructor makes them; "" for one that is not kept."""
    made: list[nn.Module] = []
    depth = 0

    def note(original: Callable[..., None], module: nn.Module, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        depth += 1
        original(module, *args, **kwargs)
        depth -= 1
        if not depth:
            made.append(module)

    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(_replaced(kind, "__init__", partial(note, kind.__init__)))
        names = {module: name for name, module in weight_memory.skeleton(family, config).named_modules()}
    return [names.get(module, "") for module in made]


@contextmanager
def _replaced(owner: type, name: str, function: Callable[..., Any]) -> Generator[None]:
    """Put a function in the place of a method, inside the context."""
    own = vars(owner).get(name)
    setattr(owner, name, lambda *args, **kwargs: function(*args, **kwargs))
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
