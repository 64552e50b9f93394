"""Random numbers in float64, and means of draws against what is expected of them."""

import torch
from torch import Tensor


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def check_mean(draws: Tensor, expected: Tensor | float, its_error: Tensor | float = 0.0, errors: float = 4) -> None:
    """The mean of draws `(n, ...)` lies within so many standard errors, its own and that of what is expected."""
    own = draws.std(dim=0) / len(draws) ** 0.5
    distance = (draws.mean(dim=0) - expected).abs() / torch.hypot(own, torch.as_tensor(its_error).to(own))
    assert float(distance.max()) < errors
