r"""What the width of a model alone does to a coupling: the curve that the paper's figure 1a lies on.

The released code's `trace` normalisation divides a distance by the sum of K singular values. For a flat spectrum and
random bases it is about $1/\sqrt K$ (`coupling_lib.metrics.nulls`). With $K = \lfloor 0.1\,d \rfloor$, one of the
numbers of vectors in the pre-release code, 1 minus it grows with the width $d$ although nothing is coupled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def width_curve(d: ArrayLike) -> NDArray[np.float64]:
    r"""Coupling without any coupling, $1 - 1/\sqrt{\lfloor 0.1\,d \rfloor}$."""
    return 1 - np.maximum(1, np.floor(np.asarray(d) / 10)) ** -0.5


def beyond_width(coupling: ArrayLike, d: ArrayLike) -> NDArray[np.float64]:
    r"""What is left of a coupling when the width has been divided out, $(1 - c)\sqrt{0.1\,d}$."""
    return (1 - np.asarray(coupling)) * np.sqrt(0.1 * np.asarray(d))
