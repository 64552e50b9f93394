"""Measure how much coupling across depth depends on the token that begins a text.

    python workflow/bos.py MODEL [MODEL ...] [--prompts N]

Some tokenizers put a token before each text, most put none. Each prompt is measured both ways: with that token, or the
one that the tokenizer names for it, and without. Rows of `data/bos.csv` hold coupling at K = 10, mean over ordered
pairs of different blocks, and its change prompt by prompt. A model's earlier rows give way to its new ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import coupling_lib as cl
from companion.tables.effects import couplings
from companion.tables.files import merge
from companion.tables.inference import effect_of
from coupling_lib import paths, provenance
from coupling_lib.datasets.parts import SHARED, shared_part
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.token_ids import special_tokens
from coupling_lib.progress import in_one_line
from coupling_lib.store.key import fingerprint

FILE = paths.DATA / "bos.csv"
VARIANT, K = "normalized_miscoupling", 10
_HEADER = """Coupling with and without the token that begins a text (python workflow/bos.py MODEL).
first: that token. usual: whether the model's tokenizer puts it there. part: whole Jacobians or their traceless parts.
with, without: coupling at K = 10 of the trained model, mean over ordered pairs of different blocks and n prompts.
change: with minus without, mean over prompts, with its 95 % interval and standard error."""


def first_token(model: cl.Model) -> tuple[int, bool]:
    """Return the token that begins a text, and whether the tokenizer puts it there."""
    if model.tokenizer is None:
        raise ParameterError(f"{model.name!r} has no tokenizer, so that it reads no text; take a language model")
    if first := special_tokens(model.tokenizer)[0]:
        return first[0], True
    for name in ("bos_token_id", "eos_token_id"):
        if (token := getattr(model.tokenizer, name, None)) is not None:
            return token, False
    raise ParameterError(
        f"the tokenizer of {model.name!r} names no token that begins or ends a text; take another model"
    )


def rows(name: str, n_prompts: int) -> Iterator[dict[str, Any]]:
    """Measure one model both ways: a row for each part of its Jacobians."""
    model = cl.load_model(name)
    token, usual = first_token(model)
    inputs: dict[str, list[torch.Tensor]] = {"with": [], "without": []}
    for prompt in cl.load_prompts(n=n_prompts):
        ids = model.tokenizer(prompt.text, add_special_tokens=False)["input_ids"]
        inputs["with"].append(torch.tensor([[token, *ids]]))
        inputs["without"].append(torch.tensor([ids]))
    found = {which: cl.sweep(cl.measure_depth, model, given, ks=(K,)) for which, given in inputs.items()}
    for part in ("whole", SHARED):
        each = {which: couplings(ds if part == "whole" else shared_part(ds), VARIANT, K) for which, ds in found.items()}
        change = effect_of(each["with"] - each["without"])
        row = {"model": model.name, "part": part, "first": model.tokenizer.decode([token]), "usual": usual}
        row |= {which: values.mean() for which, values in each.items()} | {"change": change.value}
        row |= {end: getattr(change, end) for end in ("low", "high", "error", "n")}
        yield row | {"weights": fingerprint(model), "cpu": provenance.processor()}


def measure(given: argparse.Namespace) -> None:
    """Measure each model, and keep the table up to date after each."""
    for name in given.models:
        new = list(rows(name, given.prompts))
        merge(given.table, new, ["model", "part"], [], _HEADER)
        seen = pd.DataFrame(new).drop(columns=["weights", "cpu"])
        print(seen.to_string(index=False, float_format="%.4f"), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="aliases, hub ids, folders or GGUF files")
    parser.add_argument("--prompts", type=int, default=12, help="number of embedded prompts (default 12)")
    parser.add_argument("--table", type=Path, default=FILE, help="where the rows go")
    given = parser.parse_args(arguments)
    return in_one_line(lambda: measure(given) or 0, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
