"""What the figures of the grid of vision transformers are drawn from in the tests of all figures: a made-up grid."""

import numpy as np
import pandas as pd

from companion.figures import vision
from companion.tables.vit_grid import NAMED_RATES, Reading

DECAYS, RATES = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2), (0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
STATED = {0.0: 0.35, 0.3: 0.83}


def make_grid() -> pd.DataFrame:
    """64 models, and two further seeds of a row; accuracy follows coupling."""
    rng = np.random.default_rng(0)
    rows = [
        {"model": f"wd{decay}-sd{rate}-seed{seed}", "weight_decay": decay, "drop_path": rate, "seed": seed}
        for decay in DECAYS
        for rate in RATES
        for seed in (range(3) if decay == 0.04 else [0])
    ]
    table = pd.DataFrame(rows).assign(
        data="digits", blocks=12, width=36, heads=3, patch=2, epochs=14, steps=224, batch=64, images=12,
        machine="a machine", versions="torch 1",
    )  # fmt: skip
    noise = rng.normal(size=(2, len(table)))
    for token in ("class", "patch"):
        for k in (3, 10):
            coupling = 0.06 + 0.05 * table.drop_path + 0.004 * noise[0]
            name = f"{token}.k{k}.normalized_miscoupling"
            table[name] = 1 - coupling
            table[f"{name}_low"], table[f"{name}_high"] = 1 - coupling - 0.002, 1 - coupling + 0.003
            table[f"{name}_null"], table[f"{name}_untrained"] = 0.952, 0.947
    table["test_accuracy"] = 0.96 + 2 * 0.004 * noise[0] + 0.004 * noise[1]
    table["train_accuracy"] = 0.99
    return table


GRID = make_grid()


def some(n: int) -> pd.DataFrame:
    """As many settings as there are networks elsewhere: two of each, six of each, all of them."""
    few = {1: (1, 4), 2: (2, 6), 3: (0, 8)}[n]
    return GRID[GRID.weight_decay.isin(DECAYS[slice(*few)]) & GRID.drop_path.isin(RATES[slice(*few)])]


CLASS, PATCH = Reading(), Reading("patch")
CASES = {
    "draw_accuracy": (vision.draw_accuracy, lambda n: vision.take_accuracy(some(n), CLASS, STATED, NAMED_RATES)),
    "draw_accuracy_rates": (vision.draw_accuracy_rates, lambda n: vision.take_accuracy_rates(some(n), PATCH)),
    "draw_rates": (vision.draw_rates, lambda n: vision.take_rates(some(n), CLASS)),
    "draw_decays": (vision.draw_decays, lambda n: vision.take_decays(some(n), CLASS)),
}
