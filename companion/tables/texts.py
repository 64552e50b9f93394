"""Texts of the experiment on many prompts: sets of questions, generated problems, and passages of the same lengths.

A problem's reasoning steps are counted by construction, and all have the same number of sentences and numbers: an
idle sentence replaces each missing step. Passages of novels, articles, programs and random tokens are as long, one by
one, as the questions of GSM8K are for the model's own tokenizer, so that sources differ only in their words.
"""

import random
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import BENCHMARKS, Prompt, load_prompts
from coupling_lib.models.model import Model

QUESTIONS = "gsm8k"
"""The set whose questions get sentences added, and whose lengths the passages have."""
PROBLEMS, EMBEDDED = "problems", "embedded"
NEW_PROBLEMS = "new problems"
"""Further problems of the same kind, 800 drawn after the first 200 had been seen."""
NEW_QUESTIONS = ("arc_easy", "piqa")
"""Sets of short questions, unmeasured when they were chosen to decide on length."""
PASSAGES = ("novels", "wikitext2", "code", "random tokens")
SETS = (*BENCHMARKS, PROBLEMS, EMBEDDED)
MOST_STEPS = 8
"""Reasoning steps of the hardest problem; the easiest takes one."""

# Size of a file in bytes from which the longest passage fits after its middle.
_SHORT = 20_000
_NAMES = ("Ada", "Ben", "Cleo", "Dev", "Edda", "Finn", "Gwen", "Hugo", "Iris", "Jonas")
_THINGS = ("apples", "pencils", "shells", "stamps", "marbles", "buttons", "cards", "nails", "plates", "candles")
_STEPS = (
    "Then {name} buys {n} more of them.", "Then {name} finds {n} more in a drawer.",
    "Then {name} gives {n} away to a friend.", "Then {name} loses {n} on the way home.",
)  # fmt: skip
_IDLE = (
    "The shop on the corner shuts at {n}.", "A bus to the harbour comes in {n} minutes.",
    "The house across the street has {n} windows.", "An uncle of the neighbours turned {n} in May.",
)  # fmt: skip


def problems(count: int = 200, seed: int = 0) -> list[Prompt]:
    """Generate word problems with 1 to 8 counted steps in turn, all with the same number of sentences."""
    made = []
    for at in range(count):
        draw, steps = random.Random(f"{seed} {at}"), 1 + at % MOST_STEPS
        name, things = draw.choice(_NAMES), draw.choice(_THINGS)
        kinds = [_STEPS] * steps + [_IDLE] * (MOST_STEPS - steps)
        draw.shuffle(kinds)
        sentences = [draw.choice(kind).format(name=name, n=draw.randint(2, 9)) for kind in kinds]
        start = f"{name} has {draw.randint(80, 99)} {things}."
        text = " ".join([start, *sentences, f"How many {things} does {name} have now?"])
        made.append(Prompt(f"problem-{at + 1:03}", PROBLEMS, text, steps))
    return made


def chosen_set(name: str, folder: Path | None) -> list[Prompt]:
    """Return the prompts of one of `SETS`."""
    if name == PROBLEMS:
        return problems()
    if name == NEW_PROBLEMS:
        return [replace(prompt, dataset=name) for prompt in problems(1000)[200:]]
    return load_prompts(name) if name == EMBEDDED else load_prompts(name, folder=folder)


def new_questions(folder: Path, count: int) -> list[Prompt]:
    """Return the first questions of a file in which the sets of `NEW_QUESTIONS` are shuffled."""
    inside = folder / "prompts" / "more.jsonl"
    listed = load_prompts(inside if inside.exists() else folder / "more.jsonl")[:count]
    # Both sets use the same numbers for their questions.
    return [replace(prompt, id=f"{prompt.dataset}-{prompt.id}") for prompt in listed]


def passages(model: Model, lengths: Sequence[int], source: str, folder: Path, novels: Path) -> dict[str, torch.Tensor]:
    """Cut a passage for each length out of a source, at positions spread evenly over all of it."""
    if source == "random tokens":
        draw = torch.Generator().manual_seed(0)
        size = len(model.tokenizer)
        return {f"random-{at + 1:03}": torch.randint(size, (1, n), generator=draw) for at, n in enumerate(lengths)}
    files = {"novels": novels, "wikitext2": folder / "wikitext2", "code": Path(sysconfig.get_path("stdlib"))}
    pattern = {"novels": "*.txt", "wikitext2": "test.txt", "code": "*.py"}[source]
    found = sorted(file for file in files[source].glob(pattern) if file.stat().st_size > _SHORT)
    if not found:
        raise ParameterError(f"{files[source]} holds no {pattern}, of which {source} are read; name another folder")
    cut = {}
    for at, n in enumerate(lengths):
        file, share = found[at * len(found) // len(lengths)], (at + 0.5) / len(lengths)
        text = file.read_text(encoding="utf-8", errors="replace")
        # Of several files each is read from its middle, a single one at positions from its beginning to its end.
        start = int((share if len(found) == 1 else 0.5) * len(text))
        ids = model.tokenizer(text[start : start + 20 * n], add_special_tokens=False)["input_ids"][:n]
        if len(ids) < n:
            raise ParameterError(f"{file} holds fewer than {n} tokens from its middle; take longer texts")
        cut[f"{source}-{at + 1:03}"] = torch.tensor([ids])
    return cut
