"""Quality at fixed size: models of one shape, made better and worse without changing the architecture.

Three things are varied, each pair of them crossed: the share of training tokens that are replaced by random ones, how
much text there is to repeat, and the learning rate. All models see equally many tokens. The order is that of training,
and any beginning of it is a coarse experiment. Seeds alternate, and the centre, the best setting except for the
rate, is trained with each, so that every model has the centre of its own seed beside it.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedModel

from companion.training import experiment, scores
from companion.training.columns import Columns
from companion.training.experiment import Checkpoint, Experiment, ExperimentRecipe
from companion.training.language import evenly_spaced
from companion.training.text import Corpus
from coupling_lib.errors import ParameterError

# Drawn by random.Random(0).sample(authors, 3) from the 34 authors of the corpus in alphabetical order; nine books.
HELD_OUT_AUTHORS = ("Lytton", "Morris", "Bennet")

# Size in tokens of the evenly spaced pieces that are kept of a text with a limited number of unique tokens.
_PIECE = 4096


@dataclass(frozen=True)
class QualityRecipe(ExperimentRecipe):
    """A recipe with the factors that lower a model's quality; all text is unique if `unique_tokens` is 0."""

    held_out: tuple[str, ...] = HELD_OUT_AUTHORS
    corrupted: float = 0.0
    unique_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.corrupted <= 1:
            raise ParameterError(f"corrupted is {self.corrupted!r}; expected a share of the tokens, from 0 to 1")


STEPS = (16, 29, 51, 91, 162, 289, 516, 920, 1642, 2930)
"""Ten steps of training at which models are measured, each 1.78 times the one before."""

# 32 windows in bfloat16 are the fastest choice at this many steps: 17,300 tokens a second on one core.
# Twice the windows are 15 % faster, but halve the steps.
CENTRE = QualityRecipe(
    "neox", width=64, blocks=8, heads=2, kv_heads=2, mlp_width=256, vocabulary=1536, context=128, windows=32,
    steps=STEPS[-1], checkpoints=STEPS, learning_rate=2e-3, warmup=50,
)  # fmt: skip
SEEDS = (0, 1, 2)
_LEVELS = {
    "centre": {}, "c10": {"corrupted": 0.1}, "c25": {"corrupted": 0.25}, "c50": {"corrupted": 0.5},
    "u0.5M": {"unique_tokens": 500_000}, "u2M": {"unique_tokens": 2_000_000},
    "lr0.0005": {"learning_rate": 5e-4}, "lr0.006": {"learning_rate": 6e-3},
}  # fmt: skip
_ORDER = """
    centre c50 u0.5M lr0.0005 c25-u2M lr0.006 c50-u0.5M centre centre c25 u2M c50-lr0.0005 u0.5M-lr0.0005 c10 c10-u0.5M
    c25-lr0.006 u0.5M-lr0.006 c50-u2M c10-lr0.0005 u2M-lr0.006 c25-u0.5M c50-lr0.006 u2M-lr0.0005 c10-u2M c25-lr0.0005
    c10-lr0.006
"""


def _grid() -> dict[str, QualityRecipe]:
    """Return all recipes by name, in the order of training."""
    found = {}
    for number, levels in enumerate(_ORDER.split()):
        changes = {key: value for level in levels.split("-") for key, value in _LEVELS[level].items()}
        seed = SEEDS[number % len(SEEDS)]
        found[f"{levels}-seed{seed}"] = replace(CENTRE, **changes, seed=seed)
    return found


GRID = _grid()
"""Recipes of the experiment by name."""

