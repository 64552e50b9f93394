"""The circular graph: where nodes stand, how edges look."""

import numpy as np
from matplotlib.figure import Figure

from companion.figures import circle

WEIGHTS = np.array(
    [[np.nan, 0.4, 0.1, 0.0], [0.4, np.nan, 0.2, -0.1], [0.1, 0.2, np.nan, 0.3], [0.0, -0.1, 0.3, np.nan]]
)


def test_nodes_stand_clockwise_from_the_top_and_count_from_one():
    axes = Figure().subplots()
    circle.draw(axes, WEIGHTS, 0.4, "#000000")
    assert np.allclose(axes.collections[0].get_offsets(), [[0, 1], [1, 0], [0, -1], [-1, 0]], atol=1e-12)
    assert [text.get_text() for text in axes.texts] == ["1", "2", "3", "4"]
    # Beside the nodes, not on them: neighbours are joined along the rim.
    assert [np.hypot(*text.get_position()) > 1.05 for text in axes.texts] == [True] * 4
    assert axes.axison and not axes.get_xticks().size and not any(s.get_visible() for s in axes.spines.values())


def test_width_and_opacity_are_proportional_to_weight_and_nothing_is_drawn_below_zero():
    axes = Figure().subplots()
    circle.draw(axes, WEIGHTS, 0.8, "#000000")
    looks = [(line.get_linewidth(), line.get_alpha()) for line in axes.lines]
    assert np.allclose(looks, [(2.8 * w / 0.8, 0.9 * w / 0.8) for w in (0.1, 0.2, 0.3, 0.4)])


def test_legend_samples_look_like_the_edges_they_stand_for():
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    circle.legend(figure, {"0.20": 0.2, "-0.10": -0.1}, 0.4, "coupling")
    (legend,) = figure.legends
    (line,) = legend.get_lines()
    assert line.get_linewidth() == 1.4
    assert [text.get_text() for text in (legend.get_title(), *legend.get_texts())] == ["coupling", "0.20"]
