"""Measuring a model in the middle of its training, and restoring it afterwards."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from coupling_lib.models.model import Model
from coupling_lib.models.storages import wrap_model


@contextmanager
def measuring(
    hf_model: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any
) -> Generator[Model]:
    """Wrap a model that is being trained, and restore it afterwards.

    `wrap_model` puts a model into evaluation mode, freezes it, and sets its attention and experts to forms that can be
    differentiated. On leaving the context, with an error or without, these are what they were on entering it: the mode
    of every module, `requires_grad` of every weight, the settings of every configuration, the state of torch's random
    generators. Weights and gradients are not touched, so that a training goes on bit for bit as if nothing had been
    measured.

    Args:
        hf_model: the model, or a `PeftModel`; see `wrap_model`.
        tokenizer: its tokenizer, needed only to pass text.
        options: further arguments of `wrap_model`.

    Yields:
        the model, ready to be measured inside the context.

    Raises:
        CouplingError: as `wrap_model` does.

    Example:
        >>> import coupling_lib as cl
        >>> hf = cl.load_model("nano-neox").hf.train()
        >>> with cl.measuring(hf) as model:
        ...     n = cl.trace(model, torch.arange(9)[None]).n_tokens
        >>> n, hf.training
        (9, True)
    """
    modules = list(hf_model.modules())
    modes = [(module, module.training, dict(vars(module))) for module in modules]
    trainable = [(weight, weight.requires_grad) for weight in hf_model.parameters()]
    configs = {id(config): config for module in modules if (config := getattr(module, "config", None)) is not None}
    settings = [(config, dict(vars(config))) for config in configs.values()]
    cards = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(cards):
        try:
            yield wrap_model(hf_model, tokenizer, **options)
        finally:
            for module, training, attributes in modes:
                # nnsight leaves a `forward` of its own on modules that it has traced.
                for name in vars(module).keys() - attributes.keys():
                    delattr(module, name)
                vars(module).update(attributes)
                module.training = training
            for weight, wanted in trainable:
                weight.requires_grad_(wanted)
            for config, attributes in settings:
                vars(config).clear()
                vars(config).update(attributes)
