"""Rules of differentiation that autograd lacks: stored slopes of activations, selected rows, merged gates.

**Pointwise slopes.** An activation works entry by entry, so its derivative is one number per entry. Inside `linearised`
it is computed once, and each cotangent is multiplied with it instead of pulled back through every operation.

**Selected rows.** A Jacobian is formed by pulling unit vectors back, and e_i^T W is row i of W: a third of a
block's arithmetic is a product with the identity. Inside `picking_rows` a linear layer inspects its cotangents first:
where none has more than one entry, rows are selected, equal to the product in every digit.

**Merged gates.** A gated MLP has two layers with one input, whose outputs meet entry by entry: h = a(W x) * (V x).
At one token h has the derivative of one layer with the weights M = diag(s) W + diag(t) V, s and t being the slopes by
both outputs. Inside `merging_gates` h is evaluated as that layer. Layers are found by their function: h depends only
on the outputs of layers with one input, and a random cotangent is pulled back to its product with the slopes.

A module with a user's hook or `forward` is left to autograd. Second derivatives, and derivatives by the weights, are
not available for what is evaluated inside.
"""

import inspect
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import activations as of_transformers
from transformers.pytorch_utils import Conv1D

from coupling_lib.blocks.makeup import is_bare

_OF_TORCH = (nn.GELU, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU)
_OF_TRANSFORMERS = tuple(
    each
    for each in vars(of_transformers).values()
    if isinstance(each, type) and issubclass(each, nn.Module) and each.__module__ == of_transformers.__name__
)
# Size of a layer from which its product costs more than inspecting the cotangents.
LEAST_WEIGHTS = 2**18
# Up to `_SLAB_ROWS` rows, a product with weights too large for the cache is computed by slabs of `_SLAB` columns, which
# fit; up to `_FEW_ROWS`, a product with smaller transposed weights runs along their memory.
_SLAB_ROWS, _LARGE, _SLAB, _FEW_ROWS = 384, 2**22, 256, 48
# Where each kind of layer keeps W of y = W x + b. Subclasses (quantised, adapted) compute something else.
_WEIGHTS = {nn.Linear: lambda module: module.weight, Conv1D: lambda module: module.weight.mT}
# Classes covered by the rules, with their forwards. A subclass, or a class whose forward was exchanged, is not covered.
_KNOWN = {kind: kind.forward for kind in (*_OF_TORCH, *_OF_TRANSFORMERS, *_WEIGHTS)}


class Function(torch.autograd.Function):
    """A `torch.autograd.Function` whose signature of `forward` is looked up once: torch inspects it at every call."""

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        cls.forward.__signature__ = inspect.signature(cls.forward)


