"""How many tokens a model reads, and one line for a model that fails on an input."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks.makeup import modifications, where
from coupling_lib.blocks.record import family_of
from coupling_lib.blocks.state import kept
from coupling_lib.errors import CouplingError, UnsupportedModelError
from coupling_lib.memory import ran_out
from coupling_lib.models.model import Model


def longest(hf: PreTrainedModel) -> int | None:
    """Count the tokens that a model reads at most; None where nothing bounds them."""
    config = hf.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    ropes = getattr(config, "rope_parameters", None) or {}
    ropes = [each for each in (ropes, *ropes.values()) if isinstance(each, Mapping) and "rope_type" in each]
    if any(each["rope_type"] == "dynamic" for each in ropes):
        return None  # stretched to whatever is read
    # Some configurations have the length before it was stretched in both places.
    stretched = [each.get("factor", 1) * each.get("original_max_position_embeddings", 0) for each in ropes]
    # Of a table of positions with a row for padding, positions begin behind that row.
    tables = [part for part in hf.modules() if isinstance(part, nn.Embedding) and part is not hf.get_input_embeddings()]
    sized = [table for table in tables if table.num_embeddings == positions and table.padding_idx is not None]
    before = max((table.padding_idx + 1 for table in sized), default=0)
    return int(max(positions, *stretched)) if stretched else positions - before


@contextmanager
def explained(model: Model, inputs: Mapping[str, Tensor]) -> Generator[None]:
    """Put in one line why a model fails on an input."""
    try:
        yield
    except CouplingError:
        raise
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[-1][:200]
        # A hook of the user's, and no parametrisation, such as wav2vec2's own.
        if any(functions for _, _, *functions in modifications(model.hf)):
            raise UnsupportedModelError(
                f"{family_of(model.hf)} failed while {where(model.hf)} carried a hook or a forward of your own "
                f"({type(error).__name__}: {message}); mend it or take it off, and trace again"
            ) from error
        if ran_out(error) or _runs(model.hf, inputs):
            raise
        raise UnsupportedModelError(
            f"{model.name} does not run on this input ({type(error).__name__}: {message}); see that model.hf runs on "
            "it, or give a shorter one"
        ) from error


@torch.no_grad()
def _runs(hf: PreTrainedModel, inputs: Mapping[str, Any]) -> bool:
    with kept(hf):
        try:
            hf(**inputs)
        except Exception:
            return False
    return True
