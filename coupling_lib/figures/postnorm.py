"""Coupling of post-norm blocks under their two maps, drawn: block minus identity, and what the sub-layers add."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from coupling_lib.figures import style

MAPS = {"block": "block minus identity", "branch": "what its sub-layers add"}
"""What a boundary is called in the figure; see `Trace.jacobian`."""


def coupling_of_maps(table: pd.DataFrame) -> Figure:
    """Draws the coupling of each network under each map, with its interval over prompts, and chance."""
    maps, networks = list(dict.fromkeys(table["map"])), list(dict.fromkeys(table["network"]))
    figure = Figure(figsize=(style.WIDTH, 1.75))
    axes = figure.add_axes((0.235, 0.27, 0.745, 0.55))
    for position, network in enumerate(networks):
        ink = style.dataset_colour(network, position)
        chosen = table[table["network"] == network]
        rows = [maps.index(name) + 0.22 * (position - (len(networks) - 1) / 2) for name in chosen["map"]]
        ends = (chosen["coupling"] - chosen["low"], chosen["high"] - chosen["coupling"])
        axes.errorbar(chosen["coupling"], rows, xerr=ends, fmt="o", color=ink, markersize=6, capsize=3, label=network)
    axes.axvline(table["chance"].mean(), color=style.colour(style.NULL), linestyle="--", linewidth=1, label="chance")
    axes.set_yticks(range(len(maps)), [MAPS[name] for name in maps])
    axes.set_ylim(len(maps) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.grid(axis="x")
    axes.set_xlabel(r"coupling $1 - \tilde m$ of two different blocks (1 is perfect)")
    figure.legend(*axes.get_legend_handles_labels(), loc="upper right", bbox_to_anchor=(0.985, 1.0), ncols=3)
    return figure
