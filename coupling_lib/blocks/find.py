"""Finding a model's transformer blocks: the module list as long as its configuration's depth."""

from contextlib import suppress
from typing import Any

from nnsight import Envoy
from torch import nn
from transformers import PreTrainedModel

from coupling_lib.blocks.record import Blocks, stack_config
from coupling_lib.errors import UnsupportedModelError

# Attribute of a model with the path of its blocks, where the user gave it.
PATH = "_blocks_path"


def find_blocks(hf: PreTrainedModel) -> Blocks:
    """Find the list of transformer blocks of a model, whatever its family calls it."""
    if (path := vars(hf).get(PATH)) is not None:
        return Blocks(path, hf.get_submodule(path))
    lists = {name: part for name, part in hf.named_modules() if isinstance(part, nn.ModuleList) and len(part)}
    declared = [getattr(stack_config(hf), name, None) for name in ("num_hidden_layers", "num_layers")]
    lengths = set(map(len, lists.values()))
    # Some families count attention layers, of which a block has two, and state the number of blocks beside it.
    depth = next((depth for depth in declared if depth in lengths), declared[0]) or max(lengths, default=0)
    fitting = [name for name, module in lists.items() if len(module) == depth]
    if not fitting:
        raise UnsupportedModelError(
            f"{type(hf).__name__} has no list of {depth} blocks; decoders, encoders and vision transformers with a "
            "list of equal blocks can be measured"
        )
    # Of stacks that are equally deep, the one beside the input embedding.
    beside = [""]
    with suppress(NotImplementedError, AttributeError):
        embedding = hf.get_input_embeddings()
        beside = next((name for name, module in hf.named_modules() if module is embedding), "").split(".")
    apart = {
        name: next((at for at, (a, b) in enumerate(zip(beside, name.split("."), strict=False)) if a != b), 0)
        for name in fitting
    }
    name = min(fitting, key=lambda name: (name.count("."), -apart[name], name))
    if any("_orig_mod" in block._modules for block in lists[name]):
        raise UnsupportedModelError(
            f"the blocks in {name!r} of {type(hf).__name__} were wrapped by torch.compile, which hides how they are "
            "called; wrap the model before it is compiled, or compile a block in place: block.compile()"
        )
    return Blocks(name, lists[name])


def unwrap_nnsight(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Return the module and the tokenizer of an nnsight model; any other model unchanged."""
    if not isinstance(model, Envoy):
        return model, tokenizer
    if any(weight.is_meta for weight in model._module.parameters()):
        raise UnsupportedModelError(
            f"the {type(model).__name__} of nnsight has no weights yet; load it with dispatch=True"
        )
    return model._module, tokenizer or getattr(model, "tokenizer", None)
