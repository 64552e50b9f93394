"""Float32 products out of bfloat16 ones, for blocks whose weights are bfloat16 anyway.

A float32 number is the sum of three bfloat16 numbers to its last bit or nearly. Where the other factor is bfloat16
as stored, x W = x_1 W + x_2 W + x_3 W costs three products of the kind that GPUs do fastest, summed in float32, and
no float32 copy of the weights is needed.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from coupling_lib.blocks import storage
from coupling_lib.blocks.blockmap import token_map
from coupling_lib.blocks.call import BlockCall

# Cotangents pulled back at once.
_CHUNK = 1024


def pieces(x: Tensor) -> Tensor:
    """Split float32 numbers into three bfloat16 numbers each."""
    parts, rest = [], x
    for _ in range(3):
        parts.append(rest.to(torch.bfloat16))
        rest = rest - parts[-1].float()
    return torch.stack(parts)


def product(x: Tensor, W: Tensor) -> Tensor:
    """Multiply float32 rows with a bfloat16 matrix through three bfloat16 products, summed in float32."""
    rows = pieces(x.reshape(-1, x.shape[-1]))
    flat = rows.reshape(-1, x.shape[-1])
    if flat.is_cuda:
        out = torch.mm(flat, W, out_dtype=torch.float32)
    else:
        # The CPU has no bfloat16 product with a float32 result; widening the factors gives the same numbers.
        out = flat.float() @ W.float()
    return out.reshape(3, -1, W.shape[1]).sum(0).reshape(*x.shape[:-1], W.shape[1])


class _Product(torch.autograd.Function):
    """`product`, differentiable by x, with the same kind of product on the way back."""

    @staticmethod
    def forward(x: Tensor, W: Tensor) -> Tensor:
        return product(x, W)

    @staticmethod
    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (W,) = ctx.saved_tensors
        return _Product.apply(gradient, W.mT), None

    @staticmethod
    def vmap(info: object, in_dims: tuple, x: Tensor, W: Tensor) -> tuple[Tensor, int]:
        return _Product.apply(x.movedim(in_dims[0], 0), W), 0


class SplitLinear(nn.Module):
    """A linear layer whose products are split."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        # Plain attributes: casting the module to float32 leaves them as they are.
        self.matrix = linear.weight.data.mT
        self.shift = None if linear.bias is None else linear.bias.data.float()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        y = _Product.apply(x, self.matrix)
        return y if self.shift is None else y + self.shift


def split_copy(block: nn.Module) -> nn.Module:
    """Return a block that computes in float32 with split products."""
    memo: dict[int, object] = {id(m): SplitLinear(m) for m in block.modules() if isinstance(m, nn.Linear)}
    # A traced module carries the tracer's `forward`; the copy runs its class's own.
    memo |= {id(m.__dict__["forward"]): None for m in block.modules() if "forward" in m.__dict__}
    duplicate = copy.deepcopy(block, memo)
    for module in duplicate.modules():
        module.__dict__.pop("forward", None)
    return duplicate.float().requires_grad_(False)


def split_jacobian(call: BlockCall, block: nn.Module, token: int) -> Tensor:
    """Form J_tt of one block with split products."""
    return _jacobian(call, split_copy(block), token, torch.float32)


def double_jacobian(call: BlockCall, block: nn.Module, token: int) -> Tensor:
    """Form J_tt of one block in float64, as the reference."""
    return _jacobian(call, storage.dense_copy(block, torch.float64), token, torch.float64)


def _jacobian(call: BlockCall, block: nn.Module, token: int, dtype: torch.dtype) -> Tensor:
    x = call.input[0, token].to(dtype)
    step = token_map(call, block, "attention", torch.tensor([[token]], device=x.device))
    _, pull = torch.func.vjp(lambda x: step(x[None, None])[0, 0], x)
    identity = torch.eye(len(x), dtype=dtype, device=x.device)
    return torch.vmap(lambda cotangent: pull(cotangent)[0], chunk_size=_CHUNK)(identity) - identity
