"""Slow, independent references: plain PyTorch hooks, whole forward passes, one derivative at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel


def brute_force_jacobian(
    hf: PreTrainedModel, block: nn.Module, inputs: dict, token_in: int, token_out: int, ends: tuple[str, ...] = (),
    every: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Differentiate one block inside a whole forward pass of the model, row by row.

    Plain forward hooks put a leaf in the place of the block's input and read its output; nothing of the
    library is used. Returns every row, or one of some, of the residual Jacobian (identity subtracted where the tokens
    agree); or, where `ends` names layers inside the block, the derivative of the sum of what these give.
    """
    leaf, seen = [], []

    def enter(module, args, kwargs):
        stream = args[0] if args else kwargs["hidden_states"]
        leaf.append(stream.detach().clone().requires_grad_(True))
        if args:
            return (leaf[0], *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": leaf[0]}

    def leave(module, args, kwargs, output):
        seen.append((output if isinstance(output, torch.Tensor) else output[0]).reshape(leaf[0].shape))

    read = [block.get_submodule(name) for name in ends] or [block]
    handles = [block.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)]
    handles += [module.register_forward_hook(leave, with_kwargs=True) for module in read]
    try:
        with torch.enable_grad():
            hf(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    J = rows(sum(seen)[0, token_out, ::every], leaf[0])[:, token_in]
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
        seen = []

        def enter(module, args, kwargs):
            stream = (args[0] if args else kwargs["hidden_states"]).clone()
            stream[0, token] += by * stream[0, token].norm() * direction
            return ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})

        def leave(module, args, kwargs, output):
            seen.append((output if isinstance(output, torch.Tensor) else output[0]).reshape(-1, len(direction))[token])

        handles = [block.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)]
        handles += [block.register_forward_hook(leave, with_kwargs=True)]
        try:
            hf(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        return seen[0]

    size = brute_force_state(hf, block, inputs, token).norm()
    wide, narrow = ((moved(h) - moved(-h)) / (2 * h * size) for h in (step, step / 2))
    return (4 * narrow - wide) / 3


@torch.no_grad()
def brute_force_state(hf: PreTrainedModel, block: nn.Module, inputs: dict, token: int) -> torch.Tensor:
    """Read the state of one token before a block."""
    seen = []
    handle = block.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args[0] if args else kwargs["hidden_states"])[0, token].clone()),
        with_kwargs=True,
    )
    try:
        hf(**inputs)
    finally:
        handle.remove()
    return seen[0]


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
