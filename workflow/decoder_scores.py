"""Measure how well language models predict text and answer questions.

    python workflow/decoder_scores.py MODEL [MODEL ...] --wikitext FILE --novels FOLDER --questions FOLDER [--n 500]

Every model reads the same passages and questions, with the token that its tokenizer puts before a text. Text is scored
in bits per byte, questions by whether the right answer has the largest log-likelihood, as it is and per character. Rows
of `data/decoder_scores.csv` are written after each test; one that was done with the same weights, and as much to read,
is left out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

import coupling_lib as cl
from companion.tables.decoder_scores import FILE, SETS
from companion.tables.files import read_table, write_table
from companion.tables.inference import effect_of
from coupling_lib import provenance
from coupling_lib.errors import ParameterError, check_whole
from coupling_lib.inputs.prompt_arguments import longest_input
from coupling_lib.progress import in_one_line
from coupling_lib.store.key import fingerprint

PASSAGES, BYTES = 200, 1000
"""Passages of each text, and the largest size of a passage in bytes."""
# None of them was trained on by nano-neox or nano-llama; what public decoders were trained on is not known.
HELD_OUT = (
    "Blackmore_Erema_1877", "Blackmore_Lorna_1869", "Braddon_Phantom_1883", "Conrad_Nostromo_1904",
    "Gaskell_Wives_1865",
)  # fmt: skip
_COLUMNS = ["model", "test", "chance", "value", "low", "high", "error", "n", "context", "weights", "cpu"]
_HEADER = """How well language models predict text and answer questions (python workflow/decoder_scores.py MODEL).
test: bits per byte of a text, or the share of questions of a set that are answered right: the answer has the largest
log-likelihood, as it is or per character. chance: of guessing. value: mean over n passages or questions, with its 95 %
interval and standard error. context: the most tokens of a text that are read at once; a question is read whole."""


def passages(text: str, n: int) -> list[str]:
    """Cut passages of at most `BYTES` bytes out of a text, evenly spread, from one space to another."""
    content = text.encode()
    pieces = (content[start : start + BYTES] for start in (len(content) * i // n for i in range(n)))
    return [piece[piece.find(b" ") : piece.rfind(b" ")].decode("utf-8", "ignore") for piece in pieces]


@torch.no_grad()
def bits_per_byte(model: cl.Model, passage: str, context: int) -> float:
    """Return the bits per byte of a passage's tokens, except the first of each window of `context` tokens."""
    encoded = model.tokenizer(passage, return_offsets_mapping=True)
    ids, spans = encoded["input_ids"], encoded["offset_mapping"]
    nats = size = 0.0
    for start in range(0, len(ids) - 1, context):
        window = torch.tensor([ids[start : start + context]])
        logits = model.hf(input_ids=window, use_cache=False).logits[0, :-1].float()
        nats += functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
        size += len(passage[spans[start + 1][0] : spans[start + window.shape[1] - 1][1]].encode())
    return nats / math.log(2) / size


@torch.no_grad()
def log_likelihoods(model: cl.Model, query: str, choices: Sequence[str]) -> list[float]:
    """Return the log-likelihood of each choice after a query; the query is computed once."""
    whole = [model.tokenizer(f"{query} {choice}")["input_ids"] for choice in choices]
    shared = next((place for place, tokens in enumerate(zip(*whole, strict=False)) if len(set(tokens)) > 1), 10**9)
    n = min(shared, len(model.tokenizer(query)["input_ids"]), min(map(len, whole)) - 1)
    if n < 1:
        raise ParameterError(f"{model.name!r}: a query and its choices share no token; give a query of some words")
    rest = [torch.tensor(ids[n:]) for ids in whole]
    padded = torch.nn.utils.rnn.pad_sequence(rest, batch_first=True)
    first = model.hf(input_ids=torch.tensor([whole[0][:n]]), use_cache=True, logits_to_keep=1)
    first.past_key_values.batch_repeat_interleave(len(choices))
    # Padding follows the scored tokens, and a decoder attends to earlier ones alone.
    then = model.hf(input_ids=padded, past_key_values=first.past_key_values, use_cache=True).logits
    logits = torch.cat([first.logits[:, -1:].expand(len(choices), 1, -1), then[:, :-1]], dim=1).float()
    each = functional.cross_entropy(logits.transpose(1, 2), padded, reduction="none")
    return [-nats[: len(ids)].sum().item() for nats, ids in zip(each, rest, strict=True)]


