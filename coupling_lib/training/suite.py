"""The suite: many small language models by one recipe, trained, measured at every checkpoint, written to a table.

    python -m coupling_lib.training.suite TEXT --run runs/suite --table data/suite.csv

`TEXT` is a text file or a folder of `.txt` files. One model is trained after the other; a model that is done is
never repeated and a half-trained one goes on where it stood, so that the same command resumes. After each model
its rows go into the table: settings, losses, every reading of coupling with its null, and the trajectories.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel

from coupling_lib.errors import CouplingError, ParameterError
from coupling_lib.models.load import load_model, wrap_model
from coupling_lib.paths import CHECKPOINTS
from coupling_lib.training import run_files, suite_table, text
from coupling_lib.training.grammar import grammar_text
from coupling_lib.training.language import fit, loss
from coupling_lib.training.recipe import Recipe
from coupling_lib.training.suite_models import SHIPPED, SUITE, SuiteRecipe, build

_PARAGRAPHS = 4000


def train_one(name: str, recipe: SuiteRecipe, corpus: text.Corpus, run: Path, text_name: str) -> list[dict]:
    """Train a model of the suite and measure it at step 0 and at every checkpoint."""
    kept = run / "rows.json"
    run_files.claim(run, recipe)
    if kept.exists():
        return json.loads(kept.read_text())
    model = build(recipe)
    done = _steps_done(run)
    start = time.monotonic()
    dtype = getattr(torch, recipe.precision)
    fit(recipe, model, corpus, run, every_seconds=60.0, objective=lambda model, ids, _: loss(model, ids, dtype))
    # A resumed run knows the time of its last part alone, so the time of a step is what is kept.
    per_step = (time.monotonic() - start) / max(1, recipe.steps - done)
    log = {int(row["step"]): row["train_loss"] for row in run_files.read_log(run / "log.csv", recipe.steps)}
    rows = []
    for step in (0, *recipe.checkpoints):
        loaded = wrap_model(weights(recipe, run, step), corpus.tokenizer, name=name)
        row = suite_table.timed_row(name, recipe, loaded, corpus, text_name, step)
        rows.append(row | {"train_loss": log.get(step), "train_seconds": round(per_step * step, 1)})
    part = kept.with_suffix(".part")
    part.write_text(json.dumps(rows, indent=1))
    part.rename(kept)
    return rows


def _steps_done(run: Path) -> int:
    """Read from a run's state how many steps were taken before."""
    state = run / "state.safetensors"
    if not state.exists():
        return 0
    with safe_open(state, "pt") as file:
        return int(file.get_tensor("step"))


def weights(recipe: SuiteRecipe, run: Path, step: int) -> PreTrainedModel:
    """Give a checkpoint of a run; step 0 comes from the seed."""
    if step == 0:
        return build(recipe)
    return AutoModelForCausalLM.from_pretrained(run / f"step{step}", dtype=torch.float32)


def measure_shipped(name: str, corpus: text.Corpus, run: Path, text_name: str) -> list[dict]:
    """Measure an embedded model at every checkpoint that ships with the project."""
    record = json.loads((CHECKPOINTS / name / "training.json").read_text())
    recipe = Recipe(**record["recipe"])
    kept = run / "rows.json"
    if kept.exists():
        return json.loads(kept.read_text())
    run.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in (point["step"] for point in record["checkpoints"]):
        model = load_model(name, revision=f"step{step}", device="cpu")
        rows.append(suite_table.timed_row(name, recipe, model, corpus, text_name, step))
    kept.write_text(json.dumps(rows, indent=1))
    return rows


def run_suite(names: list[str], source: Path | None, run: Path, table: Path, text_name: str = "") -> None:
    """Train and measure models of the suite, one after the other, and keep the table up to date."""
    unknown = [name for name in names if name not in (*SUITE, *SHIPPED)]
    if unknown:
        raise ParameterError(
            f"the model {unknown[0]!r} is not in the suite; choose from {', '.join((*SUITE, *SHIPPED))}"
        )
    order = [*SUITE, *SHIPPED]
    for number, name in enumerate(names, start=1):
        start = time.monotonic()
        recipe = SUITE.get(name)
        corpus = prepare_corpus(recipe or SuiteRecipe("neox"), source, run)
        label = text_name or (source.name if source else "")
        if recipe:
            rows = train_one(name, recipe, corpus, run / name, label)
        else:
            rows = measure_shipped(name, corpus, run / name, label)
        suite_table.write(table, rows, order)
        last = rows[-1]
        print(
            f"[{number}/{len(names)}] {name}: step {last['step']}, validation loss {last['validation_loss']:.3f}, "
            f"coupling (1 - normalized_miscoupling, K = 10) {1 - last['normalized_miscoupling_k10']:.3f}, "
            f"null {1 - last['normalized_miscoupling_k10_null']:.3f}, {time.monotonic() - start:.0f} s",
            flush=True,
        )


def prepare_corpus(recipe: SuiteRecipe, source: Path | None, run: Path) -> text.Corpus:
    """Tokenise a corpus once for all models that share it; its split never depends on a model's seed."""
    folder = run / "tokens"
    if recipe.corpus == "grammar":
        folder, source = run / "tokens-grammar", run / "grammar.txt"
        if not source.exists():
            run.mkdir(parents=True, exist_ok=True)
            source.write_text(grammar_text(_PARAGRAPHS))
    if source is None:
        raise ParameterError("there is no text; give a text file or a folder of .txt files, as the first argument")
    return text.prepare(source, folder, recipe.vocabulary, recipe.held_out, seed=0)


def main(arguments: list[str] | None = None) -> None:
    """Train and measure the suite: the command line."""
    parser = argparse.ArgumentParser(prog="python -m coupling_lib.training.suite", description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?", help="a text file or a folder of .txt files")
    parser.add_argument("--run", type=Path, default=Path("runs/suite"), help="folder of the runs, to resume from")
    parser.add_argument(
        "--table", type=Path, default=Path("data/suite.csv"), help="the table that rows are merged into"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of models (default: all)")
    parser.add_argument("--data", default="", help="what the text is, for the table (default: its name)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all)")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        run_suite(options.only or [*SUITE, *SHIPPED], options.text, options.run, options.table, options.data)
    except (CouplingError, FileNotFoundError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
