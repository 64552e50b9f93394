"""Layout shared by figures: square panels, room for block numbers."""

import pytest

from coupling_lib.figures import panels, style


@pytest.mark.parametrize("count", [1, 2, 3])
def test_panels_are_square_and_lie_inside_the_column(count):
    figure, row = panels.square_panels([f"model {i}" for i in range(count)])
    width, height = figure.get_size_inches()
    assert width == style.WIDTH
    for axes in row:
        box = axes.get_position()
        assert box.width * width == pytest.approx(box.height * height)
        assert box.x0 >= 0 and box.x1 <= 1 and box.y0 > 0 and box.y1 < 1


def test_roles_are_capitalised_in_titles_and_names_of_models_left_alone():
    _, row = panels.square_panels(["untrained", "nano-neox"])
    assert [axes.get_title() for axes in row] == ["Untrained", "nano-neox"]


def test_blocks_of_a_deep_model_are_numbered_with_gaps():
    _, (axes,) = panels.square_panels(["llama3-70b"])
    panels.block_ticks(axes, range(80), range(80))
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:3] == ["1", "6", "11"] and len(labels) == 16
