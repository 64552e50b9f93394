"""Prompts of a measurement: the embedded set, the paper's six benchmarks, WikiText-2, or a user's file.

The embedded set was written for this project: six styles, twenty prompts each, modelled on the benchmarks, which
are read from a local folder or from the hub.
"""

import csv
import io
import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from coupling_lib.errors import CouplingError, ParameterError, check_whole, shown
from coupling_lib.paths import DATA

PARIS = "What is the capital of France? The capital is"
"""The example prompt of the paper's figures."""

BENCHMARKS = ("arc", "gsm8k", "hellaswag", "mmlu", "truthfulqa", "winogrande")
"""The paper's six sets; `load_prompts("benchmarks")` reads them all."""

CHAIN_OF_THOUGHT = "Let's think step by step."

FOLDER_VARIABLE = "COUPLING_PROMPTS"
"""Environment variable that names the folder of prompt sets where no `folder` is given."""

PARAGRAPH_WORDS = (32, 128)
"""Minimum and maximum number of words of a WikiText-2 paragraph that is used, counted between blanks.

Shorter lines are captions, formulae and list items rather than text; longer paragraphs would have to be cut for
models with a short context, and all models are to read the same. On the test split 1012 of 2185 paragraphs remain.
"""

# Hub id, configuration, split and column. The sets read from "validation" publish no labelled test split.
_HUB = {
    "arc": ("allenai/ai2_arc", "ARC-Challenge", "test", "question"),
    "gsm8k": ("openai/gsm8k", "main", "test", "question"),
    "hellaswag": ("Rowan/hellaswag", None, "validation", "ctx"),
    "mmlu": ("cais/mmlu", "all", "test", "question"),
    "truthfulqa": ("truthfulqa/truthful_qa", "generation", "validation", "question"),
    "winogrande": ("allenai/winogrande", "winogrande_xl", "validation", "sentence"),
    "wikitext2": ("Salesforce/wikitext", "wikitext-2-raw-v1", "test", "text"),
}


@dataclass(frozen=True)
class Prompt:
    """One text to measure on.

    Args:
        id: name that is unique within its set and stable over time.
        dataset: set or style it belongs to, for example "gsm8k" or "arc-style".
        text: the text itself, without blanks at either end.
        steps: reasoning steps that its solution takes, the difficulty of a GSM8K problem; None where unknown.
            For GSM8K see `count_steps`; for the embedded "gsm8k-style" problems our own count of the additions,
            subtractions, multiplications and divisions on the shortest way, a change of units counted as one of them.
        rating: difficulty rating, on its source's own scale, as in Easy2Hard-Bench; None where
            unknown.
    """

    id: str
    dataset: str
    text: str
    steps: int | None = None
    rating: float | None = None


def load_prompts(
    name: str | Path = "embedded", n: int | None = None, seed: int = 0, folder: str | Path | None = None
) -> list[Prompt]:
    """Load the prompts of a named set or a file, all of them or a balanced selection.

    A selection takes the styles (data sets) in turn, each shuffled by the seed: n = 6 of the embedded set is one
    prompt of each style, and a larger n with the same seed begins with the smaller selection.

    Args:
        name: "embedded", "paris" (the example of the paper's figures), one of `BENCHMARKS`, "benchmarks" for all six,
            "wikitext2" (paragraphs of `PARAGRAPH_WORDS` words, headings left out), or the path of a `.jsonl` or `.csv`
            file (key or column "prompt" or "question", and "id", "dataset", "steps" or "answer", "rating" or
            "difficulty" if wanted) or of a `.txt` file (one prompt a line).
        n: Number of prompts; None takes all, in the order of the file.
        seed: Seed of the selection.
        folder: Local folder that holds `arc.jsonl`, `gsm8k.jsonl`, ... or, for "wikitext2", `test.txt`; by default
            the environment variable `COUPLING_PROMPTS`. Without either, the sets come from the Hugging
            Face hub, where the package `datasets` is installed.

    Returns:
        The prompts.

    Raises:
        ParameterError: If the set, the file or so many prompts do not exist.
        CouplingError: If the set is neither in a folder nor to be had from the hub.

    Example:
        >>> len(load_prompts()), [prompt.dataset for prompt in load_prompts(n=3)]
        (120, ['arc-style', 'gsm8k-style', 'hellaswag-style'])
        >>> [prompt.steps for prompt in load_prompts() if prompt.dataset == "gsm8k-style"][:5]
        [3, 2, 2, 2, 3]
    """
    if not isinstance(name, str | Path) or not isinstance(folder, str | Path | None):
        wrong, value = ("folder", folder) if isinstance(name, str | Path) else ("the prompt set", name)
        raise ParameterError(f"{wrong} is {shown(value)}; expected a name or a path")
    if n is not None:
        check_whole("seed", seed, 0)
    if name == "embedded":
        prompts = _from_file(DATA / "prompts" / "embedded.jsonl")
    elif name == "paris":
        prompts = [Prompt("paris", "paris", PARIS)]
    elif name == "benchmarks":
        prompts = [prompt for benchmark in BENCHMARKS for prompt in _named(benchmark, folder)]
    elif name in _HUB:
        prompts = _named(str(name), folder)
    elif Path(name).suffix in {".jsonl", ".csv", ".txt"}:
        prompts = _from_file(Path(name))
    else:
        raise ParameterError(
            f"the prompt set {shown(str(name))} is unknown; choose from embedded, paris, benchmarks, "
            f"{', '.join(_HUB)}, or give the path of a .jsonl, .csv or .txt file"
        )
    return prompts if n is None else _balanced(prompts, n, seed)


