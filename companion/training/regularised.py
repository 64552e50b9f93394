"""Does encouraging coupling change what a model learns? Pairs of runs, with `coupling_loss` and without.

Both runs of a pair have the same seed: the same initialisation and the same batches. The regulariser is added to the
cross-entropy with a weight, its strength, that rises linearly from 0 between a quarter and a half of the training:
the Jacobians of fresh weights are small, a loss that is blind to their size has large gradients there, and the model
should first learn to predict. Each run is trained, resumed and measured like a model of the suite, by `suite.run_all`.
"""

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from transformers import PreTrainedModel

from companion.tables.regularised import difference_table, regularised
from companion.training import suite_table, text
from companion.training.language import fit, loss, validation_windows
from companion.training.suite import SuiteRecipe, build, weights
from coupling_lib.jacobian.regulariser import coupling_loss
from coupling_lib.models.load import wrap_model


@dataclass(frozen=True)
class RegularisedRecipe(SuiteRecipe):
    """A recipe with a regulariser."""

    strength: float = 0.0
    piece: int = 16
    pieces: int = 16
    probes: int = 4


BASE = RegularisedRecipe(
    "neox", width=48, blocks=6, heads=2, kv_heads=2, mlp_width=192, vocabulary=1536, context=128, windows=8,
    steps=300, checkpoints=(300,), warmup=50,
)  # fmt: skip
SEEDS = range(5)
STRENGTHS = (0.3, 0.03)

HEADER = """\
Pairs of runs with and without the regulariser coupling_loss (python -m companion.training.regularised), one row
per run, and one for the untrained model of each seed (step 0). Runs of one seed share initialisation and batches.
strength: weight of the regulariser, 0 without; coupling_loss: its value after training on pieces of held-out text,
all pairs of blocks. All other columns are those of the suite's table (data/suite.csv)."""


def recipes() -> dict[str, RegularisedRecipe]:
    """Give all runs by name, pair after pair, the first strength of every seed before the second."""
    chosen = [(STRENGTHS[0], seed, side) for seed in SEEDS for side in (0.0, STRENGTHS[0])]
    chosen += [(strength, seed, strength) for strength in STRENGTHS[1:] for seed in SEEDS]
    return {f"strength{side:g}-seed{seed}": replace(BASE, strength=side, seed=seed) for _, seed, side in chosen}


def objective(model: PreTrainedModel, ids: torch.Tensor, step: int, recipe: RegularisedRecipe) -> torch.Tensor:
    """Cross-entropy, and the regulariser with the weight of this step."""
    value = loss(model, ids)
    strength = recipe.strength * ramp(step, recipe.steps)
    if strength:
        # Evenly spaced short pieces of the batch.
        pieces = ids[:, : ids.shape[1] // recipe.piece * recipe.piece].reshape(-1, recipe.piece)
        pieces = pieces[:: max(1, len(pieces) // recipe.pieces)][: recipe.pieces]
        value = value + strength * coupling_loss(model, pieces, probes=recipe.probes)
    return value


def ramp(step: int, steps: int) -> float:
    """Give the share of the strength that applies at a step."""
    return min(1.0, max(0.0, (step - 0.25 * steps) / (0.25 * steps)))


def train_one(name: str, recipe: RegularisedRecipe, corpus: text.Corpus, run: Path, text_name: str) -> list[dict]:
    """Train one run and measure it."""
    fit(recipe, build(recipe), corpus, run, every_seconds=60.0, objective=partial(objective, recipe=recipe))
    held_out, rows = validation_windows(corpus, recipe.piece, windows=64), []
    for step in (recipe.steps,) if recipe.strength else (0, recipe.steps):
        hf = weights(recipe, run, step)
        hf.set_attn_implementation("eager")
        value = coupling_loss(hf, held_out, range(recipe.blocks), generator=torch.Generator().manual_seed(0)).item()
        model = wrap_model(hf, corpus.tokenizer, name=name)
        rows.append(suite_table.timed_row(name, recipe, model, corpus, text_name, step) | {"coupling_loss": value})
    return rows


def differences(table: Path) -> list[str]:
    """Say what the regulariser changes, one line per strength and column."""
    lines = []
    for row in difference_table(regularised(table)).itertuples():
        span = f"95 % interval {row.low:+.4f} to {row.high:+.4f}, {row.pairs} pairs"
        lines.append(f"strength {row.strength:g}: {row.column} changes by {row.difference:+.4f} ({span})")
    return lines


if __name__ == "__main__":
    import_module("companion.training.__main__").main(command="regularised")
