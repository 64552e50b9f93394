"""Which attention a model calls: the one that it came with, or the one that is registered here (`attention`)."""

import weakref
from collections.abc import Generator
from contextlib import contextmanager

from transformers import PreTrainedModel
from transformers.utils import logging

from coupling_lib.blocks.attention import NAME, in_force

_came_with: weakref.WeakKeyDictionary[PreTrainedModel, str] = weakref.WeakKeyDictionary()


@contextmanager
def quiet() -> Generator[None]:
    """Keep transformers' notices and progress bars out of notebooks, inside the context; downloads keep their bar."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    hook = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(hook)
        logging.set_verbosity(verbosity)


def use(hf: PreTrainedModel, name: str = NAME) -> None:
    """Make a model call the registered attention, or another, where its family can."""
    with quiet():  # a family that keeps its own attention warns of it
        hf.set_attn_implementation(name)


def default(hf: PreTrainedModel) -> str:
    """Name the attention that a model came with, which identifies the model."""
    name = in_force(hf)
    if name != NAME:
        # What fused kernels compute is what transformers computes by "sdpa", which can be differentiated twice.
        _came_with[hf] = name if name in ("eager", "sdpa") else "sdpa"
    return _came_with.get(hf, "eager")
