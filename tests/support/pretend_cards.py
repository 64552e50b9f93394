"""Two cards on a machine that has none: tensors that say on which card they lie, and refuse to meet another card's.

Their numbers are held and computed on the CPU. The cards are called `lazy:0` and `lazy:1`, after a kind of device that
torch knows on every machine and whose derivatives it computes in the calling thread.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._lazy.ts_backend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from coupling_lib.blocks import placing as places
from coupling_lib.blocks import weight_memory

CARDS = [torch.device("lazy", 0), torch.device("lazy", 1)]
_aten = torch.ops.aten
# Operations that accept tensors of other devices: copies, and indices, which may lie on the CPU.
_COPIES, _INDEXED = {_aten._to_copy.default, _aten.copy_.default}, {_aten.index.Tensor, _aten.index_put_.default}


class Lying(torch.Tensor):
    """A tensor on a card."""

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device) -> "Lying":
        like = dict(strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=device)
        return torch.Tensor._make_wrapper_subclass(cls, held.size(), requires_grad=held.requires_grad, **like)

    def __init__(self, held: torch.Tensor, device: torch.device) -> None:
        self.held = held.detach()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> list:
        return self.held.tolist()

    def data_ptr(self) -> int:
        return self.held.data_ptr()


class _Cards(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU what lies on one card, and label the result with that card."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    devices = {x.device for x in tensors if x.ndim or isinstance(x, Lying)}  # a number on the CPU goes anywhere
    if func in _COPIES:
        devices = {tensors[0].device}
    elif func in _INDEXED:
        devices = {tensors[0].device} | (devices - {torch.device("cpu")})
    if len(devices) > 1:
        raise RuntimeError(f"{func} met tensors on {', '.join(sorted(map(str, devices)))}")
    device = torch.device(kwargs.get("device") or next(iter(devices), "cpu"))
    if device in CARDS and kwargs.get("device") is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    elif device.type == "cpu" and "device" in kwargs:
        kwargs = kwargs | {"device": device}
    given, options = tree_map(lambda x: x.held if isinstance(x, Lying) else x, (args, kwargs))
    written = {id(x.held): x for x in tensors if isinstance(x, Lying)}  # in place, the result is the very tensor
    if func is _aten._local_scalar_dense.default or device not in CARDS:
        return func(*given, **options)

    def placed(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or id(x) in written:
            return written.get(id(x), x)
        return Lying(x, device)

    return tree_map(placed, func(*given, **options))


@contextmanager
def two_cards(monkeypatch: Any, free: int = 10**9) -> Generator[None]:
    """Make `load_model` see two cards, inside the context."""
    _started()
    monkeypatch.setattr(places, "devices", lambda device: CARDS if device in (None, "auto") else [torch.device(device)])
    monkeypatch.setattr(weight_memory, "available", lambda device: free)
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # what another thread makes would not be on these cards
    before = torch._C._only_lift_cpu_tensors(), torch.__future__.get_swap_module_params_on_conversion()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with _Cards():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before[0])
        torch.__future__.set_swap_module_params_on_conversion(before[1])


@cache
def _started() -> None:
    torch._lazy.ts_backend.init()
