"""How many tokens a model reads: by its configuration and its tables, or by what it does with fewer."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coupling_lib.blocks.makeup import modifications, where
from coupling_lib.blocks.record import family_of
from coupling_lib.blocks.state import kept
from coupling_lib.errors import CouplingError, ParameterError, UnsupportedModelError
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


def too_long(model: Model, given: int, most: int) -> ParameterError:
    """Make the error for an input that a model cannot read."""
    return ParameterError(f"the input has {given} tokens; {model.name} reads at most {most}; shorten it")


@contextmanager
def explained(model: Model, inputs: Mapping[str, Tensor]) -> Generator[None]:
    """Put in one line why a model fails on an input, and name how many tokens it reads where it reads fewer."""
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
        ids = inputs.get("input_ids")
        if ran_out(error) or _runs(model.hf, inputs):
            raise
        most = 0 if ids is None else _most(model.hf, ids)
        if most:
            raise too_long(model, ids.shape[1], most) from error
        raise UnsupportedModelError(
            f"{model.name} does not run on this input ({type(error).__name__}: {message}); see that model.hf runs on it"
        ) from error


def _most(hf: PreTrainedModel, ids: Tensor) -> int:
    """Find the largest number of tokens on which a model runs; 0 if it runs on none."""
    runs, fails = 0, ids.shape[1]
    while fails - runs > 1:
        middle = (runs + fails) // 2
        runs, fails = (middle, fails) if _runs(hf, {"input_ids": ids[:, :middle]}) else (runs, middle)
    return runs


@torch.no_grad()
def _runs(hf: PreTrainedModel, inputs: Mapping[str, Any]) -> bool:
    with kept(hf):
        try:
            hf(**inputs)
        except Exception:
            return False
    return True
