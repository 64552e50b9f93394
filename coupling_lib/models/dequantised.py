"""Checkpoints published in few bits: their weights are dequantised one after another, while they are read.

A stored number times its scale is exact in float32: this is the model that its authors run, except for the rounding of
activations. transformers receives plain tensors and a plain configuration, as of any other checkpoint. Other methods
than MXFP4, FP8 and the plain formats of compressed-tensors are refused.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks import offload
from coupling_lib.blocks.placing import Placing
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.models import temporary_files

_KEY = "quantization_config"
# Sign, two bits of exponent, one of mantissa.
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1 = torch.cat([_E2M1, -_E2M1])
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# Names under which the scale of a weight is stored: with a suffix, or in place of "weight".
_SCALES = ("{}_scale_inv", "{}_scale", "{base}.scale", "{base}.qscale_weight")
_OF_ACTIVATIONS = re.compile(r".*\b(input|output|activation|q|k|v|kv)_(global_)?(scale|zero_point)(_ub|_inv)?")
_PACKED_FORMATS = ("float-quantized", "naive-quantized", "int-quantized", "pack-quantized")


@dataclass(frozen=True)
class Method:
    """Quantisation of a checkpoint, from its configuration."""

    name: str
    given: Mapping[str, Any]

    @property
    def is_read(self) -> bool:
        """True if the library dequantises it."""
        if self.name == "compressed-tensors":
            whole = self.given.get("format") != "pack-quantized" or self.bits in (2, 4, 8)
            return whole and self.given.get("format") in _PACKED_FORMATS
        return self.name in ("mxfp4", "fp8", "mxfp8", "fbgemm_fp8")

    @property
    def block(self) -> tuple[int, int] | None:
        """Rows and columns that share a scale, where the sizes alone do not determine it."""
        size = self.given.get("weight_block_size", (1, 32) if self.name == "mxfp8" else (128, 128))
        for group in (self.given.get("config_groups") or {}).values():
            size = (group.get("weights") or {}).get("block_structure") or size
        return tuple(size) if isinstance(size, list | tuple) and len(size) == 2 else None

    @property
    def bits(self) -> int:
        """Bits of a weight that is packed into integers."""
        groups = (self.given.get("config_groups") or {}).values()
        return next((weights["num_bits"] for group in groups if (weights := group.get("weights"))), 4)


def find(raw: Any) -> Any:
    """Return the quantisation in a configuration, or in one of its parts."""
    if not isinstance(raw, dict):
        return None
    return raw.get(_KEY) or next(filter(None, map(find, raw.values())), None)


def strip(config: PreTrainedConfig) -> PreTrainedConfig:
    """Remove the quantisation from a configuration and its parts."""
    vars(config).pop(_KEY, None)
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            strip(part)
    return config


def method_of(folder: Path, name: str) -> Method | None:
    """Return the quantisation of a folder's weights, and refuse unsupported ones before they are fetched."""
    if not (given := find(json.loads((folder / "config.json").read_text(encoding="utf-8")))):
        return None
    method = Method(str(given.get("quant_method", "unknown")), given)
    if method.is_read:
        return method
    layout = " ".join(filter(None, (method.name, str(method.given.get("format", "")))))
    ways = "take the checkpoint that it was made from, or a GGUF file of it, or pass untrained=True"
    if method.name == "bitsandbytes":
        ways = f"load it with transformers and pass that to cl.wrap_model, or {ways}"
    raise UnsupportedModelError(
        f"the weights of {name!r} are quantised already ({layout}); MXFP4, FP8 and the plain formats of "
        f"compressed-tensors are dequantised here, and no other: {ways}"
    )


def load(
    read: Callable[..., PreTrainedModel],
    folder: Path,
    config: PreTrainedConfig,
    placing: Placing,
    dtype: torch.dtype,
    stored: Mapping[str, Any] | None,
) -> PreTrainedModel:
    """Load a model from a folder, or from tensors that become dense while they are read."""
    if stored is None:
        return offload.load(partial(read, folder), placing)
    if not placing.on_disk:
        return offload.load(partial(read, folder, config=config, state_dict=stored), placing)
    return temporary_files.load(partial(_write, stored, config, dtype), placing, read)


class Stored:
    """A tensor in its file, read on access as transformers indexes it."""

    def __init__(self, make: Callable[[], torch.Tensor]):
        self.make = make

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.make()[index]


