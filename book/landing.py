"""Writes the verdicts of all claims as the front page counts them."""

from __future__ import annotations

from claims import PLACES, counted, judge_all
from template import from_template

from coupling_lib import paths


def verdicts_strip() -> str:
    """Write how many claims got which verdict, in each place, as a strip that leads to them."""
    counts = counted(judge_all(paths.RESULTS))
    return from_template("strip.html.jinja", counted={PLACES[place]: n for place, n in counts.items()})
