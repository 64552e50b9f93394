"""Matrices of a given spectrum, in float64."""

import torch
from random_numbers import normal


def orthogonal(d: int, seed: int) -> torch.Tensor:
    return torch.linalg.qr(normal(seed, d, d))[0]


def with_spectrum(S: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A matrix of given singular values."""
    return (orthogonal(len(S), seed) * S.double()) @ orthogonal(len(S), seed + 100).T


def decaying(d: int, power: float = 0.5, ratio: float | None = None) -> torch.Tensor:
    """Singular values i^(-power), with s_1 raised until s_1 / s_50 is `ratio`."""
    S = torch.arange(1, d + 1, dtype=torch.float64) ** -power
    if ratio is not None:
        S[0] = ratio * S[49]
    return S
