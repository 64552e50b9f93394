"""Coupling of post-norm blocks under their two maps: block minus identity, and what the sub-layers add."""

import pandas as pd
from matplotlib.figure import Figure

from companion.figures import parts, style

MAPS = {"block": "block minus identity", "branch": "what its sub-layers add"}
"""Labels of boundaries in the figure; see `Trace.jacobian`."""


def draw_maps(table: pd.DataFrame) -> Figure:
    """Draw the coupling of each network under each map, with its interval over prompts, and chance."""
    maps, networks = list(table["map"].unique()), list(table["network"].unique())
    figure, axes, right = parts.one_panel(1.9)
    for position, network in enumerate(networks):
        one = table[table["network"] == network]
        rows = [maps.index(name) + 0.22 * (position - (len(networks) - 1) / 2) for name in one["map"]]
        ink = style.dataset_colour(network, position)
        parts.dots(axes, rows, one["coupling"], (one["low"], one["high"]), ink, markersize=6, label=network)
    axes.axvline(table["chance"].mean(), color=style.colour(style.NULL), linestyle="--", linewidth=1, label="chance")
    parts.rows_axis(axes, [MAPS[name] for name in maps])
    axes.set(xlim=(0, 1), xlabel="coupling $1 - \\tilde m$ of two different blocks\n(1 is perfect)")
    parts.legend_beside(right, [axes])
    return figure
