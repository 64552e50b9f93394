"""What the library's own differentiable operations have in common."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class Function(torch.autograd.Function):
    """A `torch.autograd.Function` whose `forward` has its signature looked up once."""

    # torch asks for it at every call. In a narrow model, where a call is a product of a few rows, asking takes longer
    # than computing.

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        cls.forward.__signature__ = inspect.signature(cls.forward)