def tensors(folder: Path, method: Method, name: str) -> dict[str, Any]:
    """Return the plain tensors of a checkpoint by their plain names; each is read and dequantised on access."""
    print(f"{name}: its weights are stored in {method.name} and become dense while they are read", flush=True)
    where: dict[str, tuple[str, Path]] = {}  # the type of each tensor, and its file
    files = sorted(folder.glob("*.safetensors"))
    if (index := folder / "model.safetensors.index.json").is_file():
        files = [folder / file for file in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    for file in files:
        with safe_open(file, framework="pt") as opened:
            where |= {key: (opened.get_slice(key).get_dtype(), file) for key in opened.keys()}
    plain: dict[str, Any] = {}
    consumed: set[str] = set()
    for key, (dtype, _) in where.items():
        if made := _quantised(key, dtype, where, method, name):
            target, parts = made
            consumed.update(parts.values())
            places = {what: (where[part][1], part) for what, part in parts.items()}
            plain[target] = Stored(partial(_dequantise, places, key, method, name))
    rest = [key for key in where if key not in consumed and not _OF_ACTIVATIONS.fullmatch(key)]
    return plain | {key: Stored(partial(_read, where[key][1], key)) for key in rest}


def _quantised(
    key: str, dtype: str, where: Mapping[str, Any], method: Method, name: str
) -> tuple[str, dict[str, str]] | None:
    """Return the plain name of a quantised tensor and its stored parts; None if it is not quantised."""

    def need(part: str, *names: str) -> dict[str, str]:
        if (found := next((one for one in names if one in where), None)) is None:
            raise ModelUnavailableError(
                f"the weights of {name!r} lack the {part} of {key} ({' or '.join(names[:2])}), without which {dtype} "
                "means nothing; take the complete set of files"
            )
        return {part: found}

    base = key.rpartition(".")[0]
    if method.name == "mxfp4" and key.endswith("_blocks"):
        target = key.removesuffix("_blocks")
        return target, {"weight": key} | need("scale", f"{target}_scales")
    if key.endswith(".weight_packed"):
        if method.given.get("format") != "pack-quantized" or f"{base}.weight_g_idx" in where:
            raise UnsupportedModelError(
                f"{key} of {name!r} is packed in an order of its own; take an unquantised checkpoint"
            )
        parts = need("scale", f"{base}.weight_scale") | need("shape", f"{base}.weight_shape")
        zero = f"{base}.weight_zero_point"
        return f"{base}.weight", {"weight": key} | parts | ({"zero": zero} if zero in where else {})
    names = [one.format(key, base=base) for one in (_SCALES if key.endswith(".weight") else _SCALES[:2])]
    few = dtype.startswith(("F8_E4M3", "F8_E5M2"))
    whole = dtype in ("I8", "U8", "F4") and any(one in where for one in names)
    if not few and not whole:
        return None
    zero = f"{key}_zero_point"
    return key, {"weight": key} | need("scale", *names) | ({"zero": zero} if zero in where else {})


def _read(file: Path, key: str) -> torch.Tensor:
    """Read one tensor."""
    with safe_open(file, framework="pt", backend="pread") as opened:
        return opened.get_tensor(key)


def _dequantise(parts: Mapping[str, tuple[Path, str]], key: str, method: Method, name: str) -> torch.Tensor:
    """Read a quantised tensor and its scale, and return the dequantised tensor."""
    read = {what: _read(*where) for what, where in parts.items()}
    weight, scale = read["weight"], read["scale"]
    if method.name == "mxfp4":
        values = _unpack_e2m1(weight).unflatten(-1, (-1, 32)) if weight.ndim == 3 else _unpack_e2m1(weight)
        values = values * _decode_e8m0(scale).unsqueeze(-1)
        return values.flatten(-2).mT.contiguous()
    if "shape" in read:
        weight = _unpack_integers(weight, method.bits)[..., : int(read["shape"][-1])]
    elif weight.dtype not in _FP8 and method.name != "compressed-tensors":
        weight, method = _unpack_e2m1(weight.view(torch.uint8)), Method(method.name, {"weight_block_size": (1, 32)})
    weight = weight.float()
    if "zero" in read:
        zero = read["zero"]
        zero = _unpack_integers(zero.mT, method.bits).mT[: len(weight)] if zero.dtype == torch.int32 else zero.float()
        weight = weight - _broadcast(zero, weight, method, key, name)
    return weight * _broadcast(scale, weight, method, key, name)


def _broadcast(scale: torch.Tensor, weight: torch.Tensor, method: Method, key: str, name: str) -> torch.Tensor:
    """Broadcast scales to the shape of the weights: one for all, one a row, or one a block."""
    wide = _decode_e8m0(scale) if scale.dtype == torch.uint8 else scale.float()
    if wide.numel() == 1:
        return wide.reshape(())
    wide = wide.unsqueeze(-1) if wide.ndim < weight.ndim else wide
    for side in (-2, -1):
        size, number = weight.shape[side], wide.shape[side]
        if number in (1, size):
            continue
        block = method.block[side] if method.block else 0
        if math.ceil(size / max(1, block)) != number:
            # A group of columns shares a scale, whatever block size the configuration states.
            block = size // number if side == -1 and size % number == 0 and wide.shape[-2] == weight.shape[-2] else 0
        if not block:
            shapes = (" x ".join(map(str, one.shape)) for one in (weight, scale))
            raise UnsupportedModelError(
                "{} of {!r} is {} and its scales are {}, which blocks of {} do not give; take both from one "
                "source".format(key, name, *shapes, " x ".join(map(str, method.block or ("no size",))))
            )
        wide = wide.repeat_interleave(block, side).narrow(side, 0, size)
    return wide


def _decode_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Decode exponents of eight bits (e8m0)."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.to(torch.int32) - 127)


def _unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Unpack numbers of four bits (e2m1), two a byte, the first in the low half."""
    return torch.stack([_E2M1[(packed & 15).long()], _E2M1[(packed >> 4).long()]], dim=-1).flatten(-2)


def _unpack_integers(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack integers packed into 32 bits, the first in the lowest, each offset by half its range."""
    shifts = torch.arange(0, 32 // bits * bits, bits)
    return (((packed.unsqueeze(-1) >> shifts) & (2**bits - 1)) - 2 ** (bits - 1)).flatten(-2)


def _write(stored: Mapping[str, Any], config: PreTrainedConfig, dtype: torch.dtype, folder: Path) -> None:
    """Write a model of plain tensors into a folder, one by one, in the dtype of the loaded model."""
    index = {}
    for number, (key, tensor) in enumerate(stored.items()):
        value = tensor[...]
        value = value.to(dtype) if value.is_floating_point() else value
        temporary_files.check_room(folder, value.nbytes, f"dense weights ({key})")
        index[key] = f"{number}.safetensors"
        save_file({key: value.contiguous()}, folder / index[key], metadata={"format": "pt"})
    temporary_files.write_index(folder, index, config)
