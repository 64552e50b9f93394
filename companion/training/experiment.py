"""Engine of the experiments: networks are trained, measured at steps of training, and written to a table.

A network with all its rows in the table is never trained again, and a half-trained one resumes.
Every row carries the digest of `data/predictions.toml` at the time of its measurement: predictions are
written first, and that file is only ever appended to.
"""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

import coupling_lib as cl
from companion.tables.files import merge, predictions_sha256, unique_keys
from companion.training import columns, run_files, text
from companion.training.columns import Columns
from companion.training.drop_path import drop_blocks
from companion.training.language import Recipe, configuration, fit, initialise, loss
from companion.training.text import Corpus
from coupling_lib import paths, provenance
from coupling_lib.errors import ParameterError

EMBEDDED = ("nano-neox", "nano-llama")
"""Models that an experiment measures without training them; their weights come with the project."""
_PARAGRAPHS = 4000


@dataclass(frozen=True)
class ExperimentRecipe(Recipe):
    """A recipe with the further settings that experiments vary."""

    dropout: float = 0.0
    stochastic_depth: float = 0.0
    corpus: str = "given"
    precision: str = "bfloat16"


class Checkpoint(NamedTuple):
    """A network at one step of its training, with the inputs of its columns."""

    model: cl.Model
    recipe: Any
    corpus: Corpus
    step: int
    train_loss: float | None
    train_seconds: float | None


def every_step(recipe: ExperimentRecipe) -> tuple[int, ...]:
    """Return the steps at which a network is measured: before training, and at every checkpoint."""
    return (0, *recipe.checkpoints)


def cross_entropy(model: PreTrainedModel, ids: torch.Tensor, step: int, recipe: Any) -> torch.Tensor:
    """Compute the mean next-token cross-entropy of a batch, in the recipe's precision."""
    return loss(model, ids, getattr(torch, recipe.precision))


@dataclass(frozen=True)
class Experiment:
    """Language models with a recipe each, in the order of training, and the measurements of them."""

    name: str
    does: str
    header: str
    recipes: Mapping[str, Any]
    columns: Callable[[Checkpoint], Columns]
    objective: Callable[[PreTrainedModel, torch.Tensor, int, Any], torch.Tensor] = cross_entropy
    trained_on: Callable[[Corpus, Any], Corpus] = lambda corpus, _: corpus
    steps: Callable[[Any], tuple[int, ...]] = every_step


