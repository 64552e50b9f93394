"""Writes the measurements of the public decoders side by side."""

from __future__ import annotations

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
"""Names of the public decoders on pages."""

_ABSENT = "–"
TABLES = {
    "depth": (
        ("coupling", "depth-coupled", ".3f"),
        ("beyond the stricter chance", "nulls-stricter-coupled", ".3f"),
        ("traceless part", "depth-shared-coupled", ".3f"),
        ("beyond the stricter chance", "nulls-stricter-traceless-coupled", ".3f"),
        ("untrained ", "depth-coupling-untrained", ".3f"),
        ("by chance ", "depth-coupling-null", ".3f"),
    ),
    "curve": (
        *((f"{word} ", f"nulls-decisive-trace-{word}", ".3f") for word in ("trained", "untrained")),
        ("by chance ", "nulls-decisive-trace-null", ".3f"),
        ("curve of width ", "nulls-decisive-flat", ".3f"),
        ("trained minus untrained", "nulls-decisive-trace-change", "+.3f"),
    ),
    "tokens": (
        ("self-coupling", "tokens-between-self-trained", ".3f"),
        ("its stricter chance ", "tokens-between-self-trained-conjugated", ".3f"),
        ("traceless part", "tokens-between-self-traceless-part", ".3f"),
        ("the traceless part's stricter chance ", "tokens-between-self-traceless-part-conjugated", ".3f"),
        ("by chance ", "tokens-between-self-by-chance", ".3f"),
        ("scatter of one pair ", "tokens-null-spread", ".3f"),
    ),
    "readings": (
        (r"$1-\tilde m$", "readings-normalized_miscoupling-beyond-chance", ".1%"),
        ("`mismatch`", "readings-mismatch-beyond-chance", ".1%"),
        ("`released_trace`", "readings-released_trace-beyond-chance", ".1%"),
        ("`miscoupling`", "readings-miscoupling-beyond-chance", ".0%"),
        ("`basis_vv`", "readings-basis_vv-beyond-chance", ".1%"),
    ),
    "precision": (
        ("coupling ", "precision-coupling-float32", ".3f"),
        ("change in `nf4`", "precision-change-nf4", "+.4f"),
        ("% of coupling beyond chance lost ", "precision-lost-nf4", ".0f"),
    ),
    "lenses": (
        ("logit lens ", "lenses-logit-lens-trained", ".1f"),
        ("own lens ", "lenses-own-lens-trained", ".1f"),
        ("affine fit ", "lenses-affine-fit-trained", ".1f"),
        ("no state ", "lenses-no-state-trained", ".1f"),
        ("logit minus own lens", "lenses-gain-trained", "+.1f"),
    ),
    "trajectories": (
        ("change of line-shape score", "trajectories-change-line-shape-score-all", "+.2f"),
        ("change of expodistance", "trajectories-change-expodistance-all", "+.2f"),
        ("change of step variation", "trajectories-change-equidistance-all", "+.2f"),
        ("expodistance without the embedding", "trajectories-change-expodistance-no-embedding", "+.2f"),
        ("expodistance after the final norm", "trajectories-change-expodistance-normed-end", "+,.0f"),
        ("expodistance with both choices", "trajectories-change-expodistance-both", "+,.0f"),
    ),
    "linear": (
        ("product's cosine beyond chance", "dynamics-product-over-random", "+.2f"),
        ("change of $R^2$ with training", "spectra-r2-change", "+.2f"),
        ("$R^2$ left ", "spectra-r2-trained", ".2f"),
        ("rise of the disturbed state's cosine", "perturbation-gap-trained", "+.4f"),
    ),
    "instruction": (
        ("instruction minus none", "prompts-step-by-step-change", "+.4f"),
        ("control sentence minus none", "prompts-control-sentence-change", "+.4f"),
        ("instruction minus control sentence", "prompts-step-by-step-over-control-sentence", "+.4f"),
    ),
}
"""Tables by name: the head of each column, what is remembered, whose name begins with its notebook's, and its form.

A column whose head ends with a blank holds plain numbers, any other effects with their intervals.
"""


_HOURS = {
    ("lenses", "qwen2.5-coder-0.5b"): 7,
    ("lenses", "qwen2.5-coder-1.5b"): 25,
    ("instruction", "qwen2.5-coder-1.5b"): 3,
}
"""Hours of one core that a missing measurement takes, estimated from the time of the smaller decoders."""


def decoders_table(name: str, results: Path = paths.RESULTS) -> str:
    """Write a line for each decoder of which a notebook of a table was executed, and the command for the others."""
    columns, rows, absent = TABLES[name], [], []
    notebooks = dict.fromkeys(effect.partition("-")[0] for _, effect, _ in columns)
    for model in DECODERS:
        parts = (remembered(results / model / f"{notebook}.ipynb") for notebook in notebooks)
        if numbers := {key: value for part in parts for key, value in part.items()}:
            entry = registry.lookup(model)
            rows.append((NAMES[model], f"{entry.blocks} of {entry.width}", *(_cell(numbers, *one) for one in columns)))
        else:
            absent.append(NAMES[model])
    dash = ["A dash"] if any(_ABSENT in row for row in rows) else []
    text = table(("public decoder", "blocks and width", *(head for head, *_ in columns)), rows)
    hours = [str(_HOURS[name, model]) for model in DECODERS if NAMES[model] in absent and (name, model) in _HOURS]
    return text + _not_measured([*dash, *absent], "make decoders GGUF=FOLDER", " and ".join(hours))


def _cell(numbers: Numbers, head: str, name: str, form: str) -> str:
    if name not in numbers:
        return _ABSENT
    if head.endswith(" "):
        return format(numbers[name], form)
    value, low, high = (format(numbers[f"{name}{end}"], form) for end in ("", "-low", "-high"))
    return f"{value} [{low}, {high}]"


def first_token_of_decoders(file: Path = paths.DATA / "bos.csv") -> str:
    """Write coupling with and without the token that begins a text, for each public decoder that was measured so."""
    head = ("public decoder", "token", "part", "with it", "without it", "change")
    rows = []
    for row in read_table(file).to_dict("records"):
        name = NAMES[row["model"]] + ("" if row["usual"] else " *")
        both = (f"{row[which]:.4f}" for which in ("with", "without"))
        change = f"{row['change']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}]"
        rows.append((name, f"`{row['first']}`", row["part"], *both, change))
    absent = [name for name in NAMES.values() if not any(row[0].startswith(name) for row in rows)]
    return table(head, rows) + _not_measured(absent, "python workflow/bos.py MODEL")


def _not_measured(names: list[str], command: str, hours: str = "") -> str:
    time = f", in about {hours} hours of one core" if hours else ""
    return f"\n{' and '.join(names)}: not measured here; `{command}` measures it{time}.\n" if names else ""
