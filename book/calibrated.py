"""Writes the page on how often the rule of the verdicts is wrong, from the tables of `calibration`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pandas as pd
from calibration import CELLS, TABLE
from claims import read_claims
from markdown_table import table
from template import from_template

REJUDGED = Path(__file__).with_name("rejudged.csv")
"""What readings said before the rule was mended and after, where that differs."""

ALLOWED, WANTED, FEW = 0.06, 0.93, 8
"""The most false alarms and the least coverage that count as right, and the n below which errors are only told."""

KINDS = {
    r"emergence-(shared-)?fall": "fall from the peak",
    r"prompts-many-.*-(straighter|exponential|even)": "median",
    r"prompts-many-(shared-)?(self|context)-coupling.*": "mean, the null has an error",
    r"(depth|nulls|readings)-(?!paired|local|shared-directions|shared-local).*": "mean, the null has an error",
    r"(nulls-paired|nulls-shared-directions|depth-local|depth-shared-local).*": "mean, the null has an error",
    r"(prompts-many-(shared-)?instruction|spectra|perturbation|dynamics-product).*": "mean",
    r"prompts-many-(shared-)?four-bits|dynamics-linear-length": "mean within a margin",
    r"generalization-(sign|variant|quality|width)-.*": "correlation",
    r"generalization-figure-1a-partial-.*": "partial correlation over families",
    r"generalization-figure-1a-gain-.*": "lead of one R², over families",
    r"generalization-suite-gain-.*": "lead of one R²",
    r"generalization-tokens-(rising|falling|all)": "coupling and tokens",
    r"generalization-figure-1a-cv-gain": "exponential against a line",
    r"generalization-gsm8k-r": "R² against one half, over families",
    r"prompts-many-(shared-)?difficulty": "rank correlation, a third held",
    r"prompts-many-(shared-)?length-within-sets": "rank correlation within sets",
    r"prompts-many-(shared-)?length-over-all": "rank correlation",
    r"vision-rank-.*": "mean of rank correlations",
    r"vision-photographs-(shared-)?accuracy": "correlation",
    r"vision-pairs-.*": "mean",
    r"vision-photographs-(shared-)?(within|steeper)": "correlation, seven held",
}
"""Effects of `data/claims.toml`, and how the cells begin that show how they are judged."""


def kind_of(effect: str) -> str:
    """Name the kind of a reading."""
    (kind,) = (kind for pattern, kind in KINDS.items() if re.fullmatch(pattern, effect))
    return kind


def misses(cells: pd.DataFrame) -> pd.DataFrame:
    """Take the cells of n from `FEW` on whose false alarms or coverage are not as they should be."""
    wrong = (cells["false_alarms"] > ALLOWED) | (cells["coverage"] < WANTED)
    return cells[wrong & (cells["n"] >= FEW)]


def calibration_page() -> str:
    """Write the cells before and after, which readings they stand for, and what was judged anew."""
    cells = pd.read_csv(TABLE).set_index("cell").loc[[cell.name for cell in CELLS]].reset_index()
    parts = ("false_alarms", "coverage", "power")
    columns = [f"{part.replace('_', ' ')}, {when}" for part in parts for when in ("before", "now")]
    rows = []
    for cell, line in zip(CELLS, cells.to_dict("records"), strict=True):
        both = [_share(line[f"{when}{part}"]) for part in parts for when in ("before_", "")]
        rows.append([cell.reading, cell.shape, str(cell.n), *both])
    wrong = [[line.cell, _share(line.false_alarms), _share(line.coverage)] for line in misses(cells).itertuples()]
    counted = Counter(kind_of(test["effect"]) for claim in read_claims() for test in claim["test"])
    anew = pd.read_csv(REJUDGED)
    return from_template(
        "calibration.md.jinja",
        many=int((cells["n"] >= FEW).sum()),
        few=FEW,
        goal=f"at most {ALLOWED} false alarms and at least {WANTED} coverage",
        missing=wrong,
        cells=table(["reading", "values", "n", *columns], rows),
        kinds=table(["kind", "readings"], [[kind, str(n)] for kind, n in counted.most_common()]),
        rejudged=table([*anew.columns], anew.astype(str).to_numpy().tolist()),
    )


def _share(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3f}"