def run(
    experiment: Experiment, source: Path | None, folder: Path, table: Path, text_name: str = "",
    names: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Train and measure the networks of an experiment that lack rows in a table, and print each one's result."""
    names = list(experiment.recipes) if names is None else names
    if unknown := [name for name in names if name not in experiment.recipes]:
        known = ", ".join(experiment.recipes)
        raise ParameterError(f"the model {unknown[0]!r} is not in {experiment.name!r}; choose from {known}")
    predictions_sha256()
    key = ["model", "step"]
    stored = unique_keys(table, key)
    wanted = {name: {(name, step) for step in experiment.steps(experiment.recipes[name])} for name in names}
    missing = [name for name in names if not wanted[name] <= stored]
    for number, name in enumerate(missing, start=1):
        start, recipe, kept = time.monotonic(), experiment.recipes[name], folder / name / "rows.json"
        corpus = prepare_corpus(recipe, source, folder)
        if name in EMBEDDED and corpus.tokenizer.get_vocab() != cl.load_model(name, device="cpu").tokenizer.get_vocab():
            warnings.warn(
                f"{name} is left out: the tokens of {str(source)!r} are not those that it reads, so its loss would say "
                "nothing; give the text that it was trained on",
                stacklevel=2,
            )
            continue
        run_files.claim(folder / name, recipe)
        if not kept.exists():
            label = recipe.corpus if recipe.corpus != "given" else text_name or source.name
            paths.write_text(kept, json.dumps(rows_of(experiment, name, corpus, folder / name, label), indent=1))
        rows = json.loads(kept.read_text())
        merge(table, rows, key, list(experiment.recipes), experiment.header)
        last = rows[-1]
        print(
            f"[{number}/{len(missing)}] {name}: step {last['step']}, validation loss {last['validation_loss']:.3f}, "
            f"coupling (1 - normalized_miscoupling, K = 10) {1 - last['normalized_miscoupling_k10']:.3f}, "
            f"by chance {1 - last['normalized_miscoupling_k10_null']:.3f}, {time.monotonic() - start:.0f} s",
            flush=True,
        )
    print(f"{len(names) - len(missing)} of {len(names)} models were in {table} before")


def rows_of(experiment: Experiment, name: str, corpus: Corpus, folder: Path, text_name: str) -> list[dict]:
    """Train a network, unless it is embedded, and measure it at every step: a row each."""
    recipe = experiment.recipes[name]
    corpus = experiment.trained_on(corpus, recipe)
    losses, per_step = ({}, None) if name in EMBEDDED else trained(recipe, corpus, folder, experiment.objective)
    rows = []
    for step in experiment.steps(recipe):
        model = checkpoint(name, recipe, corpus, folder, step)
        seconds = None if per_step is None else round(per_step * step, 1)
        one = Checkpoint(model, recipe, corpus, step, losses.get(step), seconds)
        start = time.monotonic()
        row = settings(name, one, text_name) | columns.held_out(model.hf, corpus, recipe.context)
        row |= columns.measure(model) | experiment.columns(one)
        where = {"cpu": provenance.processor(), "threads": torch.get_num_threads()}
        row |= where | {"measure_seconds": round(time.monotonic() - start, 2)}
        rows.append(row | {"predictions_sha256": predictions_sha256()})
    return rows


def settings(name: str, one: Checkpoint, text_name: str) -> dict:
    """Return the columns that identify a row's network and its training."""
    recipe = one.recipe
    fields = {key: value for key, value in asdict(recipe).items() if key not in ("checkpoints", "held_out", "corpus")}
    row = {"model": name, "text": recipe.corpus, "text_name": text_name}
    row |= {key: fields[key] for key in ("dropout", "stochastic_depth", "precision")} | fields
    row |= {"parameters": sum(parameter.numel() for parameter in one.model.hf.parameters())}
    return row | {"step": one.step, "tokens": one.step * recipe.windows * recipe.context}


def build(recipe: ExperimentRecipe) -> PreTrainedModel:
    """Build a network at step 0, with its dropout and stochastic depth."""
    config = configuration(recipe)
    if recipe.dropout:
        if recipe.architecture != "neox":
            raise ParameterError(f"dropout is {recipe.dropout!r}; the architecture {recipe.architecture!r} has none")
        config.hidden_dropout = config.attention_dropout = recipe.dropout
    model = initialise(config, recipe.seed)
    if recipe.stochastic_depth:
        drop_blocks(model.base_model.layers, recipe.stochastic_depth)
    return model.train()


def trained(
    recipe: ExperimentRecipe, corpus: Corpus, folder: Path, objective: Callable[..., torch.Tensor] = cross_entropy
) -> tuple[dict[int, float], float]:
    """Train a network, and return its running loss by step and the seconds per step."""
    state, start = folder / "state.safetensors", time.monotonic()
    done = int(load_file(state)["step"]) if state.exists() else 0
    fit(recipe, build(recipe), corpus, folder, every_seconds=60.0, objective=partial(objective, recipe=recipe))
    # A resumed run knows the time of its last part only, so the time of a step is returned.
    per_step = (time.monotonic() - start) / max(1, recipe.steps - done)
    log = run_files.read_log(folder / "log.csv", recipe.steps)
    return {int(row["step"]): row["train_loss"] for row in log}, per_step


def weights(recipe: ExperimentRecipe, folder: Path, step: int) -> PreTrainedModel:
    """Return a checkpoint of a run; step 0 comes from the seed."""
    if step == 0:
        return build(recipe)
    return AutoModelForCausalLM.from_pretrained(folder / f"step{step}", dtype=torch.float32)


def checkpoint(name: str, recipe: ExperimentRecipe, corpus: Corpus, folder: Path, step: int) -> cl.Model:
    """Return a checkpoint of a run to be measured; for an embedded model, the shipped one."""
    if name in EMBEDDED:
        return cl.load_model(name, revision=f"step{step}", device="cpu")
    return cl.wrap_model(weights(recipe, folder, step), corpus.tokenizer, name=name)


def prepare_corpus(recipe: ExperimentRecipe, source: Path | None, folder: Path) -> Corpus:
    """Tokenise a corpus once for all networks that share it; its split never depends on a network's seed."""
    tokens = folder / "tokens"
    if recipe.corpus == "grammar":
        tokens, source = folder / "tokens-grammar", folder / "grammar.txt"
        if not source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            source.write_text(text.grammar_text(_PARAGRAPHS))
    if source is None:
        raise ParameterError("there is no text; give a text file or a folder of .txt files, as the first argument")
    corpus = text.prepare(source, tokens, recipe.vocabulary, recipe.held_out, seed=0)
    text.check_length(corpus, recipe.context)
    return corpus
