"""The recipe of the embedded language models: a causal transformer on any text, one command.

    python -m coupling_lib.training.language nano-neox TEXT --run runs/nano-neox --ship data/checkpoints

`TEXT` is a text file or a folder of `.txt` files. The run folder holds the tokenised corpus, the state
of the optimiser (written every few minutes and at every checkpoint) and the log; starting the same
command again resumes. Checkpoints lie at logarithmically spaced steps, because coupling emerges early.
Step 0 is never stored: it is the initialisation that the recorded seed gives.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional
from tqdm import tqdm
from transformers import PreTrainedModel

from coupling_lib.errors import CouplingError
from coupling_lib.training import run_files, text
from coupling_lib.training.card import ship
from coupling_lib.training.recipe import RECIPES, Recipe, configuration, initialise, learning_rate

# Keeps the random draws of different seeds apart: a seed's steps never reach the next seed's.
_MIX = 1_000_003


def loss(model: PreTrainedModel, ids: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Mean next-token cross-entropy of a batch."""
    with torch.autocast(ids.device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model(input_ids=ids, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def validation_windows(corpus: text.Corpus, context: int, windows: int = 256) -> torch.Tensor:
    """Cut evenly spaced windows out of the held-out text."""
    stream = corpus.validation
    starts = range(0, len(stream) - context, max(1, (len(stream) - context) // windows))
    return torch.stack([torch.from_numpy(stream[s : s + context].astype("int64")) for s in starts])[:windows]


@torch.no_grad()
def validation_loss(model: PreTrainedModel, corpus: text.Corpus, context: int, windows: int = 256) -> float:
    """Mean cross-entropy over evenly spaced windows of the held-out text."""
    ids = validation_windows(corpus, context, windows)
    device = next(model.parameters()).device
    return sum(float(loss(model, part.to(device))) * len(part) for part in ids.split(32)) / len(ids)


def _optimiser(model: PreTrainedModel, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95), fused=True)


def train(recipe: Recipe, source: Path, run: Path, every_seconds: float = 120.0) -> Path:
    """Train a model by a recipe; call it again to resume."""
    run = Path(run)
    run_files.claim(run, recipe)
    corpus = text.prepare(source, run / "tokens", recipe.vocabulary, recipe.held_out, recipe.seed)
    fit(recipe, initialise(configuration(recipe), recipe.seed), corpus, run, every_seconds)
    return run


def fit(
    recipe: Recipe,
    model: PreTrainedModel,
    corpus: text.Corpus,
    run: Path,
    every_seconds: float = 120.0,
    objective: Callable[[PreTrainedModel, torch.Tensor, int], torch.Tensor] | None = None,
) -> None:
    """Train a freshly initialised model to the end of its recipe, or go on where its run folder stands."""
    # Batches, and what is dropped in training, are functions of the recipe's seed and of the step alone, so that a
    # resumed run is the uninterrupted one.
    optimiser = _optimiser(model, recipe)
    state = run / "state.safetensors"
    start = run_files.load_state(state, model, optimiser) if state.exists() else 0
    log = run_files.read_log(run / "log.csv", start) or [_log_row(recipe, corpus, model, 0, float("nan"))]

    saved = time.monotonic()
    running = float("nan")
    progress = tqdm(range(start, recipe.steps), initial=start, total=recipe.steps, unit="step", mininterval=5)
    for step in progress:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, step)
        torch.manual_seed(_MIX * (recipe.seed + 1) + step)
        ids = text.batch(corpus.train, step, recipe.seed, recipe.windows, recipe.context)
        value = objective(model, ids, step) if objective else loss(model, ids)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        running = value.item() if math.isnan(running) else 0.98 * running + 0.02 * value.item()
        progress.set_postfix(loss=f"{running:.3f}", refresh=False)
        done = step + 1
        if done in recipe.checkpoints:
            run_files.save_checkpoint(model, run / f"step{done}")
        if done in recipe.checkpoints or done % 500 == 0:
            log.append(_log_row(recipe, corpus, model, done, running))
            run_files.write_log(run / "log.csv", log)
        if done in recipe.checkpoints or time.monotonic() - saved > every_seconds:
            run_files.save_state(state, model, optimiser, done)
            saved = time.monotonic()


def _log_row(recipe: Recipe, corpus: text.Corpus, model: PreTrainedModel, step: int, train_loss: float) -> dict:
    """One line of the log: losses in nats per token and in bits per byte of the held-out text."""
    model.eval()
    nats = validation_loss(model, corpus, recipe.context)
    model.train()
    bits = nats / math.log(2) * len(corpus.validation) / corpus.validation_bytes
    tokens = step * recipe.windows * recipe.context
    return {"step": step, "tokens": tokens, "train_loss": train_loss, "validation_loss": nats, "bits_per_byte": bits}


def main(arguments: list[str] | None = None) -> None:
    """Train an embedded model and ship its checkpoints: the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m coupling_lib.training.language", description=__doc__.split("\n")[0]
    )
    parser.add_argument("name", choices=RECIPES, help="the recipe")
    parser.add_argument("text", type=Path, help="a text file or a folder of .txt files")
    parser.add_argument("--run", type=Path, help="folder of the run (default: runs/NAME); the same folder resumes")
    parser.add_argument("--ship", type=Path, help="folder to copy the checkpoints and the card to when done")
    parser.add_argument("--data", help="what the text is, for the card (default: the name of the file or folder)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        run = train(RECIPES[options.name], options.text, options.run or Path("runs") / options.name)
    except (CouplingError, FileNotFoundError) as error:
        parser.exit(1, f"{error}\n")
    if options.ship:
        ship(options.name, run, options.ship / options.name, options.data or options.text.name)


if __name__ == "__main__":
    main()
