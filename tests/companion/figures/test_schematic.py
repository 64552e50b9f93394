"""The drawing of the construction: its matrices are what their labels say, and it repeats in both themes."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import FancyArrowPatch

from companion.figures import schematic, style


def matrices():
    example = schematic.take_construction()
    return dict(zip(example.matrix.values, example.values, strict=True))


def test_only_the_coupled_matrix_is_diagonal():
    parts = matrices()
    diagonal = np.diag(np.diag(parts["coupled"]))
    assert np.allclose(parts["coupled"], diagonal, atol=1e-12)
    assert np.linalg.norm(parts["uncoupled"] - np.diag(np.diag(parts["uncoupled"]))) > 0.8 * np.linalg.norm(diagonal)
    values = [np.linalg.svd(parts[name])[1] for name in ("coupled", "uncoupled")]
    assert np.allclose(*values)
    assert np.allclose(parts["U"] @ parts["S"] @ parts["V"].T, parts["J2"])
    assert np.allclose(parts["U"].T @ parts["J1"] @ parts["V"], parts["coupled"])


def test_arrows_never_point_to_an_earlier_token():
    with style.theme("light"):
        arrows = [
            patch
            for axes in schematic.draw_construction(schematic.take_construction()).axes
            for patch in axes.patches
            if isinstance(patch, FancyArrowPatch)
        ]
    assert len(arrows) == 2 + 2 * len(schematic.COUPLINGS)  # two in the stream, two in each lattice
    for _, measured, used in schematic.COUPLINGS.values():
        assert measured != used
        for start, end, block in (measured, used):
            assert start <= end and block in (0, 1, 2)