def add_chain_of_thought(prompt: Prompt) -> Prompt:
    """Return the prompt followed by "Let's think step by step." (zero-shot chain of thought, Kojima et al., 2022)."""
    return replace(prompt, id=f"{prompt.id}+cot", text=f"{prompt.text} {CHAIN_OF_THOUGHT}")


def unreadable(text: str) -> str:
    """Return the fault of a text, such as a control character; an empty string if there is none."""
    # White space of any kind is text. Other control characters come from binary files and terminals, and a lone
    # half of a surrogate pair from a file that was read in the wrong encoding.
    found = re.search(r"[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]", text)
    return f"holds the control character {found[0]!a} at position {found.start()}" if found else ""


def count_steps(answer: str) -> int | None:
    """Return the number of reasoning steps of a published GSM8K solution."""
    # Such a solution ends in "#### 42"; its calculations are marked `<<6*7=42>>`. Each marked calculation is a step;
    # where none is marked, each line before the last is one.
    working, mark, _ = answer.partition("####")
    if not mark:
        return None
    return working.count("<<") or sum(bool(line.strip()) for line in working.splitlines()) or None


def _named(name: str, folder: str | Path | None) -> list[Prompt]:
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return _from_hub(name)
    # A folder may hold the files themselves, or be the data folder that contains theirs.
    file, below = ("test.txt", "wikitext2") if name == "wikitext2" else (f"{name}.jsonl", "prompts")
    places = [Path(folder) / file, Path(folder) / below / file]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ParameterError(
            f"the prompt folder {str(folder)!r} holds no {file}; expected it there or under {below}/ "
            f"(the folder is the argument folder= or the environment variable {FOLDER_VARIABLE})"
        )
    if name == "wikitext2":
        return _paragraphs(found.read_text(encoding="utf-8").splitlines())
    return _from_file(found)


def _from_file(path: Path) -> list[Prompt]:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError("it is a pipe or a device")  # reading it may never end
        text = path.read_text(encoding="utf-8-sig")  # without the mark that spreadsheets put before the first word
    except (OSError, ValueError) as error:
        raise ParameterError(f"the prompt file {str(path)!r} cannot be read ({error}); expected UTF-8 text") from None
    read, expected = _READERS[path.suffix]
    prompts: list[Prompt] = []
    # Not `splitlines`: JSON strings may hold U+2028.
    lines: list[tuple[int, Any]] = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    try:
        if path.suffix == ".csv":
            table = csv.DictReader(io.StringIO(text), strict=True)  # a quote that is never closed swallows the rest
            lines = [(table.line_num, row) for row in table]
    except csv.Error as error:
        raise ParameterError(f"the prompt file {str(path)!r} is no table ({error}); expected {expected}") from None
    for number, line in lines:
        try:
            prompts.append(read(line, Prompt(f"{path.stem}-{number}", path.stem, "")))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ParameterError(f"line {number} of {str(path)!r} is no prompt; expected {expected}") from None
        if why := unreadable(prompts[-1].text):
            raise ParameterError(f"the prompt in line {number} of {str(path)!r} {why}; take it out of the file")
    if not prompts:
        raise ParameterError(f"the prompt file {str(path)!r} holds no prompt; expected one a line")
    names = Counter((prompt.dataset, prompt.id) for prompt in prompts)
    if (often := names.most_common(1)[0])[1] > 1:
        repeated = f"{often[1]} prompts with the id {shown(often[0][1])}"
        raise ParameterError(f"the prompt file {str(path)!r} holds {repeated}; expected an id of its own for each")
    return prompts


