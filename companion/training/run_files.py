"""Files of a training run: its state and its log, each written atomically; and steps of its optimiser."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch.optim import AdamW
from transformers import PreTrainedModel

from coupling_lib import paths
from coupling_lib.errors import ParameterError


def claim(run: Path, recipe: Any, **more: str) -> None:
    """Create the folder of a run, and refuse one of another recipe."""
    run.mkdir(parents=True, exist_ok=True)
    written, as_json = run / "recipe.json", json.dumps(asdict(recipe) | more, indent=1)
    if written.exists() and written.read_text() != as_json:
        raise ParameterError(f"{str(run)!r} holds a run of another recipe; give another folder or remove it")
    written.write_text(as_json)


def adamw(model: PreTrainedModel, rate: float, weight_decay: float, **settings: Any) -> AdamW:
    """Return AdamW with weight decay on matrices only, without a vision transformer's class token and positions."""
    decayed: list[torch.nn.Parameter] = []
    spared: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and not name.endswith(("cls_token", "position_embeddings"))
        (decayed if matrix else spared).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return AdamW(groups, lr=rate, fused=True, **settings)


def descend(model: PreTrainedModel, optimiser: AdamW, loss: torch.Tensor, rate: float, clip: float) -> None:
    """Change the weights by one step at a learning rate, with the gradient's norm at most `clip` unless that is 0."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    loss.backward()
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def save_state(path: Path, model: PreTrainedModel, optimiser: AdamW, step: int) -> None:
    """Write weights and moments atomically."""
    state = {"step": torch.tensor(step)}
    for name, parameter in model.named_parameters():
        moments = optimiser.state[parameter]
        state |= {f"weight.{name}": parameter.detach(), f"first.{name}": moments["exp_avg"]}
        state |= {f"second.{name}": moments["exp_avg_sq"], f"count.{name}": moments["step"]}
    with paths.atomic_path(path) as partial:
        save_file(state, partial)


def load_state(path: Path, model: PreTrainedModel, optimiser: AdamW) -> int:
    """Restore the weights and moments of `save_state`, and return the step."""
    state, kinds = load_file(path), {"step": "count", "exp_avg": "first", "exp_avg_sq": "second"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f"weight.{name}"])
            optimiser.state[parameter] = {moment: state[f"{kind}.{name}"] for moment, kind in kinds.items()}
    return int(state["step"])


def read_log(path: Path, until: int) -> list[dict]:
    """Read the log of an earlier part of a run, without rows after the restored step."""
    if not path.exists():
        return []
    log = pd.read_csv(path, float_precision="round_trip")
    return log[log["step"] <= until].to_dict("records")


def write_log(path: Path, rows: list[dict]) -> None:
    """Write the whole log."""
    paths.write_text(path, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
