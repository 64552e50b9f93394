"""Writes the atlas: a table of all cards and of the values digitised from the paper's figure 1a, and a scatter of it.

The table is whole without a script, the scatter has what was measured. `book/_static/atlas.js` reads its numbers from
the table, and moves the points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from template import from_template

from companion.tables.card import atlas, name_of
from companion.tables.generalization import figure_1a
from coupling_lib.models.registry import lookup

MEASURED, DIGITISED = "measured", "digitised"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 380, 58, 12, 14, 46
"""The picture and its margins, as in the script."""


class Column(NamedTuple):
    """A quantity of the table: its label, its digits, and whether an axis of it is logarithmic."""

    label: str
    digits: int = 3
    log: bool = False


COLUMNS = {
    "coupling": Column("coupling"),
    "neighbours": Column("of neighbours"),
    "shared": Column("of the traceless part"),
    "null": Column("by chance"),
    "line": Column("line-shape score", 2),
    "expodistance": Column("expodistance", 2),
    "known": Column("token known from (share of depth)", 2),
    "rank": Column("stable rank", 1),
    "width": Column("width", 0, log=True),
    "blocks": Column("blocks", 0),
    "parameters": Column("10⁹ parameters", 4, log=True),
    "score": Column("mean score", 1),
}
FIRST = ("width", "coupling")
"""Default axes."""


class Row(NamedTuple):
    """A model in the table: its values by column, and notes in brackets after some."""

    name: str
    how: str
    values: Mapping[str, float | None]
    ends: Mapping[str, Sequence[float]]
    away: Sequence[float] = ()


def of_card(card: Mapping[str, Any]) -> Row:
    """Return a card's row."""
    parts, entry = card["coupling"], lookup(card["model"])
    known, ranks = card["known_from"], [block["rank"] for block in card["spectra"]]
    values = {"coupling": parts["whole"]["all"]["mean"], "neighbours": parts["whole"]["neighbours"]["mean"]}
    values |= {"shared": parts["shared"]["all"]["mean"], "null": parts["whole"]["null"]["mean"]}
    scores = {"line": "line_shape_score", "expodistance": "expodistance"}
    values |= {name: (card["trajectories"][score] or {}).get("median") for name, score in scores.items()}
    values |= {"known": known and known["median"] / card["blocks"], "rank": sum(ranks) / len(ranks)}
    values |= {"width": card["width"], "blocks": card["blocks"]}
    values |= {"parameters": entry and entry.parameters_b, "score": entry and entry.average}
    ends = {name: (parts[part]["all"]["low"], parts[part]["all"]["high"])
            for name, part in (("coupling", "whole"), ("shared", "shared"))}  # fmt: skip
    return Row(name_of(card), MEASURED, values, ends, parts["whole"]["by_distance"])


def of_paper() -> list[Row]:
    """Return a row of each point of the paper's figure 1a; its coupling is that of another reading."""
    known = ("coupling", "width", "blocks", "score", "parameters")
    rows = [one | {"parameters": one["parameters_b"]} for one in figure_1a().to_dict("records")]
    return [Row(one["model"], DIGITISED, {name: one[name] for name in known}, {}) for one in rows]


def shown(row: Row, name: str) -> str:
    """Format a value for the table."""
    value, digits = row.values.get(name), COLUMNS[name].digits
    if value is None or not math.isfinite(value):
        return ""
    text = f"{value:,.{digits}g}" if COLUMNS[name].log and digits else f"{value:,.{digits}f}"
    ends = [f"{end:.{digits}f}" for end in row.ends.get(name, ())]
    return f"{text} <small>[{', '.join(ends)}]</small>" if ends else text


def axis(values: Sequence[float], log: bool) -> tuple[float, float, list[float]]:
    """Return the ends of an axis and the places of its labels: round numbers, of a logarithmic one 1, 2 and 5."""
    low, high = min(values), max(values)
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        low, high = low / 1.15, high * 1.15
        return low, high, [m * 10.0**e for e in powers for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= span / 5)
    low, high = low - 0.04 * span, high + 0.04 * span
    return low, high, [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def placed(values: Sequence[float | None], log: bool, at: float, length: float) -> tuple[list, list]:
    """Scale values, and the labels of their axis, to positions along a line; a missing value has no position."""
    low, high, ticks = axis([value for value in values if value is not None], log)
    scale = math.log if log else float

    def place(value: float | None) -> float | None:
        if value is None:
            return None
        return round(at + length * (scale(value) - scale(low)) / (scale(high) - scale(low)), 1)

    return [place(value) for value in values], [(place(tick), f"{tick:g}") for tick in ticks]


def atlas_page() -> str:
    """Write table, scatter and the files of the cards."""
    measured, digitised = [of_card(card) for card in atlas()], of_paper()
    rows, (x, y) = measured + digitised, FIRST
    across, x_ticks = placed([row.values.get(x) for row in measured], COLUMNS[x].log, LEFT, WIDTH - LEFT - RIGHT)
    up = HEIGHT - TOP - BOTTOM
    above, y_ticks = placed([row.values.get(y) for row in measured], COLUMNS[y].log, HEIGHT - BOTTOM, -up)
    points: list[tuple | None] = [None if None in point else point for point in zip(across, above, strict=True)]
    points += [None] * len(digitised)  # drawn when a reader asks for them
    size = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "top": TOP, "right": RIGHT, "bottom": BOTTOM}
    away = {row.name: row.away for row in rows if row.away}
    given = {"points": points, "x_ticks": x_ticks, "y_ticks": y_ticks, "size": size, "x": x, "y": y, "away": away}
    return from_template("atlas.md.jinja", rows=rows, columns=COLUMNS, shown=shown, **given)