def answered(model: cl.Model, question: dict[str, Any]) -> tuple[float, float]:
    """Return whether a question is answered right: by the log-likelihood of answers, and by that per character."""
    found = np.array(log_likelihoods(model, question["query"], question["choices"]))
    lengths = [len(choice) for choice in question["choices"]]
    return tuple(float(scores.argmax() == question["gold"]) for scores in (found, found / lengths))


def window(model: cl.Model, asked: int) -> int:
    """Return the length of a window in tokens: the context asked for, or as many as the model reads."""
    return min(asked, longest_input(model.hf) or asked)


def tests(given: argparse.Namespace) -> Iterator[tuple[tuple[str, ...], list, Callable, float | None]]:
    """List the tests: the names of their scores, what is read, how each is scored, and the score of guessing."""

    def predict(model: cl.Model, passage: str) -> tuple[float]:
        return (bits_per_byte(model, passage, window(model, given.context)),)

    if given.wikitext:
        yield ("wikitext2",), passages(given.wikitext.read_text(encoding="utf-8"), given.passages), predict, None
    if given.novels:
        texts = ((given.novels / f"{name}.txt").read_text(encoding="utf-8-sig") for name in HELD_OUT)
        each = given.passages // len(HELD_OUT)
        yield ("novels",), [one for text in texts for one in passages(text, each)], predict, None
    if given.questions:
        for name in SETS:
            lines = (given.questions / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[: given.n]
            questions = [json.loads(line) for line in lines]
            chance = float(np.mean([1 / len(question["choices"]) for question in questions]))
            yield (name, f"{name} per character"), questions, answered, chance


def measure(given: argparse.Namespace) -> None:
    """Score each model by each test, and keep the table up to date after each."""
    check_whole("passages", given.passages, len(HELD_OUT), 10_000, "each of the held-out novels gives as many")
    check_whole("context", given.context, 2)
    check_whole("n", given.n, 1)
    planned = list(tests(given))
    if not planned:
        raise ParameterError("nothing to read was named; give --wikitext, --novels or --questions")
    for name in given.models:
        model = cl.load_model(name)
        if model.tokenizer is None:
            raise ParameterError(f"{name!r} has no tokenizer; give a language model that lies beside its own")
        context = window(model, given.context)
        origin = {"context": context, "weights": fingerprint(model), "cpu": provenance.processor()}
        for names, items, score, chance in planned:
            table = read_table(given.table).reindex(columns=_COLUMNS)
            own = (table["weights"] == origin["weights"]) & table["test"].isin(names)
            alike = chance is not None or table[own]["context"].eq(context).all()  # a question is read whole
            if alike and own.sum() == len(names) and (table[own]["n"] >= len(items)).all():
                continue
            start = time.perf_counter()
            columns = np.transpose([score(model, item) for item in items])
            rows = [
                {"model": model.name, "test": test, "chance": chance} | effect_of(values)._asdict() | origin
                for test, values in zip(names, columns, strict=True)
            ]
            kept = [*table[~own].to_dict("records"), *rows]
            write_table(given.table, pd.DataFrame(kept, columns=_COLUMNS), _HEADER)
            print(f"{model.name} {names[0]}: {columns[0].mean():.4f}, {time.perf_counter() - start:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="aliases, hub ids, folders or GGUF files")
    parser.add_argument("--wikitext", type=Path, help="the test text of WikiText-2")
    parser.add_argument("--novels", type=Path, help="a folder with the held-out novels, AUTHOR_TITLE_YEAR.txt")
    parser.add_argument("--questions", type=Path, help="a folder with NAME.jsonl of query, choices and gold")
    parser.add_argument("--passages", type=int, default=PASSAGES, help=f"passages of each text (default {PASSAGES})")
    parser.add_argument("--n", type=int, default=500, help="number of questions of each set (default 500)")
    parser.add_argument("--context", type=int, default=512, help="most tokens that are read at once (default 512)")
    parser.add_argument("--table", type=Path, default=FILE, help="where the rows go")
    given = parser.parse_args(arguments)
    return in_one_line(lambda: measure(given) or 0, "interrupted")


if __name__ == "__main__":
    sys.exit(main())
