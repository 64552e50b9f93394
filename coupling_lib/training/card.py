"""Shipping a finished run: checkpoints, tokenizer, a machine-readable record and a model card.

The shipped folder is a complete Hugging Face folder of the last step; each earlier checkpoint is a folder
`stepN` inside it. `training.json` holds what a program needs (steps, seed, losses, the fingerprint of step
0), `README.md` the same for a reader, with a sample of the model's text.
"""

from __future__ import annotations

import json
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from coupling_lib.errors import ParameterError
from coupling_lib.training.recipe import Recipe, configuration, digest, initialise
from coupling_lib.training.run_files import read_log

_SAMPLE_PROMPT = "It was a dark and stormy night, and"


def ship(name: str, run: Path, target: Path, data: str) -> None:
    """Copy a finished run's checkpoints to where they are shipped from, with record and card."""
    recipe = json.loads((run / "recipe.json").read_text())
    last = recipe["steps"]
    if not (run / f"step{last}" / "model.safetensors").exists():
        raise ParameterError(f"the run in {str(run)!r} has not reached step {last}; start its command again to resume")
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(run / f"step{last}", target)
    PreTrainedTokenizerFast.from_pretrained(run / "tokens").save_pretrained(target)
    for step in recipe["checkpoints"]:
        if step != last:
            shutil.copytree(run / f"step{step}", target / f"step{step}")
    record = _record(name, run, recipe, target, data)
    (target / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    (target / "README.md").write_text(_card(record))


def sample(folder: Path, prompt: str = _SAMPLE_PROMPT, tokens: int = 120, seed: int = 0) -> str:
    """Let a shipped model continue a text, at temperature 0.8."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    torch.manual_seed(seed)
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=True,
            temperature=0.8,
            pad_token_id=0,
        )
    return tokenizer.decode(out[0], skip_special_tokens=True)


def _record(name: str, run: Path, recipe: dict, target: Path, data: str) -> dict:
    """Gather the facts of a run, each read from a file it left."""
    log = read_log(run / "log.csv", until=recipe["steps"])
    kept = [row for row in log if int(row["step"]) in (0, *recipe["checkpoints"])]
    step0 = initialise(configuration(Recipe(**recipe)), recipe["seed"])
    size, *held_out = (run / "tokens" / "held_out.txt").read_text().splitlines()
    return {
        "name": name,
        "seed": recipe["seed"],
        "steps": recipe["steps"],
        "tokens": recipe["steps"] * recipe["windows"] * recipe["context"],
        "parameters": sum(parameter.numel() for parameter in step0.parameters()),
        "digest_step0": digest(step0),
        "command": f"python -m coupling_lib.training.language {name} TEXT --data {shlex.quote(data)} "
        "--ship data/checkpoints",
        "recipe": recipe,
        "data": {"text": data, "held_out_files": held_out, "held_out_bytes": int(size)},
        "checkpoints": [
            {
                "step": int(row["step"]),
                "tokens": int(row["tokens"]),
                "validation_loss": round(row["validation_loss"], 4),
                "bits_per_byte": round(row["bits_per_byte"], 4),
            }
            for row in kept
        ],
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "sample": sample(target),
    }


_ARCHITECTURES = {
    "neox": "GPT-NeoX, as Pythia (rotary positions, parallel attention and MLP, LayerNorm, GELU)",
    "llama": "Llama (rotary positions, RMSNorm, SwiGLU, grouped-query attention)",
}


def _card(record: dict) -> str:
    """Write the model card from the record."""
    recipe = record["recipe"]
    heads = f"{recipe['heads']} heads"
    if recipe["kv_heads"] != recipe["heads"]:
        heads += f" sharing {recipe['kv_heads']} key-value heads"
    rows = "\n".join(
        f"| step{row['step']}{' (from its seed, not stored)' * (row['step'] == 0)} | {row['tokens']:,} "
        f"| {row['validation_loss']:.3f} | {row['bits_per_byte']:.3f} |"
        for row in record["checkpoints"]
    )
    held_out = ", ".join(name.removesuffix(".txt").replace("_", " ") for name in record["data"]["held_out_files"])
    quoted = "\n".join(f"> {line}" for line in record["sample"].splitlines())
    return f"""# {record["name"]}

A small English language model, trained for this project so that everything in it runs without a network.
It is an object of study, not a source of facts.

| | |
| --- | --- |
| architecture | {_ARCHITECTURES[recipe["architecture"]]} |
| size | {record["parameters"]:,} parameters; {recipe["blocks"]} blocks, width {recipe["width"]}, {heads}, \
MLP width {recipe["mlp_width"]}, embedding tied to the output |
| tokenizer | byte-level BPE, {recipe["vocabulary"]:,} tokens, trained on the same text |
| data | {record["data"]["text"]} |
| held out | {held_out} |
| training | {record["steps"]:,} steps of {recipe["windows"]} x {recipe["context"]} tokens = {record["tokens"]:,} \
tokens; AdamW, learning rate {recipe["learning_rate"]:g} with {recipe["warmup"]} steps of warm-up and a cosine, \
weight decay {recipe["weight_decay"]:g}, bfloat16 autocast |
| seed | {record["seed"]} (initialisation, split and batches) |
| stored as | float16, safetensors |
| made with | torch {record["versions"]["torch"]}, transformers {record["versions"]["transformers"]} |
| command | `{record["command"]}` |

| checkpoint | tokens seen | validation loss (nats per token) | bits per byte |
| --- | --- | --- | --- |
{rows}

A sample at temperature 0.8 (the beginning is given):

{quoted}
"""
