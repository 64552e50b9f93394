"""Writes the page on how often the rule of the verdicts is wrong, from the tables of `calibration`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pandas as pd
from calibration import CELLS, TABLE
from claims import read_claims

REJUDGED = Path(__file__).with_name("rejudged.csv")
"""What readings said before the rule was mended and after, where that differs."""

ALLOWED, WANTED, FEW = 0.06, 0.93, 8
"""The most false alarms and the least coverage that count as right, and the n below which errors are only told."""

KINDS = {
    r"emergence-(shared-)?fall": "fall from the peak",
    r"trajectories-.*": "median",
    r"(tokens|depth|nulls|readings)-(?!paired|local|shared-directions|shared-local).*": "mean, the null has an error",
    r"(nulls-paired|nulls-shared-directions|depth-local|depth-shared-local).*": "mean, the null has an error",
    r"(prompts-step-by-step|spectra|perturbation|dynamics-product).*": "mean",
    r"precision-.*|dynamics-linear-length": "mean within a margin",
    r"generalization-(sign|variant)-.*": "correlation",
    r"generalization-figure-1a-partial-.*": "partial correlation over families",
    r"generalization-figure-1a-gain-.*": "lead of one R², over families",
    r"generalization-suite-gain-.*": "lead of one R²",
    r"generalization-tokens-(rising|falling|all)": "coupling and tokens",
    r"generalization-figure-1a-cv-gain": "exponential against a line",
    r"generalization-gsm8k-r": "R² against one half, over families",
    r"prompts-steps-at-equal-length-.*": "rank correlation, a third held",
    r"prompts-length-within-sets-.*": "rank correlation within sets",
    r"prompts-length-trained": "rank correlation",
    r"vision-rank-.*": "mean of rank correlations",
    r"vision-accuracy-.*": "correlation over rates",
    r"vision-within-.*": "correlation within rates",
    r"vision-steeper-.*": "rank correlation",
}
"""Effects of `data/claims.toml`, and how the cells begin that show how they are judged."""


def kind_of(effect: str) -> str:
    """Name the kind of a reading."""
    (kind,) = (kind for pattern, kind in KINDS.items() if re.fullmatch(pattern, effect))
    return kind


def misses(table: pd.DataFrame) -> pd.DataFrame:
    """Take the cells of n from `FEW` on whose false alarms or coverage are not as they should be."""
    wrong = (table["false_alarms"] > ALLOWED) | (table["coverage"] < WANTED)
    return table[wrong & (table["n"] >= FEW)]


def calibration_page() -> str:
    """Write the cells before and after, which readings they stand for, and what was judged anew."""
    table = pd.read_csv(TABLE).set_index("cell").loc[[cell.name for cell in CELLS]].reset_index()
    parts = ("false_alarms", "coverage", "power")
    head = [
        "reading",
        "values",
        "n",
        *(f"{part.replace('_', ' ')}, {when}" for part in parts for when in ("before", "now")),
    ]
    rows = []
    for cell, line in zip(CELLS, table.to_dict("records"), strict=True):
        both = [_share(line[f"{when}{part}"]) for part in parts for when in ("before_", "")]
        rows.append([cell.reading, cell.shape, str(cell.n), *both])
    many = int((table["n"] >= FEW).sum())
    wrong = [[line.cell, _share(line.false_alarms), _share(line.coverage)] for line in misses(table).itertuples()]
    goal, cells = f"at most {ALLOWED} false alarms and at least {WANTED} coverage", f"cells with n of {FEW} or more"
    held = [f"Each of the {many} {cells} has {goal}.\n"]
    if wrong:
        fail = "misses" if len(wrong) == 1 else "miss"
        held = [f"Of {many} {cells}, {len(wrong)} {fail} the goal of {goal}:\n"]
        held.append(_table(["cell", "false alarms", "coverage"], wrong))
    counted = Counter(kind_of(test["effect"]) for claim in read_claims() for test in claim["test"])
    anew = pd.read_csv(REJUDGED)
    return "\n".join([
        "## Every cell, before and now\n",
        *held,
        _table(head, rows),
        "## Which readings these are\n",
        _table(["kind", "readings"], [[kind, str(n)] for kind, n in counted.most_common()]),
        "## What was judged anew\n",
        _table([*anew.columns], anew.astype(str).to_numpy().tolist()),
    ])  # fmt: skip


def _share(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
