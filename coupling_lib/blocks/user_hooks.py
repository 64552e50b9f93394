"""User modifications of a block: hooks, a patched `forward`, parametrised weights.

All of it is part of the network: it is in what a block computes, and so in its derivative. Rules that know what a
module of some class computes (`rules`) leave alone whatever carries something. What a block carries is compared with
what it carried when its route was chosen (`validate`), and with what it carried when it was traced. So is what it is
made of (`makeup`).
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from nnsight.intervention.source import Controller
from torch import nn
from torch.nn.modules import module as of_torch

from coupling_lib.errors import UnsupportedModelError

Modifications = tuple[tuple[Any, ...], ...]


def modifications(block: nn.Module) -> Modifications:
    """List the modifications of a block's modules: name, kind of module, and the functions themselves."""
    # The functions, and not how many: one that is exchanged for another changes the block as well.
    of_all = [("every module", nn.Module, *everywhere())] if everywhere() else []
    return (*of_all, *_on_modules(block))


def _on_modules(block: nn.Module) -> Modifications:
    return tuple(
        (name, type(part), *found)
        for name, part in block.named_modules()
        if (found := [*_functions(part)]) or "parametrizations" in part._modules
    )


def where(block: nn.Module) -> str:
    """Name the modified modules of a block."""
    return ", ".join(repr(name or type(block).__name__) for name, *_ in modifications(block)) or "none of its modules"


def is_bare(module: nn.Module) -> bool:
    """Return whether a module computes what its class computes."""
    return not everywhere() and not any(True for _ in _functions(module))


def refuse_on_backward(block: nn.Module) -> None:
    """Refuse hooks that change derivatives and not values."""
    message = "backward hook, which would change derivatives without changing what the block computes; remove it before"
    if set(everywhere()) - set(everywhere(forward_alone=True)):
        raise UnsupportedModelError(f"every module carries a global {message} you trace")
    for name, part in block.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise UnsupportedModelError(
                f"module {name or type(block).__name__!r} of a block carries a {message} you trace"
            )


def replaced_forward(part: nn.Module) -> Any:
    """Return the patched `forward` of a module; None where it runs its class's own."""
    forward = part.__dict__.get("_old_forward" if "_hf_hook" in part.__dict__ else "forward")
    if isinstance(forward, Controller):  # nnsight's, around what it found
        forward = forward.state.original
    plain = type(part).forward
    return None if getattr(forward, "__func__", forward) in (None, plain) else forward


def is_outdated(part: nn.Module) -> bool:
    """Return whether nnsight runs, in the place of a class's forward, what that was before it was exchanged."""
    forward = part.__dict__.get("forward")
    if not isinstance(forward, Controller):
        return False
    return forward.state.original is forward.__wrapped__ is not type(part).forward


def _functions(part: nn.Module) -> Iterator[Any]:
    """Return what others put on a module; those that transformers puts there only look."""
    hooks = (part._forward_pre_hooks, part._forward_hooks, part._backward_hooks, part._backward_pre_hooks)
    for function in chain.from_iterable(each.values() for each in hooks):
        if not _made_by(function, "coupling_lib.blocks.", "transformers."):
            yield function
    if (forward := replaced_forward(part)) is not None:
        yield forward


def everywhere(*, forward_alone: bool = False) -> tuple[Any, ...]:
    """List the hooks of others that stand on every module there is."""
    hooks = [of_torch._global_forward_hooks, of_torch._global_forward_pre_hooks]
    if not forward_alone:
        hooks += [of_torch._global_backward_hooks, of_torch._global_backward_pre_hooks]
    # Torch's own, which stand there while operations are counted, only look.
    return tuple(each for each in chain.from_iterable(each.values() for each in hooks) if not _made_by(each, "torch."))


def _made_by(function: Any, *packages: str) -> bool:
    return str(getattr(function, "__module__", "")).startswith(packages)
