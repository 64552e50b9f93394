"""Slow, independent references: plain PyTorch hooks, whole forward passes, one derivative at a time."""

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel


def outputs(hf: PreTrainedModel, inputs: dict, block: nn.Module, change: Callable, read: list[nn.Module]) -> list:
    """Run a model with a block's input stream replaced by a change of it, and return what some modules give."""
    seen = []

    def enter(module, args, kwargs):
        stream = change((args[0] if args else kwargs["hidden_states"]).detach().clone())
        return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})

    def leave(module, args, output):
        seen.append(output if isinstance(output, torch.Tensor) else output[0])

    with ExitStack() as hooks:
        hooks.callback(block.register_forward_pre_hook(enter, prepend=True, with_kwargs=True).remove)
        for module in read:
            hooks.callback(module.register_forward_hook(leave).remove)
        hf(**inputs)
    return seen


def as_leaf(stream: torch.Tensor, leaves: list[torch.Tensor]) -> torch.Tensor:
    """Keep a stream as a leaf, and return the first that was kept."""
    leaves.append(stream.requires_grad_(True))
    return leaves[0]


def brute_force_jacobian(
    hf: PreTrainedModel, block: nn.Module, inputs: dict, token_in: int, token_out: int, ends: tuple[str, ...] = (),
    every: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Differentiate one block inside a whole forward pass of the model, row by row.

    Nothing of the library is used. Returns every row, or one of some, of the residual Jacobian (identity subtracted
    where the tokens agree); or, where `ends` names layers inside the block, the derivative of the sum of what these
    give.
    """
    leaf, read = [], [block.get_submodule(name) for name in ends] or [block]
    with torch.enable_grad():
        y = sum(x.reshape(leaf[0].shape) for x in outputs(hf, inputs, block, lambda x: as_leaf(x, leaf), read))
    J = rows(y[0, token_out, ::every], leaf[0])[:, token_in]
    return J - torch.eye(J.shape[1], dtype=J.dtype)[::every] if token_in == token_out and not ends else J


@torch.no_grad()
def central_difference(
    hf: PreTrainedModel, block: nn.Module, inputs: dict, token: int, direction: torch.Tensor, step: float
) -> torch.Tensor:
    """Differentiate one block along a direction at one token, inside whole forward passes, without autograd.

    Central differences with two steps, extrapolated: the error is of the fourth power of the step, which is relative to
    the token's state. Returns J v of the whole block, skip path included.
    """

    def moved(by: float) -> torch.Tensor:
        def change(stream):
            stream[0, token] += by * stream[0, token].norm() * direction
            return stream

        return outputs(hf, inputs, block, change, [block])[0].reshape(-1, len(direction))[token]

    size = brute_force_state(hf, block, inputs, token).norm()
    wide, narrow = ((moved(h) - moved(-h)) / (2 * h * size) for h in (step, step / 2))
    return (4 * narrow - wide) / 3


@torch.no_grad()
def brute_force_state(hf: PreTrainedModel, block: nn.Module, inputs: dict, token: int) -> torch.Tensor:
    """Read the state of one token before a block."""
    seen = []
    outputs(hf, inputs, block, lambda x: as_leaf(x, seen), [])
    return seen[0][0, token]


def rows(y: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """Differentiate each entry of `y` `(d,)` by a stream `(1, n, d)`, one at a time: `(d, n, d)`."""
    return torch.stack([torch.autograd.grad(value, stream, retain_graph=True)[0][0] for value in y])


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative Frobenius distance."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def dense_asymmetry(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """The mean of c(A B') and c(A' B), from the matrices themselves: what the regulariser's probes estimate."""
    products = (A @ B.mT, A.mT @ B)
    return torch.stack([(N - N.mT).square().sum() / (4 * N.square().sum()) for N in products]).mean()


def coupling(J: np.ndarray, other: np.ndarray, k: int) -> np.ndarray:
    """The coupling matrix of a Jacobian with the k strongest singular vectors of another one."""
    U, _, Vt = np.linalg.svd(other)
    return U[:, :k].T @ J @ Vt[:k].T


def miscoupling(A: np.ndarray) -> float:
    """What lies beside the diagonal, as a share."""
    return float(np.linalg.norm(A - np.diag(np.diag(A))) / np.linalg.norm(A))
