"""Attention that can be told to hold all tokens fixed but a few.

transformers lets a function be registered under a name and chosen as a model's attention. The one below
computes exactly what the family's own plain attention computes. During a trace it also records every
layer's keys and values; later, within `frozen`, it answers the queries of a few chosen tokens against
those recorded constants, with the chosen tokens' own keys and values put into their places. The work per
query does not grow with the prompt beyond the products with the keys themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.utils import logging

from coupling_lib.functions import Function

NAME = "coupling_lib"


class KeysValues(NamedTuple):
    """Keys and values of one attention layer, for one prompt or for T.

    Args:
        keys: shape `(1 or T, heads, n, head width)`, rotary positions applied, heads not yet repeated.
        values: likewise.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def with_tokens(self, own: KeysValues, positions: torch.Tensor) -> KeysValues:
        """Put the chosen tokens' own keys and values into their places among the constants.

        Args:
            own: those of the chosen tokens, shape `(T, heads, s, head width)`.
            positions: where they belong, shape `(T, s)`. The constants are of one prompt or of T.

        Returns:
            keys and values of all tokens, shape `(T, heads, n, head width)`.
        """

        def place(constants: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            index = positions[:, None, :, None].expand(new.shape)
            return constants.to(new.dtype).expand(len(new), -1, -1, -1).scatter(2, index, new)

        return KeysValues(place(self.keys, own.keys), place(self.values, own.values))


# What the registered function consults: transformers calls it with a module and tensors, nothing else.
_record: dict[nn.Module, KeysValues] | None = None
_constants: dict[nn.Module, tuple[KeysValues, torch.Tensor, torch.Tensor | None]] = {}


@contextmanager
def recording() -> Generator[dict[nn.Module, KeysValues]]:
    """Record the keys and values of every attention layer that runs inside the context.

    Yields:
        a dictionary that fills up, attention module to its keys and values.
    """
    global _record
    _record = {}
    try:
        yield _record
    finally:
        _record = None


@contextmanager
def frozen(
    module: nn.Module, constants: KeysValues, positions: torch.Tensor, padding: torch.Tensor | None = None
) -> Generator[None]:
    """Let one attention layer answer a few tokens' queries against constants, inside the context.

    Args:
        module: the attention layer.
        constants: its recorded keys and values.
        positions: the positions of the tokens that the layer is called with, shape `(T, s)`.
        padding: what is added to the scores of each key, shape `(T, 1, 1, n)`, where the constants are of T prompts:
            0 for a prompt's own tokens, minus infinity after its end.

    Yields:
        nothing.
    """
    _constants[module] = (constants, positions, padding)
    try:
        yield
    finally:
        del _constants[module]


def use(hf: PreTrainedModel) -> None:
    """Make a model call the registered attention, where its family can.

    Args:
        hf: the model; a family with an attention of its own keeps it.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # a family that keeps its own attention says so in a warning
    try:
        hf.set_attn_implementation(NAME)
    except (ValueError, KeyError, NotImplementedError):
        hf.set_attn_implementation("eager")
    finally:
        logging.set_verbosity(verbosity)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend as the family's own plain attention does; see the module's text."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    own = KeysValues(key, value)
    if module not in _constants:
        if _record is not None:
            _record[module] = KeysValues(_alone(key.detach()), _alone(value.detach()))
        return eager(module, query, key, value, attention_mask, **options)
    constants, positions, padding = _constants[module]
    if padding is not None:
        padding = padding.to(query.dtype)
        attention_mask = padding if attention_mask is None else attention_mask + padding
    # Soft-capped scores and attention sinks are the family's own business.
    special = options.get("softcap") is not None or options.get("s_aux") is not None or hasattr(module, "sinks")
    if special or options.get("scaling") is None:
        everyone = constants.with_tokens(own, positions)
        return eager(module, query, everyone.keys, everyone.values, attention_mask, **options)
    return _attend_to_constants(query, own, constants, positions, attention_mask, options["scaling"]), None


def _alone(x: torch.Tensor) -> torch.Tensor:
    """Copy what is a part of something larger, such as one product for queries, keys and values, which can then go."""
    return x.clone() if x.untyped_storage().nbytes() > x.nbytes else x


class _RowsTimesConstant(Function):
    """Multiply `x` `(..., g, r, a)` by constants `C` `(g, a, b)`, all leading dimensions folded into rows.

    Under `torch.vmap` a plain product would first repeat the constants for every column of the Jacobian; here
    the columns become more rows of one matrix product.
    """

    @staticmethod
    def forward(x: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
        lead, (g, r, a) = x.shape[:-3], x.shape[-3:]
        rows = x.reshape(-1, g, r, a).transpose(0, 1).reshape(g, -1, a)
        return torch.bmm(rows, C).reshape(g, -1, r, C.shape[-1]).transpose(0, 1).reshape(*lead, g, r, C.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (C,) = ctx.saved_tensors
        return _RowsTimesConstant.apply(gradient, C.mT), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: torch.Tensor, C: torch.Tensor) -> tuple[torch.Tensor, int]:
        return _RowsTimesConstant.apply(x.movedim(in_dims[0], 0), C), 0


def _times_constants(x: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """Multiply `x` `(T, g, r, a)` by constants `(1, g, a, b)` of one prompt, or `(T, g, a, b)` of as many as rows."""
    if len(C) == 1:
        return _RowsTimesConstant.apply(x, C[0])
    return _RowsTimesConstant.apply(x.flatten(0, 1), C.flatten(0, 1)).unflatten(0, C.shape[:2])


def _attend_to_constants(
    query: torch.Tensor,
    own: KeysValues,
    constants: KeysValues,
    positions: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """Attend with the constants kept out of the graph."""
    # The constants at the chosen positions are masked out, and the chosen tokens' own keys and values join
    # as further columns: nothing is ever written into the constants, once per column of the Jacobian.
    T, heads, s, width = query.shape
    groups = own.keys.shape[1]
    keys, values = (part.to(query.dtype) for part in constants)
    n = keys.shape[2]
    q = (query * scaling).reshape(T, groups, heads // groups * s, width)
    mask = query.new_zeros(1, 1, 1, 1) if mask is None else mask
    mask = mask.expand(T, mask.shape[1], s, n)
    index = positions[:, None, None, :].expand(*mask.shape[:3], s)
    theirs = _times_constants(q, keys.mT).reshape(T, heads, s, n) + mask.scatter(3, index, -torch.inf)
    ours = (q.unsqueeze(3) * own.keys.unsqueeze(2)).sum(-1).reshape(T, heads, s, s) + mask.gather(3, index)
    weights = torch.cat([theirs, ours], dim=-1).softmax(-1)
    theirs, ours = (part.reshape(*q.shape[:3], -1) for part in weights.split([n, s], dim=-1))
    out = _times_constants(theirs, values) + (ours.unsqueeze(-1) * own.values.unsqueeze(2)).sum(3)
    return out.reshape(T, heads, s, -1).transpose(1, 2)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, eager_mask)
