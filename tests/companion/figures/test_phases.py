"""The figure of why coupling peaks draws every seed's course, and their mean."""

import numpy as np
import pytest

from companion.figures import phases as figures
from companion.tables import later, phases

TABLE = phases.phases()


def test_each_panel_draws_seeds_mean_and_embedded_model():
    panels = figures.draw_courses(figures.take_courses(TABLE)).axes
    own = TABLE[TABLE["model"].str.startswith("seed") & (TABLE["step"] > 0)]
    for axes, quantity in zip(panels, ("coupling", "alike", "log_lead"), strict=True):
        *seeds, mean, embedded = axes.lines
        assert len(seeds) == 6 and embedded.get_label() == "nano-neox"
        assert mean.get_ydata() == pytest.approx(own.groupby("step")[quantity].mean().to_numpy())
        first = own[own["model"] == "seed0"].sort_values("step")[quantity]
        assert seeds[0].get_ydata() == pytest.approx(first.to_numpy())


def test_long_runs_are_drawn_against_tokens():
    table = later.later()
    panels = figures.draw_long(figures.take_long(table)).axes
    own = table[(table["model"] == "long-llama") & (table["step"] > 0)]
    for axes, solid, dashed in zip(panels, ("coupling", "near"), ("shared", "far"), strict=False):
        drawn = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 12]
        assert len(drawn) == 4 and any(np.array_equal(ys, own[solid]) for ys in drawn)
        assert any(np.array_equal(ys, own[dashed]) for ys in drawn)
        (null,) = (line for line in axes.lines if line.get_label() == "by chance")
        assert null.get_ydata()[0] == pytest.approx(0.0516, abs=2e-4)
    assert panels[3].lines[1].get_xdata().tolist() == own["tokens"].tolist()
    assert panels[3].lines[1].get_ydata() == pytest.approx(own["validation_loss"].to_numpy())
