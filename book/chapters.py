"""Writes what every chapter of the book has in common: the verdicts on its claims, and how to run it."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import NamedTuple

import claims
import yaml
from complete import pages
from reproduce import duration, spoken

from coupling_lib import paths, provenance

NAMES = {"smollm2-135m": "SmolLM2-135M-Instruct (Q4_1)", "suite": "the suite"}
"""How a page calls a model where it is not by its alias."""


class Chapter(NamedTuple):
    """What a chapter's last section needs."""

    measured: tuple[str, ...]
    """Functions that measure it, in `coupling_lib`."""
    drawn: tuple[str, ...]
    """Functions that draw the figures on its page, in `companion.figures`."""
    further: dict[str, str]
    """Other commands by what they ask: parameters of the chapter's notebook, or a whole command behind a `$`."""


DECISIVE = "$ .venv/bin/python workflow/decisive.py gpt2 gpt2-medium gpt2-large qwen1.5-0.5b pythia-1.4b"
_PAPER = "The same for Llama-3 8B, a model of the paper, in 4 bits"

CHAPTERS: dict[str, Chapter] = {
    "depth": Chapter(
        ("measure_depth",), ("depth.draw_map",), {_PAPER: "model=llama3-8b precision=nf4 k=30 blocks=9-16"}
    ),
    "tokens": Chapter(("measure_tokens",), ("tokens.draw_grid",), {_PAPER: "model=llama3-8b precision=nf4 pair=16,20"}),
    "emergence": Chapter(
        ("measure_emergence",),
        ("emergence.draw_coupling",),
        {"The same for a Pythia model, before and after the paper's first step": (
            "model=pythia-410m steps=0,16,64,128,512,1000,8000,143000"
        )},
    ),
    "trajectories": Chapter(
        ("measure_trajectories",),
        ("trajectories.draw_scores",),
        {"The same for models of the paper, on as many prompts": (
            "model=llama3-8b others=gpt2,pythia-1.4b prompts=benchmarks:1200"
        )},
    ),
    "spectra": Chapter(("measure_spectra",), ("spectra.draw_inverse",), {_PAPER: "model=llama3-8b precision=nf4"}),
    "dynamics": Chapter(("measure_dynamics",), ("dynamics.draw_carried",), {_PAPER: "model=llama3-8b precision=nf4"}),
    "perturbation": Chapter(
        ("measure_perturbation",), ("perturbation.draw_error",), {"The same for a model of the paper": "model=gpt2"}
    ),
    "prompts": Chapter(
        ("measure_depth",), ("prompts.draw_versions",), {_PAPER: "model=llama3-8b precision=nf4 questions=gsm8k:100"}
    ),
    "vision": Chapter(
        ("measure_depth", "measure_relations"),
        ("vision.draw_rates", "vision.draw_accuracy"),
        {
            "The grid on CIFAR-10, trained anew": (
                "$ .venv/bin/python -m companion.training.vit grid cifar10"
                " --data path/to/cifar-10-batches-py --table cifar10.csv"
            ),
            "The figures of that grid": "table=cifar10.csv",
            "Any other vision transformer, on pictures of your own": (
                "model=google/vit-base-patch16-224 pictures=path/to/pictures"
            ),
        },
    ),
    "generalization": Chapter(
        ("measures.figure_1a.partial_table", "measures.correlations.sign_along_training", "coupling_loss"),
        ("generalization.draw_paper", "generalization.draw_sign", "generalization.draw_regularised"),
        {"The models of figure 1a themselves, whose weights decide": DECISIVE},
    ),
    "nulls": Chapter(("null_of",), ("nulls.draw_figure_1a",), {"The models of figure 1a themselves": DECISIVE}),
    "readings": Chapter(
        ("measure_depth",), ("readings.draw_beyond_chance",), {"The same for a model of the paper": "model=gpt2"}
    ),
    "precision": Chapter(
        ("measure_precision",),
        ("precision.draw_coupling",),
        {"The same for a model of the paper": "model=llama3-8b precisions=bfloat16,int8,nf4,fp4"},
    ),
}  # fmt: skip
"""All chapters by the name of their notebook."""