def linearised(block: nn.Module) -> AbstractContextManager[None]:
    """Store the slopes of a block's activations: for y = a(x), entry by entry, u is pulled back to a'(x) u."""

    def keep(module: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> Tensor | None:
        if not given:
            return None
        with torch.enable_grad():
            point = given[0].detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(module.forward(point).sum(), point)
        return _PulledBack.apply(given[0], y.detach(), slope, torch.mul)

    return hooked(block, _is_activation, keep)


def picking_rows(block: nn.Module) -> AbstractContextManager[None]:
    """Pull rows back through a block's linear layers: for y = W x + b, c e_i is pulled back to c times row i of W."""

    def rows(module: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> Tensor | None:
        return _pulled_by_rows(given[0], y, _WEIGHTS[type(module)](module).detach()) if given else None

    return hooked(block, _is_large, rows)


@contextmanager
def merging_gates(block: nn.Module) -> Generator[None]:
    """Merge linear layers of one input whose outputs meet entry by entry, for one token."""
    made: dict[Any, _LayerCall] = {}

    def keep(module: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> None:
        if given:
            made[y.grad_fn] = _LayerCall(given[0], y, _WEIGHTS[type(module)](module).detach())

    def merge(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        merged = _merged(given[0], made) if given else None
        return None if merged is None else (merged, *given[1:])

    # Entered after `picking_rows`, whose hooks come first and give the layers' outputs new nodes.
    with hooked(block, _is_large, keep), hooked(block, _is_large, merge, before=True):
        yield


@contextmanager
def all_rules(block: nn.Module) -> Generator[None]:
    """Differentiate a block with all rules, entered in their required order."""
    with linearised(block), picking_rows(block), merging_gates(block):
        yield


class _LayerCall(NamedTuple):
    """One call of a linear layer y = W x + b."""

    x: Tensor
    y: Tensor
    W: Tensor


def _merged(h: Tensor, made: Mapping[Any, _LayerCall]) -> Tensor | None:
    """Return h as the output of one layer, if it depends entry by entry on the outputs of several with one input."""
    layers = _sources(h, made) if h.numel() == h.shape[-1] else []
    if len(layers) < 2 or any(one.x is not layers[0].x or one.y.numel() != h.numel() for one in layers):
        return None
    random = torch.randn(h.shape, generator=torch.Generator().manual_seed(0)).to(h)
    slopes, pulled = (
        torch.autograd.grad(h, [one.y for one in layers], u, retain_graph=True) for u in (torch.ones_like(h), random)
    )
    accuracy = 100 * torch.finfo(h.dtype).eps
    for slope, p in zip(slopes, pulled, strict=True):
        if not bool(p.isfinite().all()):  # narrow arithmetic overflowed; the Jacobian's check reports it
            return None
        if not torch.allclose(p.flatten(), (slope * random).flatten(), accuracy, accuracy * float(p.abs().max())):
            return None
    M = slopes[0].reshape(-1, 1) * layers[0].W
    for slope, layer in zip(slopes[1:], layers[1:], strict=True):
        M.addcmul_(slope.reshape(-1, 1), layer.W)
    return _pulled_by_rows(layers[0].x, h, M)


def _sources(h: Tensor, made: Mapping[Any, _LayerCall]) -> list[_LayerCall]:
    """List the linear layers on whose outputs h depends, if it depends on nothing else."""
    todo, seen, found = [h.grad_fn], set(), []
    while todo:
        node = todo.pop()
        if node in made and made[node].y.grad_fn is node:  # not written over since
            found.append(made[node])
        elif node is None or not node.next_functions:
            return []
        else:
            # A source without a node is a constant.
            new = {source for source, _ in node.next_functions if source is not None} - seen
            seen |= new
            todo += new
    return found


@contextmanager
def hooked(
    block: nn.Module, chosen: Callable[[nn.Module], bool], hook: Callable[..., Any], *, before: bool = False
) -> Generator[None]:
    """Hook each chosen module of a block, before or after its forward, unless users modified it."""
    with ExitStack() as hooks:
        for module in filter(chosen, block.modules()):
            if is_bare(module):
                register = module.register_forward_pre_hook if before else module.register_forward_hook
                hooks.enter_context(register(hook))
        yield


def _is_large(module: nn.Module) -> bool:
    return type(module) in _WEIGHTS and _is_known(module) and module.weight.numel() >= LEAST_WEIGHTS


def _is_activation(module: nn.Module) -> bool:
    bare = next(module.parameters(), None) is None and next(module.children(), None) is None
    return type(module) not in _WEIGHTS and _is_known(module) and bare


def _is_known(module: nn.Module) -> bool:
    return _KNOWN.get(type(module)) is type(module).forward


class _PulledBack(Function):
    """Return a layer's output y unchanged, and pull a cotangent u back to `pull(u, constant)`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, constant: Tensor, pull: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        # A copy, because some families overwrite a layer's output in place, and a view of it may not be overwritten.
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.pull = inputs[3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.pull(gradient, *ctx.saved_tensors), None, None, None


def _pulled_by_rows(x: Tensor, y: Tensor, W: Tensor) -> Tensor:
    return _PulledBack.apply(x, y.detach(), W, _TimesWeight.apply)


class TimesConstant(Function):
    """Multiply `x` `(..., g, a)` by constants `C` `(g, a, b)`, all leading dimensions flattened to rows."""

    # Under `torch.vmap` a plain product would repeat the constants; here columns become more rows of one product.

    @staticmethod
    def forward(x: Tensor, C: Tensor) -> Tensor:
        """Compute x C, one product per group."""
        rows = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)
        return torch.bmm(rows, C).transpose(0, 1).reshape(*x.shape[:-1], C.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the constants."""
        ctx.save_for_backward(inputs[1])

    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Pull a cotangent back: a product with the transposed constants."""
        return cls.apply(gradient, ctx.saved_tensors[0].mT), None

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple, x: Tensor, C: Tensor) -> tuple[Tensor, int]:
        """Flatten the batch dimension to further rows."""
        return cls.apply(x.movedim(in_dims[0], 0), C), 0


class _TimesWeight(TimesConstant):
    """Multiply cotangents `g` `(..., out)` by weights `W` `(out, in)`, or select rows of `W`."""

    @staticmethod
    def forward(g: Tensor, W: Tensor) -> Tensor:
        rows = g.reshape(-1, g.shape[-1])
        product = _select_rows(W, rows)
        product = _multiply(rows, W) if product is None else product
        return product.reshape(*g.shape[:-1], W.shape[1])


def _multiply(rows: Tensor, W: Tensor) -> Tensor:
    """Multiply rows by W, by the fastest method where there are few of them."""
    width = math.gcd(W.shape[1], _SLAB)
    if 1 < len(rows) <= _SLAB_ROWS and W.numel() >= _LARGE and width >= _SLAB // 4 and W.device.type == "cpu":
        # A product rearranges its larger factor first, except slabs of it that stay in the cache.
        slabs = W.unflatten(1, (-1, width)).transpose(0, 1)
        return torch.bmm(rows.expand(len(slabs), -1, -1), slabs).transpose(0, 1).flatten(1)
    turned = len(rows) <= _FEW_ROWS and not W.is_contiguous()
    return (W.mT @ rows.mT).mT if turned else rows @ W


def _select_rows(W: Tensor, rows: Tensor) -> Tensor | None:
    """Multiply rows of single entries by W; None where a row has more than one."""
    # Almost every layer's cotangents are dense, as the first of them shows.
    if not len(rows) or int(rows[0].count_nonzero()) > 1:
        return None
    start = int(rows[0].argmax())
    units = rows.diagonal(start)
    if len(units) == len(rows) and bool((units == 1).all()) and int(rows.count_nonzero()) == len(rows):
        return W[start : start + len(rows)]  # a batch of neighbouring unit vectors: not even a copy
    row, column = rows.nonzero(as_tuple=True)
    if not bool((row[1:] > row[:-1]).all()):
        return None
    # Along its memory: transposing a matrix while copying takes three times as long.
    taken = W.index_select(0, column) if W.is_contiguous() else W.mT.index_select(1, column).mT
    taken = taken * rows[row, column, None]
    return taken if len(row) == len(rows) else W.new_zeros(len(rows), W.shape[1]).index_copy_(0, row, taken)
