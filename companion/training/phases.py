"""Causes of the peak of coupling: action common to all prompts, and lead of one direction, over training.

Six seeds of one small model are trained and measured at log-spaced steps, and nano-neox, which is embedded, at its own.
"""

from dataclasses import asdict, replace

import numpy as np
import torch

from companion.training import scores
from companion.training.columns import Columns
from companion.training.experiment import Checkpoint, Experiment, ExperimentRecipe
from companion.training.language import RECIPES
from companion.training.quality import STEPS
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.inputs.traced import trace
from coupling_lib.models.model import Model
from coupling_lib.svd.shared import without_isotropic

PROMPTS = 24
BASE = ExperimentRecipe(
    "neox", width=48, blocks=6, heads=2, kv_heads=2, mlp_width=192, vocabulary=1536, context=128, windows=8,
    steps=STEPS[8], checkpoints=STEPS[:9], warmup=50,
)  # fmt: skip
EMBEDDED = "nano-neox"
GRID = {f"seed{seed}": replace(BASE, seed=seed) for seed in range(6)}
GRID[EMBEDDED] = ExperimentRecipe(**asdict(RECIPES[EMBEDDED]))
"""Recipes of the experiment by name."""

HEADER = f"""\
Why coupling peaks (python -m companion.training phases), one row per model and step of training. Settings, losses and
readings of coupling are those of data/quality.csv. All else is a mean over blocks, at the last token of {PROMPTS}
prompts, of the Jacobians J of a block: alike: share of the squared norm that is that of their mean over prompts, an
unbiased estimate; shared_alike: the same without the isotropic part; log_lead: mean logarithm of s1/s2; rank: effective
rank, the exponential of the entropy of the singular values over their sum; norm: of the last state. induction,
induction_gain: as in data/quality.csv. predictions_sha256: of data/predictions.toml when the row was measured."""


def split(J: torch.Tensor) -> float:
    """Return the share of the squared norm of Jacobians (prompts, d, d) that is their mean's, unbiased."""
    each, mean, n = J.square().sum(dim=(1, 2)).mean(), J.mean(dim=0).square().sum(), len(J)
    # The mean of n also holds an n-th of the fluctuation.
    return float((n * mean - each) / (n - 1) / each)


def of_blocks(model: Model) -> Columns:
    """Measure the properties of a checkpoint's Jacobians, and of its last state."""
    traces = [trace(model, prompt) for prompt in load_prompts(n=PROMPTS)]
    found = []
    for block in range(model.n_blocks):
        J = torch.stack([traced.jacobian(block).dense().double() for traced in traces])
        s = torch.linalg.svdvals(J)
        shares = s / s.sum(dim=1, keepdim=True)
        entropy = -(shares * shares.clamp_min(1e-300).log()).sum(dim=1)
        rest = without_isotropic(J.clone())
        found.append([split(J), split(rest), (s[:, 0] / s[:, 1]).log().mean().item(), entropy.exp().mean().item()])
    columns = dict(zip(("alike", "shared_alike", "log_lead", "rank"), np.mean(found, axis=0).tolist(), strict=True))
    return columns | {"norm": float(np.mean([traced.hidden[-1, -1].norm().item() for traced in traces]))}


def measure(one: Checkpoint) -> Columns:
    """Measure blocks, and the model's copying."""
    right, gain = scores.induction(scores.logits_of(one.model.hf), one.recipe.vocabulary, one.recipe.context)
    return of_blocks(one.model) | scores.with_interval(induction=right, induction_gain=gain)


EXPERIMENT = Experiment("phases", "train and measure one model over its phases", HEADER, GRID, measure)
