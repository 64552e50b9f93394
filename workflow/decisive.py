"""Identify the variant of coupling in the paper's figure 1a: measure it on the same models, beside its value by chance.

    python workflow/decisive.py [MODEL ...] [--prompts N] [--precision float32]

Without a model: gpt2, gpt2-medium, gpt2-large, qwen1.5-0.5b and pythia-1.4b, as far as their weights can be reached.
Any alias of data/models.csv, Hugging Face id or local folder will do; the embedded models need no network. Printed is
1 minus `released_norm` and 1 minus `released_trace` at K = 10, 30, 50 and 10 % of the width, trained, untrained and
for random bases with the trained spectra, beside the value digitised from the paper. Measurements are kept in the
store as they are made, so that the same command goes on where it was stopped; the table also goes to
results/MODEL/decisive.csv.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

import coupling_lib as cl
from companion.figures import nulls
from companion.figures.show import csv_text
from companion.tables import origin
from companion.tables.arrays import side_by_side
from companion.tables.generalization import DECISIVE_MODELS, figure_1a
from coupling_lib import paths
from coupling_lib.errors import CouplingError
from coupling_lib.measures.common import both_networks
from coupling_lib.measures.nulls import measure_decisive


def measure(name: str, n_prompts: int, precision: str) -> dict:
    """Measure one model, untrained and trained."""
    prompts = cl.load_prompts(n=n_prompts)
    return both_networks(partial(cl.sweep, measure_decisive), [name], prompts, seed=0, precision=precision)[name]


def printed(table: pd.DataFrame) -> str:
    """Format the table of one model in plain text."""
    heads = {"c_trace": "1 - released_trace", "c_norm": "1 - released_norm"}
    parts = []
    for short, head in heads.items():
        columns = {"K": "K", "pairs": "pairs"} | {f"{short}_{n}": n for n in ("trained", "untrained", "null")}
        lines = table[list(columns)].rename(columns=columns | {f"{short}_null": "random bases"})
        parts.append(f"  {head}\n" + lines.to_string(index=False, float_format="%.4f"))
    return "\n".join(parts)


def conclusion(table: pd.DataFrame) -> str:
    """Compare the values at K = a tenth of the width in one line."""
    row = table[table["c_flat"].notna() & (table["pairs"] == "different")].iloc[0]
    digitised = "no digitised value" if pd.isna(row.c_digitised) else f"digitised from figure 1a {row.c_digitised:.4f}"
    return (
        f"  with K = {row.K}: trained {row.c_trace_trained:.4f}, random bases {row.c_trace_null:.4f}, "
        f"1 - 1/sqrt(int(0.1 d)) {row.c_flat:.4f}; {digitised}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the available models and print their tables; return 1 if there is none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(DECISIVE_MODELS), help="aliases, hub ids or folders")
    parser.add_argument("--prompts", type=int, default=6, help="number of embedded prompts (default 6)")
    parser.add_argument("--precision", default="float32", help="how the weights are held (default float32)")
    given = parser.parse_args(arguments)
    digitised = figure_1a().set_index("model")["coupling"].to_dict()
    measured = 0
    for name in given.models:
        print(name, flush=True)
        how = ["--prompts", str(given.prompts), "--precision", given.precision]
        command = shlex.join(["python", "workflow/decisive.py", name, *how])
        try:
            found = measure(name, given.prompts, given.precision)
        except CouplingError as error:
            value = f"digitised coupling {digitised[name]:.4f}" if name in digitised else "no digitised value"
            print(f"  not measured here: {error}\n  {value}; measure with: {command}\n")
            continue
        measured += 1
        table = nulls.take_decisive({name: side_by_side(**found)}, digitised)
        print(printed(table), conclusion(table), sep="\n", end="\n\n", flush=True)
        target = paths.RESULTS / Path(name).name / "decisive.csv"
        target.parent.mkdir(parents=True, exist_ok=True)
        where_from = origin.line(*(ds.attrs for ds in found.values()), command=command)
        target.write_text(csv_text(table, "decisive", where_from), encoding="utf-8")
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
