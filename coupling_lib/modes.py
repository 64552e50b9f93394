"""Torch's computing modes, which belong to the caller: those that would change a result are left or refused."""

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch.utils.checkpoint import CheckpointError

from coupling_lib.errors import UnsupportedModelError, UntrustworthyResultError

P, T = ParamSpec("P"), TypeVar("T")
# While a block runs, its modules carry hooks and its settings name another attention: one thread at a time may do so.
_LOCK = threading.RLock()


@contextmanager
def differentiating() -> Generator[None]:
    """Record graphs inside the context, also within `torch.no_grad()` and `torch.inference_mode()`."""
    with torch.inference_mode(False), torch.enable_grad():
        try:
            yield
        except CheckpointError:
            raise UnsupportedModelError(
                "a block runs a part of itself under torch.utils.checkpoint, which cannot be recomputed for many rows "
                "at once; switch checkpointing off, which saves nothing in evaluation"
            ) from None


def exclusive(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that runs a model's modules: one thread at a time, outside of inference mode."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with _LOCK, torch.inference_mode(False), _slow_path():
            return function(*args, **kwargs)

    return alone


@contextmanager
def _slow_path() -> Generator[None]:
    """Switch off what torch runs in place of an `nn.TransformerEncoderLayer` where nothing is recorded."""
    # It rounds otherwise, and is left as soon as a hook stands on the layer: a pass would differ from the next.
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def refuse_narrow() -> None:
    """Refuse to compute where torch itself would round results."""
    if (dtype := torch.get_default_dtype()).itemsize < torch.float32.itemsize:
        raise UntrustworthyResultError(
            f"torch's default dtype is {dtype}, in which Jacobians hold three digits or fewer; "
            "call torch.set_default_dtype(torch.float32) first, and choose the weights' precision in load_model"
        )
    if (products := torch.get_float32_matmul_precision()) != "highest":
        raise UntrustworthyResultError(
            f"torch's float32 products are set to {products!r}, which may round them to TF32 or bfloat16; "
            "call torch.set_float32_matmul_precision('highest') before measuring, and set it back afterwards"
        )
    refuse_autocast()


def refuse_autocast() -> None:
    """Refuse to compute where torch rounds products to half precision."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            raise UntrustworthyResultError(
                f"torch.autocast is on for {device!r} and rounds products to {torch.get_autocast_dtype(device)}; "
                "measure outside of it (or under torch.autocast(..., enabled=False)), so that Jacobians are formed in "
                "float32"
            )
