"""Second rise of coupling, long after its fall: two small models, trained on 200 M tokens each.

The models are as small as those of `phases`: with 800 tokens per parameter they reach the range of the paper's
models, which see some hundred to some thousand, and nano-neox, with 30, does not.
"""

from dataclasses import replace

from companion.training import phases
from companion.training.columns import Columns
from companion.training.experiment import Checkpoint, Experiment
from coupling_lib.datasets.parts import shared_part
from coupling_lib.inputs.prompts import load_prompts
from coupling_lib.measures.depth import measure_depth
from coupling_lib.metrics.variants import different_pairs
from coupling_lib.models.model import Model

STEPS = (16, 33, 69, 142, 295, 611, 1269, 2632, 5460, 11328, 23502, 48829)
"""Twelve steps, each 2.07 times the one before; 4,096 tokens a step, so that the last is at 200 M."""

_NEOX = replace(phases.BASE, windows=32, steps=STEPS[-1], checkpoints=STEPS)
GRID = {"long-neox": _NEOX, "long-llama": replace(_NEOX, architecture="llama", mlp_width=128)}
"""Recipes of the experiment by name."""

READING, K = "normalized_miscoupling", 10

HEADER = f"""\
Whether coupling rises again (python -m companion.training later), one row per model and step of training. Settings,
losses and readings of coupling are those of data/phases.csv, and so is what is said of blocks. coupling_pN, shared_pN:
1 - {READING} at K = {K}, mean over pairs of different blocks, on prompt N of {phases.PROMPTS}, and the same of
the Jacobians without their isotropic part. pair_I_J: coupling of blocks I and J, mean over these prompts, where the
vectors of J are set against the Jacobian of I."""


def of_prompts(model: Model) -> Columns:
    """Measure coupling by prompt and by pair of blocks."""
    depth = measure_depth(model, load_prompts(n=phases.PROMPTS), ks=(K,))
    columns: Columns = {}
    for name, part in (("coupling", depth), ("shared", shared_part(depth))):
        values = 1 - part[READING].sel(k=K).values
        columns |= {f"{name}_p{i}": float(x) for i, x in enumerate(different_pairs(values).mean(axis=1))}
    of_pairs = 1 - depth[READING].sel(k=K).mean("prompt").values
    blocks = range(model.n_blocks)
    return columns | {f"pair_{i}_{j}": float(of_pairs[i, j]) for i in blocks for j in blocks if i != j}


def measure(one: Checkpoint) -> Columns:
    """Measure the columns of `phases`, and coupling by prompt and by pair of blocks."""
    return phases.measure(one) | of_prompts(one.model)


EXPERIMENT = Experiment("later", "train and measure small models for long", HEADER, GRID, measure)
