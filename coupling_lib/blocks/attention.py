"""Frozen attention: a few tokens are differentiated, all others held fixed.

The function registered below with transformers computes the family's own plain attention. During a trace
it also records every layer's keys and values; within `frozen` it evaluates the queries of a few tokens against those
constants, with the tokens' own keys and values in their places. A cotangent's cost does not grow with the prompt.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from coupling_lib.blocks.rules import Function, TimesConstant

NAME = "coupling_lib"
# Attribute in which a configuration keeps the name of its attention implementation.
SETTING = "_attn_implementation_internal"
# Maximum number of entries of an intermediate tensor of attention, unless one token's has more.
_LARGEST = 2**22


class KeysValues(NamedTuple):
    """Keys and values of one attention layer."""

    keys: Tensor
    values: Tensor

    def with_tokens(self, own: "KeysValues", positions: Tensor) -> "KeysValues":
        """Insert the chosen tokens' own keys and values among the constants."""
        index, n = positions[:, None, :, None], len(own.keys)
        return KeysValues(
            *(
                constants.to(new.dtype).expand(n, -1, -1, -1).scatter(2, index.expand(new.shape), new)
                for constants, new in zip(self, own, strict=True)
            )
        )


# State of the registered function, which transformers calls with a module and tensors, nothing else.
_record: dict[nn.Module, KeysValues] | None = None
_constants: dict[nn.Module, tuple[KeysValues, Tensor]] = {}


@contextmanager
def recording() -> Generator[dict[nn.Module, KeysValues]]:
    """Record the keys and values of every attention layer that runs inside the context."""
    global _record
    _record = {}
    try:
        yield _record
    finally:
        _record = None


@contextmanager
def frozen(module: nn.Module, constants: KeysValues, positions: Tensor) -> Generator[None]:
    """Evaluate one attention layer for a few tokens' queries against constant keys and values, inside the context."""
    _constants[module] = (constants, positions)
    try:
        yield
    finally:
        del _constants[module]


def current(hf: PreTrainedModel) -> str:
    """Return the name of the attention that a model calls."""
    return hf.config.get_text_config()._attn_implementation or "eager"


def differentiable() -> AbstractContextManager[None]:
    """Replace fused attention by products that can be differentiated twice, inside the context."""
    return sdpa_kernel(SDPBackend.MATH)


@contextmanager
def using(block: nn.Module, name: str) -> Generator[None]:
    """Make a block call the attention of this name, inside the context."""
    configs = {id(config): config for part in block.modules() if (config := getattr(part, "config", None)) is not None}
    before = [(config, config._attn_implementation) for config in configs.values() if hasattr(config, SETTING)]
    for config, _ in before:
        setattr(config, SETTING, name)
    try:
        with differentiable():
            yield
    finally:
        for config, old in before:
            setattr(config, SETTING, old)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute the family's own plain attention, over all tokens or over constants."""
    eager, own = _eager(module), KeysValues(key, value)
    if module not in _constants:
        if _record is not None:
            # Clones of views into a larger tensor, such as one product for queries, keys and values.
            alone = (
                x.clone() if x.untyped_storage().nbytes() > x.nbytes else x for x in (key.detach(), value.detach())
            )
            _record[module] = KeysValues(*alone)
        return eager(module, query, key, value, attention_mask, **options)
    constants, positions = _constants[module]
    # Soft-capped scores and attention sinks are left to the family's own function.
    special = options.get("softcap") is not None or options.get("s_aux") is not None or hasattr(module, "sinks")
    if special or options.get("scaling") is None:
        everyone = constants.with_tokens(own, positions)
        return eager(module, query, everyone.keys, everyone.values, attention_mask, **options)
    return _attend_to_constants(query, own, constants, positions, attention_mask, options["scaling"]), None


