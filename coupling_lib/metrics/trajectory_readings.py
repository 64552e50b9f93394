r"""Rival readings of the trajectory scores, each under a name of its own.

The paper defines line-shape score and expodistance by formulas and equidistance by a word. Its formulas leave open
which states a trajectory is made of, and its words do not always say what its formulas do. Nothing here is blended:
`STATES` names the choices of states, `READINGS` the choices of formula, and `measure_readings` gives every
combination, so that a reader sees on a real model which choices matter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from coupling_lib.errors import UntrustworthyResultError
from coupling_lib.metrics.trajectory import equidistance, expodistance, line_shape_score, norms

STATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "default": lambda x, normed: x,
    "without embedding": lambda x, normed: x[1:],
    "normed end": lambda x, normed: torch.cat([x[:-1], normed[None]]),
    "both": lambda x, normed: torch.cat([x[1:-1], normed[None]]),
}
r"""Which states make the trajectory, from $x^0 .. x^L$ and the last state after the final norm. The default of the
library takes all of $x^0 .. x^L$ as the blocks leave them. `without embedding` drops $x^0$; `normed end` takes the
last state after the final norm, as Hugging Face's `hidden_states` and with them the released code do; `both` does
both."""

READINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "line_shape_score": line_shape_score,
    "expodistance": expodistance,
    "expodistance_sample": partial(expodistance, correction=1),
    "expodistance_root": lambda x: expodistance(x).sqrt(),
    "equidistance": equidistance,
    "equidistance_sample": partial(equidistance, correction=1),
    "equidistance_squared": lambda x: equidistance(x) ** 2,
}
r"""Formulas by name. `expodistance` is the paper's formula, the square of a coefficient of variation with the
population variance; `expodistance_root` is the coefficient of variation that the paper's text calls it.
`equidistance` is a coefficient of variation, `equidistance_squared` its square; `_sample` takes the sample
variance."""


def score_or_nan(score: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Score a trajectory, or say by NaN that its score does not exist."""
    # A part of a trajectory may have no net growth, or too few steps for a sample variance. Such a part is left out
    # of medians; one among thousands must not end a measurement. States that hold NaN are refused all the same.
    if len(x) < 2:
        return float("nan")
    norms(x)
    try:
        return float(score(x))
    except UntrustworthyResultError:
        return float("nan")


def measure_readings(x: Tensor, normed: Tensor | None) -> Tensor:
    """Score one trajectory in every reading."""
    rows = []
    for name, choose in STATES.items():
        known = normed is not None or name in ("default", "without embedding")
        path = choose(x, x[-1] if normed is None else normed)
        rows.append([score_or_nan(score, path) if known else float("nan") for score in READINGS.values()])
    return torch.tensor(rows, dtype=torch.float64)
