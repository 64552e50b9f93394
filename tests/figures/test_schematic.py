"""The drawing of the construction: its matrices are what their labels say, and it repeats in both themes."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch

from coupling_lib.figures import schematic, style


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_drawing_repeats_byte_for_byte_and_is_shown_as_vectors(theme):
    with style.theme(theme):
        first, second = (style.save_svg(schematic.construction()) for _ in range(2))
    assert first == second and len(first) < 400_000


def test_all_of_its_text_lies_inside():
    with style.theme("light"):
        figure = schematic.construction()
        FigureCanvasAgg(figure).draw()
        boxes = [(text.get_text(), text.get_window_extent()) for text in figure.axes[0].texts if text.get_text()]
    frame = figure.bbox
    outside = [text for text, box in boxes if box.x0 < 0 or box.x1 > frame.width or box.y0 < 0 or box.y1 > frame.height]
    assert boxes and not outside


def test_the_coupled_matrix_is_diagonal_and_the_other_is_not_although_both_have_the_same_singular_values():
    parts = schematic.example_matrices()
    diagonal = np.diag(np.diag(parts["coupled"]))
    assert np.allclose(parts["coupled"], diagonal, atol=1e-12)
    assert np.linalg.norm(parts["uncoupled"] - np.diag(np.diag(parts["uncoupled"]))) > 0.8 * np.linalg.norm(diagonal)
    values = [np.linalg.svd(parts[name])[1] for name in ("coupled", "uncoupled")]
    assert np.allclose(*values)


def test_the_decomposition_is_one():
    parts = schematic.example_matrices()
    assert np.allclose(parts["U"] @ parts["S"] @ parts["V"].T, parts["J2"])
    assert np.allclose(parts["U"].T @ parts["J1"] @ parts["V"], parts["coupled"])


def test_every_kind_of_coupling_compares_two_jacobians_that_run_upwards_and_never_back_to_an_earlier_token():
    with style.theme("light"):
        arrows = [patch for patch in schematic.construction().axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 2 + 2 * len(schematic.COUPLINGS)  # two in the stream, two in each lattice
    for _, measured, used in schematic.COUPLINGS.values():
        assert measured != used
        for start, end, block in (measured, used):
            assert start <= end and block in (0, 1, 2)


def test_table_holds_every_entry_of_every_matrix():
    table = schematic.example_table()
    parts = schematic.example_matrices()
    assert len(table) == sum(matrix.size for matrix in parts.values())
    entry = table[(table.matrix == "J1") & (table.row == 2) & (table.column == 3)].entry.item()
    assert entry == parts["J1"][1, 2]
