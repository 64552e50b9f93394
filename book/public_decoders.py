"""Writes what was measured of the public decoders side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from claims import DECODERS
from markdown_table import table
from named_numbers import Numbers, remembered

from companion.tables.files import read_table
from coupling_lib import paths
from coupling_lib.models import registry

NAMES = {
    "smollm2-135m": "SmolLM2-135M-Instruct (Q4_1)",
    "gemma3-270m": "Gemma 3 270M (Q4_K_M)",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M)",
}
"""How pages call the public decoders."""

_DEPTH = (
    "coupling",
    "beyond the stricter chance",
    "traceless part",
    "beyond the stricter chance",
    "untrained ",
    "by chance ",
)
_CURVE = ("trained ", "untrained ", "by chance ", "curve of width ", "trained minus untrained")
_ABSENT = "–"
_TOKENS = ("self-coupling", "traceless part", "by chance ", "stricter chance ", "scatter of one pair ")
CHANGES = {
    "trajectories": {
        "change of line-shape score": ("trajectories-change-line-shape-score-all", "+.2f"),
        "change of expodistance": ("trajectories-change-expodistance-all", "+.2f"),
        "change of step variation": ("trajectories-change-equidistance-all", "+.2f"),
    },
    "linear": {
        "product's cosine beyond chance": ("dynamics-product-over-random", "+.2f"),
        "change of $R^2$ with training": ("spectra-r2-change", "+.2f"),
        "rise of the disturbed state's cosine": ("perturbation-gap-trained", "+.4f"),
    },
    "instruction": {
        "instruction minus none": ("prompts-step-by-step-change", "+.4f"),
        "control sentence minus none": ("prompts-control-sentence-change", "+.4f"),
        "instruction minus control sentence": ("prompts-step-by-step-over-control-sentence", "+.4f"),
    },
}
"""Tables of effects with intervals: by the head of a column, the effect, which names its notebook, and its form."""


def depth_of_decoders(results: Path = paths.RESULTS) -> str:
    """Write coupling across depth of each public decoder, as it is and beyond the larger of both nulls."""

    def cells(numbers: Numbers) -> tuple[str, ...]:
        effects = (
            "depth-coupled",
            "nulls-stricter-coupled",
            "depth-shared-coupled",
            "nulls-stricter-traceless-coupled",
        )
        plain = (f"{numbers[f'depth-coupling-{name}']:.3f}" for name in ("untrained", "null"))
        return (*(_with_interval(numbers, name) for name in effects), *plain)

    return _side_by_side(_DEPTH, cells, ("depth", "nulls"), results)


def curve_of_decoders(results: Path = paths.RESULTS) -> str:
    """Write the reading that figure 1a may show of each public decoder, beside the curve of its width."""

    def cells(numbers: Numbers) -> tuple[str, ...]:
        names = ("trace-trained", "trace-untrained", "trace-null", "flat")
        change = _with_interval(numbers, "nulls-decisive-trace-change", "+.3f")
        return (*(f"{numbers[f'nulls-decisive-{name}']:.3f}" for name in names), change)

    return _side_by_side(_CURVE, cells, ("nulls",), results)


def changes_of_decoders(name: str, results: Path = paths.RESULTS) -> str:
    """Write a table of `CHANGES`, a line for each public decoder."""
    columns = CHANGES[name]
    notebooks = tuple(dict.fromkeys(effect.partition("-")[0] for effect, _ in columns.values()))

    def cells(numbers: Numbers) -> tuple[str, ...]:
        return tuple(_with_interval(numbers, effect, form) for effect, form in columns.values())

    return _side_by_side(tuple(columns), cells, notebooks, results)


def tokens_of_decoders(results: Path = paths.RESULTS) -> str:
    """Write self-coupling of two deep blocks of each public decoder, beside both nulls."""

    def cells(numbers: Numbers) -> tuple[str, ...]:
        effects = (f"tokens-between-self-{part}" for part in ("trained", "traceless-part"))
        nulls = ("between-self-by-chance", "between-self-traceless-part-conjugated", "null-spread")
        return (
            *(_with_interval(numbers, name) for name in effects),
            *(f"{numbers[f'tokens-{one}']:.3f}" for one in nulls),
        )

    return _side_by_side(_TOKENS, cells, ("tokens",), results)


def first_token_of_decoders(file: Path = paths.DATA / "bos.csv") -> str:
    """Write coupling with and without the token that begins a text, for each public decoder that was measured so."""
    head = ("public decoder", "token", "part", "with it", "without it", "change")
    rows = []
    for row in read_table(file).to_dict("records"):
        name = NAMES[row["model"]] + ("" if row["usual"] else " *")
        both = (f"{row[which]:.3f}" for which in ("with", "without"))
        change = f"{row['change']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
        rows.append((name, f"`{row['first']}`", row["part"], *both, change))
    absent = [name for name in NAMES.values() if not any(row[0].startswith(name) for row in rows)]
    return table(head, rows) + _not_measured(absent, "python workflow/bos.py MODEL")


def _side_by_side(
    head: tuple[str, ...], cells: Callable[[Numbers], tuple[str, ...]], notebooks: tuple[str, ...], results: Path
) -> str:
    """Set a line for each decoder of which the first notebook was executed, and the command for the others."""
    rows, absent = [], []
    for model in DECODERS:
        parts = [remembered(results / model / f"{notebook}.ipynb") for notebook in notebooks]
        if parts[0]:
            entry = registry.lookup(model)
            line = cells({name: value for part in parts for name, value in part.items()})
            rows.append((NAMES[model], f"{entry.blocks} of {entry.width}", *line))
        else:
            absent.append(NAMES[model])
    dash = ["A dash"] if any(_ABSENT in row for row in rows) else []
    text = table(("public decoder", "blocks and width", *head), rows)
    return text + _not_measured([*dash, *absent], "make decoders GGUF=FOLDER")


def _not_measured(names: list[str], command: str) -> str:
    return f"\n{' and '.join(names)}: not measured here; `{command}` measures it.\n" if names else ""


def _with_interval(numbers: Numbers, name: str, form: str = ".3f") -> str:
    if name not in numbers:
        return _ABSENT
    value, low, high = (format(numbers[f"{name}{end}"], form) for end in ("", "-low", "-high"))
    return f"{value} [{low}, {high}]"