def _csv_row(row: Mapping[str, Any], default: Prompt) -> Prompt:
    if any(row.get(None, ())):  # cells beyond the header: a comma outside of quotes would cut the prompt
        raise ValueError
    # A column that begins with a blank is the rest of a prompt after a comma.
    if any((row.get(name) or "")[:1] == " " for name in ("id", "dataset", "steps", "answer", "rating", "difficulty")):
        raise ValueError
    given = {name: cell for name, cell in row.items() if name and cell}
    # A table gives numbers as text.
    numbers = {name: kind(given[name]) for name, kind in (("steps", int), ("rating", float)) if name in given}
    with suppress(ValueError):  # a word such as "easy" rates nothing
        numbers["difficulty"] = float(given.get("difficulty", ""))
    return _record(given | numbers, default)


def _record(record: Mapping[str, Any], default: Prompt) -> Prompt:
    text = (record["prompt"] if "prompt" in record else record["question"]).strip()
    steps, answer = record.get("steps"), record.get("answer")
    if steps is None and isinstance(answer, str):
        steps = count_steps(answer)
    rating = record.get("rating")
    if rating is None and type(record.get("difficulty")) in (int, float):
        rating = record["difficulty"]
    if not text or not (steps is None or (type(steps) is int and steps > 0)):
        raise ValueError
    if not (rating is None or (type(rating) in (int, float) and math.isfinite(rating))):
        raise ValueError
    given = {name: str(record[name]) for name in ("id", "dataset") if record.get(name) is not None}
    return replace(default, **given, text=text, steps=steps, rating=None if rating is None else float(rating))


_READERS = {
    ".jsonl": (lambda line, default: _record(json.loads(line), default), 'JSON such as {"prompt": "some text"}'),
    ".csv": (
        _csv_row,
        "a table with a column prompt or question, commas in quotes, and numbers as steps (from 1) and rating",
    ),
    ".txt": (lambda line, default: replace(default, text=line.strip()), "a text"),
}
"""By the suffix of a file: the reader of one prompt, and its expected form."""


def _paragraphs(lines: list[str]) -> list[Prompt]:
    """Return the paragraphs of WikiText-2 of useful length: a line that starts and ends with "=" is a heading."""
    fewest, most = PARAGRAPH_WORDS
    prompts = [
        Prompt(f"wikitext2-{number}", "wikitext2", text)
        for number, text in enumerate(map(str.strip, lines), start=1)
        if fewest <= len(text.split()) <= most and not (text.startswith("=") and text.endswith("="))
    ]
    if not prompts:
        raise ParameterError(f"the text of WikiText-2 holds no paragraph of {fewest} to {most} words; check the file")
    return prompts


def _from_hub(name: str) -> list[Prompt]:
    hub_id, configuration, split, column = _HUB[name]
    try:
        import datasets  # needed for the hub only

        table = datasets.load_dataset(hub_id, configuration, split=split)
        rows = list(table[column])
        steps = [count_steps(answer) for answer in table["answer"]] if name == "gsm8k" else [None] * len(rows)
    except Exception as error:  # the hub client raises many kinds; each means that the set cannot be had
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CouplingError(
            f"the prompt set {name!r} cannot be fetched as {hub_id} ({reason}); set {FOLDER_VARIABLE} (or pass "
            "folder=) to the folder with its file, or install the `datasets` package to fetch it"
        ) from None
    if name == "wikitext2":
        return _paragraphs(rows)
    # Winogrande marks the ambiguous referent with an underscore: the prompt is the text before it.
    texts = [row.split("_")[0] if name == "winogrande" else row for row in rows]
    numbered = enumerate(zip(texts, steps, strict=True))
    return [Prompt(f"{name}-{split}-{i}", name, text.strip(), count) for i, (text, count) in numbered]


def _balanced(prompts: list[Prompt], n: int, seed: int) -> list[Prompt]:
    """Select one prompt of each style in turn, every style shuffled by itself."""
    check_whole("n", n, 1, len(prompts), f"the set has {len(prompts)} prompts (None takes all)")
    styles: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        styles.setdefault(prompt.dataset, []).append(prompt)
    for style, members in styles.items():
        random.Random(f"{seed}/{style}").shuffle(members)
    turns = chain.from_iterable(zip_longest(*styles.values()))
    return [prompt for prompt in turns if prompt is not None][:n]
