"""The suite: many small language models with one recipe, measured at every checkpoint.

The models are one base setting, varied one thing at a time, and width crossed with depth. Every model sees the same
held-out split and reads the same tokenizer as `nano-neox`; seeds change the initialisation and the batches. Three tiny
models are trained on the text of the grammar of `training.text`, which needs no corpus, so that whoever has the library
can repeat them.
"""

import re
from dataclasses import asdict, replace

from companion.training import columns
from companion.training.columns import N_PROMPTS, Columns
from companion.training.experiment import EMBEDDED, Checkpoint, Experiment, ExperimentRecipe
from companion.training.language import RECIPES
from coupling_lib.metrics.nulls import DRAWS

BASE = ExperimentRecipe(
    "neox", width=64, blocks=8, heads=2, kv_heads=2, mlp_width=256, vocabulary=1536, context=128, windows=8,
    steps=600, checkpoints=(32, 100, 300, 600), warmup=50,
)  # fmt: skip
TINY = ExperimentRecipe(
    "neox", width=32, blocks=3, heads=2, kv_heads=2, mlp_width=128, vocabulary=320, context=64, windows=8,
    steps=60, checkpoints=(20, 60), learning_rate=3e-3, warmup=10, corpus="grammar", precision="float32",
)  # fmt: skip
_VARIED = {"seed": "seed", "sd": "stochastic_depth", "wd": "weight_decay", "lr": "learning_rate", "drop": "dropout"}


def _sized(base: ExperimentRecipe, width: int, blocks: int, architecture: str = "neox") -> ExperimentRecipe:
    """Change a recipe's size, with an MLP of the architecture's usual width: 4 d, or 8 d / 3 if it is gated."""
    inner = 4 * width if architecture == "neox" else 8 * round(width / 3)
    return replace(base, architecture=architecture, width=width, blocks=blocks, mlp_width=inner)


def _changed(names: str) -> dict[str, ExperimentRecipe]:
    """Parse changes of the base setting from their names: `sd0.2-wd1` has stochastic depth 0.2 and weight decay 1."""
    found = {}
    for name in names.split():
        given = re.findall(r"([a-z]+)([\d.]+(?:e-\d)?)", name)
        values = {_VARIED[short]: int(value) if short == "seed" else float(value) for short, value in given}
        found[f"neox-w64-d8-{name}"] = replace(BASE, **values)
    return found


def _suite() -> dict[str, ExperimentRecipe]:
    """Return all recipes by name, in the order of training: the sooner a run is cut short, the coarser the suite."""
    models = {"tiny-neox-w32-d3": TINY, "tiny-neox-w48-d4": _sized(TINY, 48, 4)}
    models |= {"tiny-llama-w32-d3": _sized(TINY, 32, 3, "llama"), "neox-w64-d8": BASE}
    grid = [(32, 4), (96, 4), (32, 12), (48, 8), (64, 4), (32, 8), (96, 8), (48, 4), (64, 12), (48, 12), (96, 12)]
    models |= {f"neox-w{width}-d{blocks}": _sized(BASE, width, blocks) for width, blocks in grid}
    models |= _changed("seed1 sd0.2 wd1 lr5e-4 drop0.1 seed2 wd0 sd0.1 lr6e-3")
    gated = [(64, 8), (32, 8), (64, 4), (96, 8)]
    models |= {f"llama-w{width}-d{blocks}": _sized(BASE, width, blocks, "llama") for width, blocks in gated}
    return models | _changed("wd3 sd0.4 drop0.2 lr1e-3 seed3 sd0.2-wd1 sd0.2-wd0")


SUITE = _suite()
"""Recipes of the models that the suite trains, by name."""

HEADER = f"""\
Models of the suite (python -m companion.training suite), one row per model and checkpoint. Step 0 is the
initialisation that the seed gives: the untrained model. Weights from step 1 on are rounded to float16, as they are
kept; everything is measured in float32, at the last token of each prompt of load_prompts(n={N_PROMPTS}).
text: what was trained on ("grammar": training.text, "given": see text_name). train_loss: running mean.
validation_loss: nats per token; bits_per_byte: the same in bits per byte of held-out text; accuracy: share of
held-out tokens whose most probable prediction is right; 256 windows, context tokens each.
line_shape_score, expodistance, equidistance: mean over prompts, with x^0; *_median: median over prompts.
VARIANT_kK: a variant of metrics.variants.VARIANTS (all are distances, 0 is perfect coupling) with K = 5, 10 or
"tenth" (k_tenth = a tenth of the width, rounded), mean over pairs of different blocks and over prompts;
_all: mean over all pairs, the diagonal included; _sd: standard deviation over prompts of the former;
_null: its mean with the same singular values and random orthogonal bases (measures.random_bases.null_of: closed form
of the mean square and {DRAWS:,} draws), over all blocks.
shared_VARIANT_kK: VARIANT of the Jacobians without their isotropic part (cl.shared), with a null of its own;
_neighbours: mean over pairs of adjacent blocks; isotropic: mean over blocks of the Jacobian's trace over the width.
permuted_VARIANT_kK: the coordinates of one of each two blocks shuffled (metrics.surrogates).
The untrained value of a model is its row at step 0. train_seconds: to that step, on the cpu and threads named."""


def measure(one: Checkpoint) -> Columns:
    """Measure coupling with shuffled coordinates, and add the loss and time of training."""
    known = {"train_loss": one.train_loss, "train_seconds": one.train_seconds}
    return columns.permuted(one.model) | {name: value for name, value in known.items() if value is not None}


_ALL = SUITE | {name: ExperimentRecipe(**asdict(RECIPES[name])) for name in EMBEDDED}
EXPERIMENT = Experiment("suite", "train and measure the suite of language models", HEADER, _ALL, measure)
