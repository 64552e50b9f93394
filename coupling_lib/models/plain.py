"""Any `torch.nn.Module` whose blocks read and write one stream, wrapped as a transformers model.

Its configuration is determined by running the module on a few token ids.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from coupling_lib.blocks.find import PATH
from coupling_lib.blocks.state import restored
from coupling_lib.errors import ParameterError, UnsupportedModelError, shown

_N_TOKENS = 7


class PlainConfig(PreTrainedConfig):
    """Configuration of a plain module: width, depth and vocabulary."""

    model_type = "plain"


class PlainModel(PreTrainedModel):
    """A plain module, called with token ids alone."""

    config_class = PlainConfig
    main_input_name = "input_ids"

    def __init__(self, config: PlainConfig, module: nn.Module, embedding: nn.Embedding):
        super().__init__(config)
        self.module = module
        self._embeds = (embedding,)  # in a tuple, so that it is no second submodule

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of the token ids."""
        return self._embeds[0]

    def forward(self, input_ids: Tensor, output_hidden_states: bool = False) -> Any:
        """Call the module."""
        if output_hidden_states:
            raise UnsupportedModelError(
                f"{type(self).__name__} is no transformers model and has no hidden_states: its final norm is unknown; "
                "take boundary='block', or a measure that needs no final norm"
            )
        return self.module(input_ids)


def as_pretrained(module: nn.Module, path: str | None) -> PreTrainedModel:
    """Wrap a plain module, whose blocks lie at a path, as a transformers model."""
    if path is None:
        advice = ", and has no list of blocks"
        for first in _lists(module)[:1]:
            advice = f"; name the list of its blocks, such as blocks={first!r}"
        raise ParameterError(f"hf_model is a {type(module).__name__} and no transformers model{advice}")
    blocks = list_at(module, path)
    embedding, stream = _probed(module, blocks[0])
    sizes = {"hidden_size": stream.shape[-1], "vocab_size": embedding.num_embeddings}
    config = PlainConfig(num_hidden_layers=len(blocks), **sizes)
    # Messages and figures name the user's class.
    made = type(type(module).__name__, (PlainModel,), {})(config, module, embedding)
    vars(made)[PATH] = f"module.{path}"
    return made


def list_at(module: nn.Module, path: str) -> nn.ModuleList | nn.Sequential:
    """Return the list of blocks at a path, and refuse a path where there is none."""
    found = dict(module.named_modules()).get(path) if isinstance(path, str) else None
    if not isinstance(found, nn.ModuleList | nn.Sequential) or not len(found):
        lists = _lists(module)
        has = f"its lists are {', '.join(map(repr, lists))}" if lists else "it has no list of modules"
        raise ParameterError(f"blocks is {shown(path)}, where {type(module).__name__} has no list of blocks; {has}")
    return found


def _lists(module: nn.Module) -> list[str]:
    """List the paths of a module's lists, the longest list first."""
    found = {path: len(part) for path, part in module.named_modules() if isinstance(part, nn.ModuleList) and len(part)}
    return sorted(found, key=lambda path: -found[path])


@torch.no_grad()
def _probed(module: nn.Module, first: nn.Module) -> tuple[nn.Embedding, Tensor]:
    """Run a module on token ids; return the embedding that reads them and the input stream of its first block."""
    ids = torch.zeros(1, _N_TOKENS, dtype=torch.long, device=next(module.parameters()).device)
    embeddings: list[nn.Embedding] = []
    streams: list[Tensor] = []

    def embeds(part: nn.Module, args: tuple) -> None:
        if args and isinstance(args[0], Tensor) and args[0].shape == ids.shape:
            embeddings.append(part)

    def reads(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        streams.extend(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point())

    hooks = [part.register_forward_pre_hook(embeds) for part in module.modules() if isinstance(part, nn.Embedding)]
    hooks.append(first.register_forward_pre_hook(reads, with_kwargs=True))
    try:
        with restored(module):
            module.eval()(ids)
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(module).__name__} does not run on {_N_TOKENS} token ids alone, shape {tuple(ids.shape)} "
            f"({' '.join(str(error).split())[:200] or type(error).__name__}); wrap what does"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not embeddings or not streams:
        lacks = "embeds no token ids with an nn.Embedding" if not embeddings else "does not run the blocks named"
        raise UnsupportedModelError(f"{type(module).__name__} {lacks}; what reads token ids can be measured")
    return embeddings[0], streams[0]
