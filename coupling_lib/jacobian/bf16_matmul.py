"""Matrix products of 16-bit numbers, accumulated in float32 and rounded once, as a GPU's matrix units do."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten
_PRODUCTS = (
    *(_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.baddbmm.default),
    *(_aten.mv.default, _aten.linear.default),
)


class RoundedProducts(TorchDispatchMode):
    """Mode that computes products of bfloat16 and float16 matrices in float32 and rounds the result to their dtype."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        kinds = {part.dtype for part in args if isinstance(part, Tensor)} if func in _PRODUCTS else set()
        narrow = kinds & {torch.bfloat16, torch.float16}
        if len(kinds) > 1 or not narrow:
            return func(*args, **kwargs)
        return func(*tree_map_only(Tensor, Tensor.float, args), **kwargs).to(*narrow)
