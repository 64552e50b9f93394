"""Weights of a GGUF file under the names of a transformers model, each dequantised on access.

The assignment of tensors to weights, and llama.cpp's transformations of them, are in tables of transformers and
of `gguf`, in an older form (`TENSOR_PROCESSORS`) and a newer one (`GGUF_ARCHS`); both are read tensor by tensor here,
where transformers itself holds all of them at once.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.gguf import get_gguf_conversion_mapping, is_gguf_arch_supported
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.models import gguf_contents
from coupling_lib.models.dequantised import Stored
from coupling_lib.models.gguf_layout import Contents

# Weights of the model by name, each with a function that builds it.
_Made = dict[str, Callable[[], torch.Tensor]]


def tensors(contents: Contents, skeleton: PreTrainedModel) -> dict[str, Stored]:
    """Return the weights of a model by name, and refuse a file with a tensor that is none of them."""
    by_conversion = is_gguf_arch_supported(contents.architecture)
    made, left = (_converted if by_conversion else _processed)(contents, skeleton)
    names = skeleton.state_dict().keys()
    gguf_contents.refuse_unused([*left, *(made.keys() - names)], contents.name)
    return {name: Stored(make) for name, make in made.items() if name in names}


def _processed(contents: Contents, skeleton: PreTrainedModel) -> tuple[_Made, list[str]]:
    """Assign a file's tensors to weights by the older tables; return the weights and the unassigned tensors."""
    settings = skeleton.config.to_dict()
    processor = TENSOR_PROCESSORS.get(contents.architecture, TensorProcessor)(config=settings)
    names = _names(contents, skeleton, processor)
    parts: dict[str, list[str]] = {}
    left = []
    for tensor in contents.tensors:
        # Tables list stacked experts without the end of their name.
        target = names.get(tensor, names.get(tensor.removesuffix(".weight")))
        (left if target is None else parts.setdefault(target, [])).append(tensor)
    made = {target: partial(_process, contents, processor, names, target, found) for target, found in parts.items()}
    # Gates and ups of experts are merged to one weight, half of which would be zero.
    whole = {f"{name}.weight" for name, target in names.items() if target in made and name.endswith("_exps")}
    if lacking := sorted(whole - contents.tensors.keys()):
        lack = f"lacks {len(lacking)} of the model's tensors ({lacking[0]}, ...)"
        raise ModelUnavailableError(f"{contents.name!r} {lack}; take a complete file")
    return made, left


def _process(
    contents: Contents, processor: TensorProcessor, names: dict[str, str], target: str, parts: list[str]
) -> torch.Tensor:
    """Build one weight from its tensors, by a processor of transformers."""
    found: dict[str, Any] = {"tensors": {}}
    for tensor in parts:
        values = contents.dense(tensor).numpy()
        # A processor enters a weight of several tensors into the dictionary itself.
        done = processor.process(values, name=tensor, tensor_key_mapping=names, parsed_parameters=found)
        if done.name in names:
            found["tensors"][names[done.name]] = torch.from_numpy(done.weights)
    return found["tensors"][target].contiguous()


def _names(contents: Contents, skeleton: PreTrainedModel, processor: TensorProcessor) -> dict[str, str]:
    """Map the names of a file's tensors to those of a model's weights."""
    import gguf

    kind = next((key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == contents.architecture), None)
    if kind is None:
        raise UnsupportedModelError(
            f"{contents.name!r} has the architecture {contents.architecture!r}, of whose tensors gguf "
            f"{version('gguf')} has no table; choose the model's safetensors files"
        )
    table = gguf.get_tensor_name_map(kind, skeleton.config.get_text_config().num_hidden_layers)
    names: dict[str, str] = {}
    # Some files hold a part of the model, with shorter names; those of the whole model come first.
    for path, module in skeleton.named_modules():
        prefix, own = f"{path}." if path else "", {}
        for key in map(processor.preprocess_name, module.state_dict()):
            base, dot, end = key.rpartition(".")
            base, suffix = (base, dot + end) if end in ("weight", "bias") else (key, "")
            if (stored := table.get_name(base)) is None:
                processor.perform_fallback_tensor_mapping(own, suffix, prefix, key)
            else:
                own[stored + suffix] = prefix + key
        names = own | names
    return names


def _converted(contents: Contents, skeleton: PreTrainedModel) -> tuple[_Made, list[str]]:
    """Assign a file's tensors to weights by the newer tables, which name every tensor."""
    mapping = get_gguf_conversion_mapping(contents.architecture, skeleton.config)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_source = {source: converter for converter in converters for source in converter.source_patterns}
    parts: dict[str, tuple[WeightConverter | None, dict[str, str]]] = {}
    for tensor in contents.tensors:
        target, source = rename_source_key(tensor, renamings, converters)
        parts.setdefault(target, (by_source.get(source), {}))[1][source or target] = tensor
    return {target: partial(_convert, contents, skeleton, target, *found) for target, found in parts.items()}, []


def _convert(
    contents: Contents, skeleton: PreTrainedModel, target: str, converter: WeightConverter | None, parts: dict[str, str]
) -> torch.Tensor:
    """Build one weight from its tensors, by the conversions of transformers."""
    values: dict[str, Any] = {source: contents.dense(tensor) for source, tensor in parts.items()}
    for operation in converter.operations if converter else ():
        values = operation.convert(
            values,
            source_patterns=converter.source_patterns,
            target_patterns=[target],
            full_layer_name=target,
            model=skeleton,
            config=skeleton.config,
        )
    (value,) = values.values()
    return value.contiguous()
