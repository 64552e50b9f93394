"""What a training run leaves on disk: its state, its checkpoints and its log, each written whole or not at all."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from coupling_lib.errors import ParameterError
from coupling_lib.training.recipe import Recipe


def claim(run: Path, recipe: Recipe) -> None:
    """Make a folder that of one recipe, and refuse a folder that is another's."""
    run.mkdir(parents=True, exist_ok=True)
    written = run / "recipe.json"
    as_json = json.dumps(asdict(recipe), indent=1)
    if written.exists() and written.read_text() != as_json:
        raise ParameterError(f"{str(run)!r} holds a run of another recipe; give another folder or remove it")
    written.write_text(as_json)


def save_state(path: Path, model: PreTrainedModel, optimiser: torch.optim.AdamW, step: int) -> None:
    """Write weights and moments beside their place, then rename: a killed run never leaves half a file."""
    state = {"step": torch.tensor(step)}
    for name, parameter in model.named_parameters():
        moments = optimiser.state[parameter]
        state |= {f"weight.{name}": parameter.detach(), f"first.{name}": moments["exp_avg"]}
        state |= {f"second.{name}": moments["exp_avg_sq"], f"count.{name}": moments["step"]}
    save_file(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def load_state(path: Path, model: PreTrainedModel, optimiser: torch.optim.AdamW) -> int:
    """Restore what `save_state` wrote."""
    state = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f"weight.{name}"])
            optimiser.state[parameter] = {
                "step": state[f"count.{name}"],
                "exp_avg": state[f"first.{name}"],
                "exp_avg_sq": state[f"second.{name}"],
            }
    return int(state["step"])


def read_log(path: Path, until: int) -> list[dict]:
    """Read the log of an earlier part of a run, without what lies after the restored step."""
    if not path.exists():
        return []
    with path.open() as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return [row for row in rows if row["step"] <= until]


def save_checkpoint(model: PreTrainedModel, folder: Path) -> None:
    """Keep the weights of one step in half precision, as a Hugging Face folder."""
    half = AutoModelForCausalLM.from_config(model.config, dtype=torch.float16)
    half.load_state_dict({name: tensor.half() for name, tensor in model.state_dict().items()})
    half.save_pretrained(folder)


def write_log(path: Path, rows: list[dict]) -> None:
    """Write the whole log beside its place, then rename."""
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    part.rename(path)
