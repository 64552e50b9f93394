"""A model ready to be measured: in evaluation mode, frozen, its blocks found and checked (`wrap`, `load`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.image_processing_utils import BaseImageProcessor

from coupling_lib.blocks.call import BlockCall
from coupling_lib.blocks.record import Blocks, stack_config
from coupling_lib.blocks.storage import on_disk, share_in


@dataclass(frozen=True, eq=False)
class Model:
    """A model ready to be measured: in evaluation mode, frozen, its blocks found and checked.

    Args:
        hf: the Hugging Face model.
        tokenizer: its tokenizer; None for a vision model and for a folder without one.
        name: the name by which the user loaded it.
        source: origin of its files: "hub id@commit", a folder, or "memory".
        revision: branch, tag, commit or training step; None where there is none.
        precision: how the weights are stored, one of `precision.PRECISIONS`.
        untrained: whether the weights are freshly initialised.
        seed: seed of the initialisation, where the weights come from one; else None.
        blocks: the transformer blocks.
        processor: the image processor of a vision model's folder, if it has one.
        recheck: function that validates changed blocks again, at the states of a trace.
        load_digest: of a loaded model, digest of the settings and buffers that no file holds.
    """

    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    source: str
    revision: str | None
    precision: str
    untrained: bool
    seed: int | None
    blocks: Blocks
    processor: BaseImageProcessor | None = None
    recheck: Callable[[PreTrainedModel, Blocks, Sequence[BlockCall]], Blocks] | None = None
    load_digest: str = ""

    @property
    def n_blocks(self) -> int:
        """Number of transformer blocks L."""
        return len(self.blocks)

    @property
    def d_model(self) -> int:
        """Width d of the residual stream."""
        return stack_config(self.hf).hidden_size

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.hf.device

    @property
    def offloaded(self) -> bool:
        """True if the blocks' weights stay on disk and are read one block at a time."""
        return on_disk(self.blocks.modules)

    @property
    def share_in_precision(self) -> float:
        """Share of the blocks' weights that are stored in `precision`; the rest is in float32."""
        return share_in(self.precision, self.blocks.modules)
