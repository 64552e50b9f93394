"""Effect of coupling on learning: runs made more coupled or less, and their unregularised twins.

Runs of one seed have the same initialisation and the same batches. The regulariser `coupling_loss` is added to the
cross-entropy with a weight, its strength, from the first step or from one after the peak of coupling; a negative one
drives blocks apart. A sham adds as large a gradient, weight by weight, in random directions.
"""

from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from companion.training.columns import Columns
from companion.training.experiment import Checkpoint, Experiment, ExperimentRecipe, cross_entropy, every_step
from companion.training.language import evenly_spaced
from coupling_lib.jacobian.regulariser import coupling_loss


@dataclass(frozen=True)
class RegularisedRecipe(ExperimentRecipe):
    """A recipe with a regulariser, which begins at a step and reaches its full strength some steps later."""

    strength: float = 0.0
    begin: int = 0
    rise: int = 50
    shared: bool = False
    sham: bool = False
    piece: int = 16
    pieces: int = 16
    probes: int = 4


BASE = RegularisedRecipe(
    "neox", width=48, blocks=6, heads=2, kv_heads=2, mlp_width=192, vocabulary=1536, context=128, windows=8,
    steps=600, checkpoints=(300, 600), warmup=50,
)  # fmt: skip
SEEDS = range(6)
# Coupling of the suite's models of this width peaks near step 100 and has fallen by 300.
BEGINS = (0, 300)
ARMS = {
    "encourage0.3": {"strength": 0.3}, "decouple0.03": {"strength": -0.03}, "encourage0.03": {"strength": 0.03},
    "sham0.3": {"strength": 0.3, "sham": True}, "shared0.3": {"strength": 0.3, "shared": True},
}  # fmt: skip
"""Settings of the arms, by name."""

HEADER = """\
Runs with the regulariser coupling_loss and without (python -m companion.training regularised), one row per run and
step, and one for the untrained model of each seed (step 0). Runs of one seed share initialisation and batches; one
that begins later is its twin without until then, and has a row at its last step alone.
strength: weight of the regulariser, 0 without, negative where blocks are driven apart; begin, rise: the step from which
on it is added, and after how many more its strength is whole; shared: whether it takes the Jacobians without their
isotropic part; sham: whether a gradient as large, in random directions, stands in its place. coupling_loss,
coupling_loss_shared: its two values after training on pieces of held-out text, all pairs of blocks.
predictions_sha256: of data/predictions.toml as it was when the row was measured. All other columns are those of the
suite's table (data/suite.csv)."""


def recipes() -> dict[str, RegularisedRecipe]:
    """Return all runs by name, seed after seed."""
    found = {}
    for seed in SEEDS:
        found[f"without-seed{seed}"] = replace(BASE, seed=seed)
        for begin in BEGINS:
            for arm, changes in ARMS.items():
                recipe = replace(BASE, **changes, seed=seed, begin=begin)
                found[f"{arm}-from{begin}-seed{seed}"] = recipe if begin == 0 else replace(recipe, checkpoints=(600,))
    return found


def objective(model: PreTrainedModel, ids: torch.Tensor, step: int, recipe: RegularisedRecipe) -> torch.Tensor:
    """Compute the cross-entropy plus the regulariser with the weight of this step."""
    value = cross_entropy(model, ids, step, recipe)
    strength = recipe.strength * ramp(step, recipe)
    if strength:
        # Evenly spaced short pieces of the batch.
        pieces = ids[:, : ids.shape[1] // recipe.piece * recipe.piece].reshape(-1, recipe.piece)
        pieces = pieces[:: max(1, len(pieces) // recipe.pieces)][: recipe.pieces]
        added = strength * coupling_loss(model, pieces, probes=recipe.probes, shared=recipe.shared)
        value = value + (_sham(model, added) if recipe.sham else added)
    return value


def _sham(model: PreTrainedModel, added: torch.Tensor) -> torch.Tensor:
    """Return a term of value 0 whose gradient is as large as another's in every weight matrix, in random directions."""
    weights_of = list(model.parameters())
    gradients = torch.autograd.grad(added, weights_of, allow_unused=True)
    terms = []
    for weight, gradient in zip(weights_of, gradients, strict=True):
        if gradient is not None:
            direction = torch.randn_like(weight)
            along = (weight * direction).sum() * (gradient.norm() / direction.norm())
            terms.append(along - along.detach())
    return torch.stack(terms).sum()


def ramp(step: int, recipe: RegularisedRecipe) -> float:
    """Return the share of the strength that applies at a step."""
    return min(1.0, max(0.0, (step - recipe.begin) / recipe.rise))


def steps(recipe: RegularisedRecipe) -> tuple[int, ...]:
    """Return the steps of a run that are measured; the untrained model of a seed is measured once."""
    return recipe.checkpoints if recipe.strength else every_step(recipe)


def measure(one: Checkpoint) -> Columns:
    """Measure the regulariser's two values on pieces of held-out text."""
    hf, held_out = one.model.hf, evenly_spaced(one.corpus.validation, one.recipe.piece, windows=64)
    hf.set_attn_implementation("eager")
    parts = {"coupling_loss": False, "coupling_loss_shared": True}
    return {
        column: coupling_loss(
            hf, held_out, range(one.recipe.blocks), generator=torch.Generator().manual_seed(0), shared=shared
        ).item()
        for column, shared in parts.items()
    }


EXPERIMENT = Experiment(
    "regularised", "train pairs, with the regulariser and without", HEADER, recipes(), measure, objective, steps=steps
)
