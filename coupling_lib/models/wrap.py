"""Wrapping an existing model: its blocks are found, validated and frozen.

Attention runs in its plain form (`blocks.attention`), if that is the same model: fused kernels have no forward-mode
derivative on the CPU. Experts run one at a time, because the grouped product does not support float64.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.image_processing_utils import BaseImageProcessor

from coupling_lib.blocks import postnorm, storage
from coupling_lib.blocks.find import PATH, unwrap_nnsight
from coupling_lib.blocks.validate import recheck_changed_blocks, validate
from coupling_lib.errors import ParameterError, UnsupportedModelError, shown
from coupling_lib.models import adapters, plain
from coupling_lib.models.model import Model
from coupling_lib.modes import exclusive


@exclusive
def wrap_model(
    hf_model: PreTrainedModel | nn.Module,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    blocks: str | None = None,
    name: str | None = None,
    precision: str | None = None,
    processor: BaseImageProcessor | None = None,
) -> Model:
    """Wrap an existing model, with the checks of `load_model`.

    The model itself is used, not a copy: it is put into evaluation mode, frozen, and set to plain attention. Hooks and
    adapters on it are part of it.

    Args:
        hf_model: a transformers model; a `PeftModel`, of which the base model with the adapter's layers is measured; a
            model of nnsight or nnterp, of which the module inside; or, with `blocks`, any `torch.nn.Module` that runs
            on token ids `(1, n)` and whose blocks read and write one stream `(1, n, d)`.
        tokenizer: its tokenizer, needed only to pass text; by default that of a model of nnsight.
        blocks: path of the list of its blocks, such as "transformer.h"; by default they are found.
        name: its name in figures and records; by default the name of its class, and of its adapters.
        precision: how its weights are stored, for the record; by default its dtype.
        processor: the image processor of a vision model, for `load_images`.

    Returns:
        the model, ready to be measured.

    Raises:
        ParameterError: if `hf_model` is no transformers model and `blocks` is not given, or there is no list.
        ModelUnavailableError: if it holds weights that are NaN or infinite.
        UnsupportedModelError: if its blocks cannot be measured, or its adapter puts tokens before every prompt.

    Example:
        >>> from coupling_lib.models.load import load_model
        >>> again = wrap_model(load_model("nano-neox").hf, name="mine")
        >>> again.name, again.source, again.n_blocks
        ('mine', 'memory', 12)
    """
    hf_model = getattr(hf_model, "_orig_mod", hf_model)  # the module inside torch.compile's wrapper
    hf_model, tokenizer = unwrap_nnsight(hf_model, tokenizer)
    given, hf_model = hf_model, adapters.unwrap_peft(hf_model)
    if not isinstance(hf_model, nn.Module):
        raise ParameterError(f"hf_model is a {type(hf_model).__name__}; a transformers model or nn.Module was expected")
    if not isinstance(hf_model, PreTrainedModel):
        given = hf_model = plain.as_pretrained(hf_model, blocks)
    elif blocks is not None:
        plain.list_at(hf_model, blocks)
        vars(hf_model)[PATH] = blocks
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise ParameterError(f"tokenizer is {shown(tokenizer)}; a transformers tokenizer was expected, or None")
    adapted = adapters.names(given)
    name = name or type(hf_model).__name__ + adapted
    refuse_two_stacks(hf_model, name)
    about = (name, "memory" + adapted, None, precision or _stored_as(hf_model), False, None)
    model = prepare_model(hf_model, tokenizer, *about, processor=processor)
    adapters.check_output(given, hf_model)
    return model


def prepare_model(hf: PreTrainedModel, tokenizer: Any, name: str, *about: Any, processor: Any) -> Model:
    """Freeze a model, set its layers to forms that can be differentiated, and validate its blocks."""
    if any(weight.is_inference() for weight in hf.parameters()):
        raise UnsupportedModelError(
            f"{name} holds weights that were made inside torch.inference_mode(), through which no derivative is taken; "
            "make or load it outside, or under torch.no_grad()"
        )
    hf.eval().requires_grad_(False)
    hf.set_experts_implementation("eager")
    for stored in storage.REGISTERED:
        stored.prepare(hf, name)
    found = validate(hf, name)
    postnorm.warn_of_streams(found, name)
    return Model(hf, tokenizer, name, *about, blocks=found, processor=processor, recheck=recheck_changed_blocks)


def refuse_two_stacks(hf: PreTrainedModel, name: str) -> None:
    """Refuse an encoder-decoder, but not a single stack of one."""
    parts = {path.rpartition(".")[2] for path, _ in hf.named_modules()}
    if getattr(hf.config, "is_encoder_decoder", False) and {"encoder", "decoder"} <= parts:
        raise UnsupportedModelError(
            f"{name!r} is an encoder-decoder ({hf.config.model_type}), whose decoder blocks read a second stream; pass "
            "its encoder alone, cl.wrap_model(transformers.AutoModel.from_pretrained(...).get_encoder()), or choose a "
            "decoder, an encoder or a vision transformer"
        )


def _stored_as(hf: PreTrainedModel) -> str:
    """Return the precision of a model's weights."""
    quantised = getattr(hf.config, "quantization_config", None)
    if getattr(quantised, "load_in_4bit", False):
        return quantised.bnb_4bit_quant_type
    return "int8" if getattr(quantised, "load_in_8bit", False) else str(hf.dtype).removeprefix("torch.")