def _eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the family's own plain attention, from the module of a layer's class or of one of its base classes."""
    for kind in type(module).__mro__:
        if found := getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None):
            return found
    # The form common to all families; validation at load compares it with the model's original attention.
    return lambda *given, **options: AttentionInterface()["sdpa"](*given, **options | {"is_causal": False})


def _attend_to_constants(
    query: Tensor, own: KeysValues, constants: KeysValues, positions: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """Compute attention with the constants kept out of the graph."""
    groups = own.keys.shape[1]
    q = query.unflatten(1, (groups, -1))
    mask = query.new_zeros(1, 1, 1, 1) if mask is None else mask
    # A mask of its own for every head belongs to the heads of a group; one for all heads to all of them.
    mask = mask.unflatten(1, (groups, -1)) if mask.shape[1] > 1 else mask.unsqueeze(1)
    out = _Attend.apply(q, *own, constants, positions, mask, scaling)[0]
    return out.flatten(1, 2).transpose(1, 2)


class _Attend(Function):
    """Attention to keys and values that keeps its derivative at the point of evaluation."""

    # For one query, o = sum_t p_t v_t with p = softmax(K q + mask). A cotangent g of o is pulled back to
    #     q: sum_t p_t (g, v_t - o) k_t        k_j: p_j (g, v_j - o) q        v_j: p_j g
    # so that g meets one matrix per head, of the head's width, whatever the number of keys.

    @staticmethod
    def forward(
        query: Tensor,
        own_keys: Tensor,
        own_values: Tensor,
        constants: KeysValues,
        positions: Tensor,
        mask: Tensor,
        scaling: float,
    ) -> tuple[Tensor, ...]:
        """Compute attention of queries `(T, groups, r, s, width)`, r heads to a group; further arguments as above."""
        q = query * scaling
        given = (q, own_keys, own_values, *constants, positions, mask)
        # Tokens in chunks that keep the intermediate tensors small; a tensor with a leading 1 serves all chunks.
        size = max(1, _LARGEST // (q[0, ..., 0].numel() * constants.values[0, 0].numel()))
        found = [
            _linearised(*(x[first : first + size] if len(x) > 1 else x for x in given))
            for first in range(0, len(q), size)
        ]
        o, to_query, p_own = (torch.cat(parts) for parts in zip(*found, strict=True))
        apart = own_values[:, :, None, None] - o.unsqueeze(-2)  # v_j - o_i: (T, groups, r, s_i, s_j, width)
        to_keys = (apart * p_own.unsqueeze(-1)).mT.unsqueeze(-1) * q[..., None, None, :]
        return o, torch.cat([scaling * to_query, to_keys.flatten(-2)], dim=-1), p_own

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        M, p_own = ctx.saved_tensors
        product = TimesConstant.apply(g.flatten(0, 3), M.flatten(0, 3))
        product = product.reshape(*g.shape[:4], -1, M.shape[-1] // (1 + p_own.shape[-1]))
        to_query, to_keys = product[..., 0, :], product[..., 1:, :]
        to_values = g.unsqueeze(-2) * p_own.unsqueeze(-1)
        return to_query, _sum_over_queries(to_keys), _sum_over_queries(to_values), None, None, None, None


def _linearised(
    q: Tensor, own_keys: Tensor, own_values: Tensor, keys: Tensor, values: Tensor, positions: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return o, sum_t p_t (v_t - o) k_t^T and the weights p_j of the chosen tokens, for scaled queries."""
    K, V = KeysValues(keys, values).with_tokens(KeysValues(own_keys, own_values), positions)
    heads = q.shape[2:4]
    p = ((q.flatten(2, 3) @ K.mT).unflatten(2, heads) + mask).softmax(-1)
    o = (p.flatten(2, 3) @ V).unflatten(2, heads)
    apart = (V.mT[:, :, None, None] - o.unsqueeze(-1)) * p.unsqueeze(-2)
    to_query = (apart.flatten(2, 4) @ K).unflatten(2, (*heads, -1))
    return o, to_query, p.gather(-1, positions[:, None, None, None].expand(*p.shape[:-1], -1))


def _sum_over_queries(x: Tensor) -> Tensor:
    """Sum over the heads of a group and their queries, `(T, groups, r, s, ...)`."""
    # A sum over one query would copy all cotangents.
    return x[:, :, 0, 0] if x.shape[2:4] == (1, 1) else x.sum((2, 3))


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, eager_mask)
