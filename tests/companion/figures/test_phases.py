"""The figure of why coupling peaks draws every seed's course, and their mean."""

from __future__ import annotations

import pytest

from companion.figures import phases as figures
from companion.tables import phases

TABLE = phases.phases()


def test_each_panel_has_a_line_a_seed_their_mean_and_the_embedded_model():
    panels = figures.draw_courses(figures.take_courses(TABLE)).axes
    own = TABLE[TABLE["model"].str.startswith("seed") & (TABLE["step"] > 0)]
    for axes, quantity in zip(panels, ("coupling", "alike", "log_lead"), strict=True):
        *seeds, mean, embedded = axes.lines
        assert len(seeds) == 6 and embedded.get_label() == "nano-neox"
        assert mean.get_ydata() == pytest.approx(own.groupby("step")[quantity].mean().to_numpy())
        first = own[own["model"] == "seed0"].sort_values("step")[quantity]
        assert seeds[0].get_ydata() == pytest.approx(first.to_numpy())