HEADER = """\
Quality at fixed size (python -m companion.training quality), one row per model and step of training. Settings,
losses and readings of coupling are those of the suite's table (data/suite.csv), measured on the same prompts.
corrupted: share of the tokens of each batch that are replaced by others, drawn at random. unique_tokens: tokens of the
text that the model was trained on, in pieces of 4,096 spread evenly over all of it; seed: of initialisation, batches
and corrupted tokens. The held-out text is nine books by three authors of whom nothing is trained on.
validation_low, _high: 95 % interval over windows of validation_loss. seen_loss: nats per token of 256 windows of the
text that was trained on, as it is; objective_loss: of the same windows, corrupted as in training.
cloze: share of blanks filled with the right one of five words; induction: share of the second half of a random
sequence shown twice that is predicted right; induction_gain: by how many nats per token its loss is below that of the
first half (all in training.scores); each with its 95 % interval over windows.
predictions_sha256: of data/predictions.toml as it was when the row was measured."""


def corrupt(ids: torch.Tensor, share: float, seed: int, step: int, vocabulary: int) -> torch.Tensor:
    """Replace a share of a batch's tokens, to half a token, by others, chosen by seed and step alone."""
    generator = np.random.default_rng([seed, step, 1])  # windows are drawn from [seed, step]
    chosen = generator.permutation(ids.numel())[: round(share * ids.numel())]
    # A token plus 1 to V - 1, modulo V, is never itself, and all others are equally likely.
    shifts = torch.from_numpy(generator.integers(1, vocabulary, size=len(chosen)))
    flat = ids.flatten().clone()
    flat[chosen] = (flat[chosen] + shifts) % vocabulary
    return flat.view_as(ids)


def limited(stream: np.ndarray, tokens: int) -> np.ndarray:
    """Return this number of tokens of a text, in pieces spread evenly over it; all if `tokens` is 0."""
    if not tokens:
        return stream
    if tokens > len(stream):
        raise ParameterError(
            f"the text has {len(stream):,} tokens to train on; {tokens:,} are asked for, give more text"
        )
    pieces = -(-tokens // _PIECE)
    starts = np.linspace(0, len(stream) - tokens, pieces).astype(int) + _PIECE * np.arange(pieces)
    return np.concatenate([stream[start : start + _PIECE] for start in starts])[:tokens]


def trained_on(corpus: Corpus, recipe: QualityRecipe) -> Corpus:
    """Return a corpus with the training text of a model."""
    return replace(corpus, train=limited(corpus.train, recipe.unique_tokens))


def training_batch(ids: torch.Tensor, step: int, recipe: QualityRecipe) -> torch.Tensor:
    """Return a batch as used in training."""
    return corrupt(ids, recipe.corrupted, recipe.seed, step, recipe.vocabulary) if recipe.corrupted else ids


def objective(model: PreTrainedModel, ids: torch.Tensor, step: int, recipe: QualityRecipe) -> torch.Tensor:
    """Compute the cross-entropy of a batch as used in training."""
    return experiment.cross_entropy(model, training_batch(ids, step, recipe), step, recipe)


def measure(one: Checkpoint) -> Columns:
    """Return a model's scores on training text and on held-out text, each with its interval."""
    recipe, corpus, predict = one.recipe, one.corpus, scores.logits_of(one.model.hf)
    held_out = evenly_spaced(corpus.validation, recipe.context)
    known = evenly_spaced(corpus.train, recipe.context)
    # A step that no training reaches: the corruption is like any batch's and equal to none.
    windows = {
        "validation": held_out,
        "seen_loss": known,
        "objective_loss": training_batch(known, recipe.steps, recipe),
    }
    losses = {name: scores.nats(predict, ids).double().mean(dim=1).numpy() for name, ids in windows.items()}
    right, gain = scores.induction(predict, recipe.vocabulary, recipe.context)
    filled = scores.cloze(predict, held_out, corpus.tokenizer)
    found = scores.with_interval(**losses, cloze=filled, induction=right, induction_gain=gain)
    del found["validation"]  # the common validation_loss
    # The running loss of the log starts again where a run resumes; objective_loss replaces it.
    return {"unique_tokens": len(corpus.train)} | found | {"train_seconds": one.train_seconds}


EXPERIMENT = Experiment(
    "quality", "train and measure models of one shape", HEADER, GRID, measure, objective, trained_on
)
