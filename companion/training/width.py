"""Width at fixed quality: models of one recipe and five widths, compared at equal loss.

In the paper's figure 1a the number of singular vectors grows with the width, a tenth of it, and so does the coupling of
random directions. If coupling follows the width among models that are equally good, the figure shows width.
"""

from dataclasses import replace

from companion.training import quality

WIDTHS = (48, 64, 96, 128, 192)
SEEDS = (0, 1)
STEPS = quality.STEPS[:8]
"""Training stops at 3.8 M tokens: the widest model takes nine times as long as the centre for each."""
_HEAD = 16

GRID = {
    f"w{width}-seed{seed}": replace(
        quality.CENTRE, width=width, heads=width // _HEAD, kv_heads=width // _HEAD, mlp_width=4 * width, seed=seed,
        steps=STEPS[-1], checkpoints=STEPS,
    )
    for seed in SEEDS
    for width in WIDTHS
}  # fmt: skip
"""Recipes of the experiment by name, in the order of training."""

HEADER = quality.HEADER.replace("Quality at fixed size", "Width at fixed quality")
HEADER = HEADER.replace("training quality)", "training width)")

EXPERIMENT = replace(
    quality.EXPERIMENT, name="width", does="train and measure models of five widths", header=HEADER, recipes=GRID
)
