"""Jacobian lenses in files, with the keys that other programs use: `J`, `n_prompts`, `source_layers`, `d_model`.

There, layer l is the state after block l, blocks counted from 0: depth l + 1 here. This library writes safetensors;
other programs' files (`.pt`) are read as tensors only, so that no code in them can run.
"""

import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from coupling_lib import paths
from coupling_lib.errors import ParameterError, shown
from coupling_lib.jacobian.lens import Readout, head_of, read
from coupling_lib.jacobian.tracing import Trace


class LensFile(NamedTuple):
    """A lens read from a file."""

    J: dict[int, Tensor]
    """Matrices (d, d) in float32 by depth, counted as in this library: 1 is after the first block."""
    n_prompts: int
    d_model: int

    def readout(self, trace: Trace, k: int = 5, token: int = -1, norm: str = "applied") -> Readout:
        """Return the k strongest tokens of a trace's token at each depth of the file, and at the last state itself."""
        last, position = trace.n_blocks, trace.position(token)
        if self.d_model != trace.d_model or not set(self.J) <= set(range(last + 1)):
            raise ParameterError(
                f"the lens is {self.d_model} wide and has depths {shown(sorted(self.J))}; {trace.model.name} is "
                f"{trace.d_model} wide and {last} blocks deep: take a lens of this model"
            )
        x, depths = trace.hidden[:, position], sorted({*self.J, last})
        states = [self.J[depth].to(x) @ x[depth] if depth in self.J else x[depth] for depth in depths]
        return read(trace, position, torch.stack(states), depths, k, norm, head_of(trace, position))


def write_lens(file: str | Path, J: dict[int, Tensor], n_prompts: int) -> None:
    """Write the matrices of some depths, from 1 to L - 1, as safetensors."""
    file, widths = Path(file), {tuple(matrix.shape) for matrix in J.values()}
    if file.suffix != ".safetensors":
        raise ParameterError(f"the file {file.name!r} ends in {file.suffix!r}; a lens is written as .safetensors")
    if len(widths) != 1 or len(set(next(iter(widths)))) != 1 or min(J) < 1:
        raise ParameterError(
            f"J has depths {sorted(J)} and shapes {sorted(widths)}; depths from 1 with one (d, d) are expected"
        )
    layers = sorted(depth - 1 for depth in J)
    header = {"n_prompts": n_prompts, "source_layers": layers, "d_model": next(iter(widths))[0]}
    tensors = {f"J.{layer}": J[layer + 1].detach().cpu().float().contiguous() for layer in layers}
    with paths.atomic_path(file) as partial:
        save_file(tensors, partial, metadata={name: json.dumps(value) for name, value in header.items()})


def read_lens(file: str | Path, width: int | None = None) -> LensFile:
    """Read a Jacobian lens from a file of this library (.safetensors) or of another program (.pt); no code in it runs.

    Args:
        file: its path.
        width: the required width; by default the file's own.

    Returns:
        the lens: matrices `J` by depth, `n_prompts`, `d_model`; `readout(trace)` reads a token's state.

    Raises:
        ParameterError: if there is no such file, or it holds no lens, one of another width, or more than tensors.

    Example:
        >>> import os, tempfile, torch
        >>> import coupling_lib as cl
        >>> path = os.path.join(tempfile.mkdtemp(), "lens.pt")
        >>> torch.save({"J": {5: torch.eye(96)}, "n_prompts": 1, "source_layers": [5], "d_model": 96}, path)
        >>> read = cl.read_lens(path).readout(cl.trace(cl.load_model("nano-neox"), "Call me Ishmael"), k=3)
        >>> read.depths, read.ids.shape
        ([6, 12], torch.Size([2, 3]))
    """
    file = Path(file)
    try:
        own = file.suffix == ".safetensors"
        found = _safetensors(file) if own else torch.load(file, map_location="cpu", weights_only=True)
        J = {int(layer) + 1: torch.as_tensor(matrix).float() for layer, matrix in found["J"].items()}
        read = LensFile(J, int(found["n_prompts"]), int(found["d_model"]))
    except FileNotFoundError:
        raise ParameterError(f"there is no file {str(file)!r}; check its path") from None
    except pickle.UnpicklingError:
        raise ParameterError(
            f"{file.name!r} holds more than tensors, and code in it would run: it was not opened; ask for a file of "
            "tensors alone"
        ) from None
    except (SafetensorError, OSError, RuntimeError, EOFError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ParameterError(
            f"{file.name!r} is no Jacobian lens ({type(error).__name__}); a file with J, n_prompts, source_layers and "
            "d_model is expected"
        ) from None
    if bad := [depth for depth, matrix in read.J.items() if not matrix.isfinite().all()]:
        raise ParameterError(f"the lens in {file.name!r} holds NaN or infinite values at depth {bad[0]}; fit it again")
    shapes = {tuple(matrix.shape) for matrix in read.J.values()}
    wanted = read.d_model if width is None else width
    if shapes != {(wanted, wanted)}:
        raise ParameterError(f"the lens in {file.name!r} has shapes {sorted(shapes)}; ({wanted}, {wanted}) is expected")
    return read


def _safetensors(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="pt") as stored:
        header = {name: json.loads(value) for name, value in (stored.metadata() or {}).items()}
        return header | {"J": {layer: stored.get_tensor(f"J.{layer}") for layer in header["source_layers"]}}
