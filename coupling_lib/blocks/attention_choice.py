"""Choice of the attention that a model calls: its original one, or the one registered here (`attention`)."""

import weakref
from collections.abc import Generator
from contextlib import contextmanager

from transformers import PreTrainedModel
from transformers.utils import logging

from coupling_lib.blocks.attention import NAME, current

_original: weakref.WeakKeyDictionary[PreTrainedModel, str] = weakref.WeakKeyDictionary()


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
    """Make a model call the registered attention, or another one, where its family supports that."""
    with quiet():  # families that keep their own attention warn
        hf.set_attn_implementation(name)


def default(hf: PreTrainedModel) -> str:
    """Return the name of a model's original attention, which is part of the model's identity."""
    name = current(hf)
    if name != NAME:
        # transformers computes the same as fused kernels by "sdpa", which can be differentiated twice.
        _original[hf] = name if name in ("eager", "sdpa") else "sdpa"
    return _original.get(hf, "eager")