def models_of(chapter: str) -> list[str]:
    """Names the folders of `results/` that have a chapter's notebook, in the order of the table of contents."""
    listed = pages(yaml.safe_load((paths.ROOT / "_toc.yml").read_text(encoding="utf-8")))
    parts = [Path(page).parts for page in listed if page.startswith("results/")]
    return [model for _, model, name in parts if name == chapter]


def command_of(chapter: str, given: str) -> str:
    """Writes a command as it is typed, from parameters as NAME=VALUE or a whole command behind a `$`."""
    if given.startswith("$ "):
        return given[2:]
    parameters = dict(part.split("=", 1) for part in shlex.split(given))
    return f".venv/bin/{provenance.papermill_command(chapter, parameters)}"


def run_part(chapter: str, results: Path | None = None) -> str:
    """Writes how a chapter is run: each command in a block of its own, with its time, and what it leads to."""
    results = results or paths.RESULTS
    made, models = CHAPTERS[chapter], models_of(chapter)
    times = {model: spoken(duration(results / model / f"{chapter}.ipynb")) for model in models}
    first = models[0]
    kept = " Its measurements ship with the project and are read; [Repeat it](reproduce.md) says how to make them anew."
    lines = [
        f"This chapter, for {NAMES.get(first, first)}. **Time: {times[first]}** on [this machine](environment.md)."
        f"{kept if first in claims.DECODERS else ''}\n",
        _block(command_of(chapter, "" if first == "suite" else f"model={first}")),
    ]
    for said, given in made.further.items():
        long = "" if given.startswith("$ ") else " With `--log-output` it says how long it will take."
        lines += [f"{said}. **Time: not run here.**{long}\n", _block(command_of(chapter, given))]
    notebooks = [f"[{NAMES.get(m, m)}](../results/{m}/{chapter}.ipynb) ({times[m]})" for m in models]
    measured = ", ".join(f"{{py:func}}`~coupling_lib.{name}`" for name in made.measured)
    drawn = ", ".join(f"{{py:func}}`~companion.figures.{name}`" for name in made.drawn)
    lines += [
        f"- The notebook with all figures, as it ran: {', '.join(notebooks)}.",
        f"- Measured by {measured}; the figures above are drawn by {drawn}.",
    ]
    return "\n".join(lines) + "\n"


def _block(command: str) -> str:
    return f"```bash\n{command}\n```\n"


@functools.cache
def _judged(results: Path) -> list[tuple[dict, list[claims.Judged]]]:
    return claims.judge_all(results)


def verdicts_part(chapter: str, results: Path | None = None) -> str:
    """Writes the verdicts on the claims that a chapter is about, in the words of the page of claims."""
    lines = []
    for number, (claim, found) in enumerate(_judged(results or paths.RESULTS), start=1):
        if chapter not in (claim["notebook"], *claim.get("chapters", [])):
            continue
        places: dict[str, list[str]] = {}
        for place, words in claims.PLACES.items():
            # Some claims are tried on measurements alone, some on the values that the paper prints alone.
            scopes = {test.get("scope", "here") for test in claim["test"]}
            verdict = claims.verdict_at(claim, found, place)
            if verdict and ("paper" if place == "paper" else "here") in scopes:
                places.setdefault(verdict, []).append(words)
        said = "; ".join(f"**{verdict}** {' and '.join(where)}" for verdict, where in places.items())
        lines.append(f"- Claim {number}, *{claim['claim']}*: {said}")
    if not lines:
        return "The paper claims nothing of this, so that there is no verdict.\n"
    return "\n".join([*lines, "", "[All claims, and how a verdict is reached](claims.md)"]) + "\n"
