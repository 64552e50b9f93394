"""Routing of experts: recorded in the model's own pass, held fixed while the block is differentiated.

A mixture of experts chooses some of them for each token, by the largest of its gates. The choice is a step function of
the state, with a derivative of zero almost everywhere; what is differentiated are the experts that the model's own pass
took and the weights of their gates. A copy of the block in another number format, or a token evaluated alone, may rank
two gates the other way round; with the choice held it is the same map in every precision. The same holds for attention
that chooses the tokens it looks at.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CHOOSE = (torch.topk, Tensor.topk)


class Noting(TorchFunctionMode):
    """Within it, what `topk` chooses is noted for the block that runs, in the order of the calls."""

    def __init__(self, running: Callable[[], int | None]):
        super().__init__()
        self.running = running
        self.chosen: dict[int, list[Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _CHOOSE and (number := self.running()) is not None:
            self.chosen.setdefault(number, []).append(found[1].detach())
        return found


class Held(TorchFunctionMode):
    """Within it, `topk` chooses what was chosen before, call by call."""

    def __init__(self, chosen: Sequence[Tensor]):
        super().__init__()
        self.left = list(chosen)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func not in _CHOOSE or not self.left:
            return func(*args, **kwargs)
        scores, index = args[0] if args else kwargs["input"], self.left.pop(0)
        # One row for each token, whether tokens have a dimension of their own or not.
        index = index.reshape(*scores.shape[:-1], index.shape[-1])
        return torch.return_types.topk((scores.gather(-1, index), index))


def rows(chosen: Tensor, positions: Tensor, n: int) -> Tensor:
    """Keep, of what was chosen for n tokens, the rows of those at `positions` `(T, s)`."""
    return chosen.reshape(n, -1, chosen.shape[-1])[positions.flatten()].reshape(-1, chosen.shape[-1])
