"""Writes the page on the error rates of the verdicts' rule, from the tables of `calibration`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from calibration import ERRORS, TABLE, false_alarms_of_few
from claims import PLACES, read_claims
from markdown_table import table
from template import from_template
from verdicts import LEVEL

REJUDGED = Path(__file__).with_name("rejudged.csv")
"""Verdicts that changed with the rule, the data or a quantifier."""

ALLOWED = 0.06
"""Largest error rate that counts as right, at a level of 0.05."""

FEW = 4
"""Number of prompts of the largest public decoder."""


def errors() -> pd.DataFrame:
    """Read the error rates of verdicts of each shape."""
    return pd.read_csv(ERRORS)


def calibration_page() -> str:
    """Write the errors of verdicts and of single tests, and the verdicts that were judged again."""
    shapes, alone, anew = errors(), pd.read_csv(TABLE), pd.read_csv(REJUDGED)
    texts = {claim["id"]: claim["claim"] for claim in read_claims()}
    above = alone[alone["false_alarms"] > LEVEL]
    wrong = [f"{line.shape} ({line.error:.3f})" for line in shapes.itertuples() if line.error > ALLOWED]
    return from_template(
        "calibration.md.jinja",
        many=len(shapes),
        allowed=ALLOWED,
        worst=f"{shapes['error'].max():.3f}",
        missing=wrong,
        shapes=_shown(shapes.drop(columns="error")),
        few=FEW,
        of_few=f"{false_alarms_of_few(FEW):.2f}",
        level=LEVEL,
        above=[f"{one.reading}, {one.values} ({one.false_alarms:.3f})" for one in above.itertuples()],
        alone=_shown(alone.rename(columns={"reading": "test"})),
        rejudged=_shown(anew.assign(claim=anew["claim"].map(texts), place=anew["place"].map(PLACES))),
    )


def _shown(rows: pd.DataFrame) -> str:
    shown = rows.map(lambda value: f"{value:.3f}" if isinstance(value, float) else str(value))
    return table([name.replace("_", " ") for name in rows], shown.to_numpy().tolist())
