"""The drawing of the construction: its matrices are what their labels say, and it repeats in both themes."""

import numpy as np
from matplotlib.patches import FancyArrowPatch
from numpy.testing import assert_allclose

from companion.figures import schematic

EXAMPLE = schematic.take_construction()


def test_only_the_coupled_matrix_is_diagonal():
    parts = dict(zip(EXAMPLE.matrix.values, EXAMPLE.values, strict=True))
    coupled, uncoupled = parts["coupled"], parts["uncoupled"]
    diagonal = np.diag(np.diag(coupled))
    assert_allclose(coupled, diagonal, atol=1e-12)
    assert np.linalg.norm(uncoupled - np.diag(np.diag(uncoupled))) > 0.8 * np.linalg.norm(diagonal)
    assert_allclose(np.linalg.svd(coupled)[1], np.linalg.svd(uncoupled)[1])
    assert_allclose(parts["U"] @ parts["S"] @ parts["V"].T, parts["J2"])
    assert_allclose(parts["U"].T @ parts["J1"] @ parts["V"], coupled, atol=1e-12)


def test_arrows_never_point_to_an_earlier_token():
    patches = [patch for axes in schematic.draw_construction(EXAMPLE).axes for patch in axes.patches]
    arrows = [patch for patch in patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 2 + 2 * len(schematic.COUPLINGS)  # two in the stream, two in each lattice
    for _, measured, used in schematic.COUPLINGS.values():
        assert measured != used
        for start, end, block in (measured, used):
            assert start <= end and block in (0, 1, 2)
