"""Choice of a block's route, suggested by its calls and validated against the unmodified model (`agreement`)."""

from typing import NamedTuple

import torch
from torch import nn
from transformers import DynamicCache

from coupling_lib.blocks import attention, postnorm
from coupling_lib.blocks.agreement import accepted, first_line, replay_error, route_error
from coupling_lib.blocks.blockmap import NO_CACHE, advance, cache_name, cached, dtype_of, layers_with_state
from coupling_lib.blocks.call import BlockCall
from coupling_lib.errors import UnsupportedModelError

# Relative tolerance of two attention implementations in float32 or wider.
_SAME = 1e-4
_UNBOUNDED = (0.0, float("inf"))


class AnotherModelError(UnsupportedModelError):
    """Raised where the registered attention changes the model's output."""


class Validated(NamedTuple):
    """Result of validating a block: its route, the norms of its stream (None if it adds to it), and its scale."""

    route: str
    norms: tuple[str, ...] | None
    scale: float = 1.0


def validate_route(
    call: BlockCall, reference: BlockCall, block: nn.Module, label: str, dtype: torch.dtype, default: str
) -> Validated:
    """Choose the route of a block with plain weights, validate it, and find the norms of its stream."""
    # `reference` is the block's call with the attention `default`, on the same stream.
    try:
        with torch.no_grad():
            found = call.replay(block, call.input.to(dtype))
            with attention.using(block, default):
                wanted = reference.replay(block, call.input.to(dtype))
    except RuntimeError as error:
        raise UnsupportedModelError(f"{label} does not run in {dtype}, take out casts: {first_line(error)}") from error
    if not replay_error(call, found, wanted, tolerance=_SAME) <= 1:
        far = float(((found - wanted).norm(dim=-1) / (wanted - call.input.to(dtype)).norm(dim=-1)).max())
        raise AnotherModelError(f"{label} replayed alone differs from the model (relative error {far:.1e})")
    errors: dict[str, float | str] = {}
    chosen = choose_route(call, block)
    next_best = ["cache"] * (chosen == "attention" and has_cache(call, block))
    for route in dict.fromkeys((chosen, *next_best, "sequence")):
        errors[route] = error = route_error(call, reference, block, route, default)
        if accepted(error):
            stream = postnorm.stream_behaviour(call, block)
            return Validated(route, postnorm.stream_norms(call, block) if stream.post_norm else None, stream.share)
    tried = "; ".join(
        f"the {route} route {error if isinstance(error, str) else f'gives a Jacobian that differs by {error:.1e}'}"
        for route, error in errors.items()
    )
    raise UnsupportedModelError(
        f"{label} has no Jacobian that agrees with that of the whole sequence: {tried}; this family cannot be "
        "measured, please report it"
    )


def choose_route(call: BlockCall, block: nn.Module) -> str:
    """Return the route that a block's calls suggest."""
    if carries_state(call, block):
        # Mamba-2 in transformers bounds its time steps for many tokens, and not for one.
        bounds = {tuple(getattr(part, "time_step_limit", None) or _UNBOUNDED) for part in block.modules()}
        return "state" if bounds == {_UNBOUNDED} else "sequence"
    if len(call.keys_values) == 1:
        return "attention"
    return "cache" if has_cache(call, block) else "sequence"


def has_cache(call: BlockCall, block: nn.Module) -> bool:
    """Return whether a block writes its keys and values to a cache, once."""
    return cache_name(block) is not None and cached(call, block) is not None


def carries_state(call: BlockCall, block: nn.Module) -> bool:
    """Return whether a block carries a state from token to token, by its writes to its family's cache."""
    if not cache_name(block) or not layers_with_state(cache := DynamicCache(config=call.config)):
        return False
    try:
        advance(call, block, cache, 0, call.input.to(dtype_of(block)))
    except NO_CACHE:
        return False
    return any(any(layer.has_previous_state.values()) for layer in layers_with_state(cache))
