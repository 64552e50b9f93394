r"""Central differences of a block's own forward, compared with its derivative by autograd.

A part without a graph, a `backward` of its own, a straight-through rounding, a hook on gradients: each changes
derivatives but no value. A block's stream is moved along a random direction $v$, by two steps,

$$D = \tfrac43 D_{h/2} - \tfrac13 D_h, \qquad D_h = \frac{f(x + h v) - f(x - h v)}{2 h},$$

and $u^\top D$ is compared with $(J^\top u)^\top v$ for a random $u$, over all tokens at once, in float64. A kink within
the step shows in $f(x + h v) + f(x - h v) - 2 f(x)$, and a smaller step in another direction is tried.
"""

import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from coupling_lib.blocks import attention
from coupling_lib.blocks.call import BlockCall, on_tensors
from coupling_lib.blocks.free_memory import available
from coupling_lib.errors import UnsupportedModelError

# Step lengths of the three attempts, relative to each token's norm; and the tolerance between the two derivatives.
_STEPS = {torch.float64: (1e-5, 1e-7, 1e-9), torch.float32: (1e-2, 3e-3, 1e-3)}
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-2}
# A kink changes the central difference by half of its part in the second difference.
_KINK_FACTOR = 10
# Multiple of the output's rounding error, divided by the step, that is ignored in a difference.
_ROUNDING = 30
# Bytes always allowed for weights in float64, and the share of free memory allowed beyond that.
_ALWAYS, _SHARE = 2**28, 0.25


class Comparison(NamedTuple):
    """Relative error of a derivative against central differences, and the relative size of kinks in these."""

    error: float
    kink: float
    dtype: torch.dtype

    @property
    def agrees(self) -> bool:
        """True if the two derivatives agree up to rounding."""
        return self.error <= _TOLERANCE[self.dtype]

    @property
    def differs(self) -> bool:
        """True if the difference is too large for a kink."""
        return self.error > max(_TOLERANCE[self.dtype], _KINK_FACTOR * self.kink)


def check(call: BlockCall, block: nn.Module, name: str, label: str) -> None:
    """Refuse a block whose derivative by autograd is not the derivative of its forward with the attention `name`."""
    for attempt in range(3):
        found = compare(call, block, name, attempt)
        if found.agrees:
            return
        if found.differs:
            raise UnsupportedModelError(
                f"{label}: autograd's derivative is not the derivative of what it computes, {found.error:.1%} away "
                "from central differences of its forward; a part of it runs under no_grad, has a backward of its own, "
                "passes a rounding straight through, or carries a hook on gradients: take that out, and load it again"
            )
    warnings.warn(
        f"{label}: whether autograd's derivative is that of what it computes is not known; along three directions the "
        f"block has kinks or jumps within {found.kink:.1e} of its central difference",
        RuntimeWarning,
        stacklevel=2,
    )


def compare(call: BlockCall, block: nn.Module, name: str, attempt: int = 0) -> Comparison:
    """Compare autograd's derivative of a block with central differences, along the direction of one attempt."""
    with attention.using(block, name):
        if _fits(block):
            try:
                found = _compare_along(call, block, attempt, torch.float64)
                if found.error < float("inf"):
                    return found
            except Exception:  # no kernel in float64, or compiled for float32
                pass
        return _compare_along(call, block, attempt, torch.float32)


def _fits(block: nn.Module) -> bool:
    """Return whether memory suffices for a block's weights in float64."""
    weights = list(block.parameters())
    size = 8 * sum(weight.numel() for weight in weights)
    return size <= _ALWAYS or size <= _SHARE * available(weights[0].device)


def _compare_along(call: BlockCall, block: nn.Module, attempt: int, dtype: torch.dtype) -> Comparison:
    """Compare the two derivatives along one direction, in one number format."""
    generator, x = torch.Generator().manual_seed(attempt), call.input.to(dtype)
    v, u = (torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) for _ in range(2))
    v *= x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5
    h = _STEPS[dtype][attempt]
    with _Float64Mode() if dtype == torch.float64 else nullcontext():
        replay = partial(call.replay, block)
        with torch.enable_grad():
            leaf = x.clone().requires_grad_(True)
            y = replay(leaf.clone())  # some families overwrite their input
            row = -u
            if y.requires_grad:
                row = torch.autograd.grad(y, leaf, u, materialize_grads=True)[0] - u
        with torch.no_grad():  # a block may compute something else without a graph
            y = replay(x.clone())
            differences = []
            for step in (h / 2, h):
                there, back = x + step * v, x - step * v
                far, near = replay(there.clone()), replay(back.clone())
                # Of the block minus the identity, by the step as rounded in the stream's number format.
                differences.append(((far - near) - (there - back)) / (2 * step))
            bend = (far + near - 2 * y) / h
    D = (4 * differences[0] - differences[1]) / 3
    found, wanted = float((row * v).sum()), float((u * D).sum())
    size = max(float(D.norm()), abs(found), torch.finfo(dtype).tiny)
    rounding = _ROUNDING * torch.finfo(dtype).eps * float(y.norm()) / h
    return Comparison(max(0.0, abs(found - wanted) - rounding) / size, float(bend.norm()) / size, dtype)


class _Float64Mode(TorchFunctionMode):
    """Mode that computes everything in float64: weights, constants and casts are widened where they are used."""

    # The block itself runs, not a copy. Half precision that its own code asks for is a rounding, and stays one.

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        called, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if called == "__set__":
            return func(*args, **kwargs)
        # The target of a write keeps its dtype.
        kept = 1 if called == "__setitem__" or (called.endswith("_") and not called.endswith("__")) else 0
        args = (*args[:kept], *map(self._widened, args[kept:]))
        kwargs = {name: value if name == "out" else self._widened(value) for name, value in kwargs.items()}
        found = (Tensor.double if func is Tensor.float else func)(*args, **kwargs)
        new = isinstance(found, Tensor) and found.dtype == torch.float32 and not kept and "out" not in kwargs
        return found.double() if new else found

    def _widened(self, value: Any) -> Any:
        """Widen a tensor, those in a list, or the name of a number format."""
        if value is torch.float32:
            return torch.float64
        return on_tensors(self._wide, value) if isinstance(value, Tensor | tuple | list) else value

    def _wide(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dtype == torch.float64:
            return tensor
        if not isinstance(tensor, nn.Parameter):
            return tensor.double()
        if id(tensor) not in self.weights:
            self.weights[id(tensor)] = (tensor, tensor.detach().double())
        return self.weights[id(tensor)][1]
