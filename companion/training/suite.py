"""The suite: many small language models by one recipe, trained, measured at every checkpoint, written to a table.

A model that is done is never repeated and a half-trained one goes on where it stood. After each model its rows go into
the table: settings, losses, every reading of coupling with its null, and the trajectories.

The models are one base setting, varied one thing at a time, and width crossed with depth. Every model sees the same
held-out split and reads the same tokenizer as `nano-neox`; seeds change the initialisation and the batches. Three tiny
models are trained on the text of the grammar of `training.text`, which needs no corpus, so that whoever has the library
can repeat them.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from companion.training import run_files, suite_table, text
from companion.training.drop_path import drop_blocks
from companion.training.language import RECIPES, configuration, fit, initialise, loss
from companion.training.suite_table import SuiteRecipe
from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.models.load import load_model
from coupling_lib.models.model import Model
from coupling_lib.models.storages import wrap_model

_PARAGRAPHS = 4000


BASE = SuiteRecipe(
    "neox", width=64, blocks=8, heads=2, kv_heads=2, mlp_width=256, vocabulary=1536, context=128, windows=8,
    steps=600, checkpoints=(32, 100, 300, 600), warmup=50,
)  # fmt: skip
TINY = SuiteRecipe(
    "neox", width=32, blocks=3, heads=2, kv_heads=2, mlp_width=128, vocabulary=320, context=64, windows=8,
    steps=60, checkpoints=(20, 60), learning_rate=3e-3, warmup=10, corpus="grammar", precision="float32",
)  # fmt: skip
_VARIED = {"seed": "seed", "sd": "stochastic_depth", "wd": "weight_decay", "lr": "learning_rate", "drop": "dropout"}


def _sized(base: SuiteRecipe, width: int, blocks: int, architecture: str = "neox") -> SuiteRecipe:
    """Change a recipe's size, with an MLP of the architecture's usual width: 4 d, or 8 d / 3 where it is gated."""
    inner = 4 * width if architecture == "neox" else 8 * round(width / 3)
    return replace(base, architecture=architecture, width=width, blocks=blocks, mlp_width=inner)


def _changed(names: str) -> dict[str, SuiteRecipe]:
    """Read changes of the base setting from their names: `sd0.2-wd1` has stochastic depth 0.2 and weight decay 1."""
    found = {}
    for name in names.split():
        given = re.findall(r"([a-z]+)([\d.]+(?:e-\d)?)", name)
        values = {_VARIED[short]: int(value) if short == "seed" else float(value) for short, value in given}
        found[f"neox-w64-d8-{name}"] = replace(BASE, **values)
    return found


def _suite() -> dict[str, SuiteRecipe]:
    """All recipes by name, in the order of training: the sooner a run is cut short, the coarser the suite."""
    models = {"tiny-neox-w32-d3": TINY, "tiny-neox-w48-d4": _sized(TINY, 48, 4)}
    models |= {"tiny-llama-w32-d3": _sized(TINY, 32, 3, "llama"), "neox-w64-d8": BASE}
    grid = [(32, 4), (96, 4), (32, 12), (48, 8), (64, 4), (32, 8), (96, 8), (48, 4), (64, 12), (48, 12), (96, 12)]
    models |= {f"neox-w{width}-d{blocks}": _sized(BASE, width, blocks) for width, blocks in grid}
    models |= _changed("seed1 sd0.2 wd1 lr5e-4 drop0.1 seed2 wd0 sd0.1 lr6e-3")
    gated = [(64, 8), (32, 8), (64, 4), (96, 8)]
    models |= {f"llama-w{width}-d{blocks}": _sized(BASE, width, blocks, "llama") for width, blocks in gated}
    return models | _changed("wd3 sd0.4 drop0.2 lr1e-3 seed3 sd0.2-wd1 sd0.2-wd0")


SUITE = _suite()
"""Recipes of the models that the suite trains, by name."""

SHIPPED = ("nano-neox", "nano-llama")
"""Embedded models that the suite measures beside its own; their weights come with the project."""


def build(recipe: SuiteRecipe) -> PreTrainedModel:
    """Build a model of the suite at step 0, with its dropout and stochastic depth in place."""
    config = configuration(recipe)
    if recipe.dropout:
        if recipe.architecture != "neox":
            raise ParameterError(f"dropout is {recipe.dropout!r}; the architecture {recipe.architecture!r} has none")
        config.hidden_dropout = config.attention_dropout = recipe.dropout
    model = initialise(config, recipe.seed)
    if recipe.stochastic_depth:
        drop_blocks(model.base_model.layers, recipe.stochastic_depth)
    return model.train()


def train_one(name: str, recipe: SuiteRecipe, corpus: text.Corpus, run: Path, text_name: str) -> list[dict]:
    """Train a model of the suite, unless it is embedded, and measure it at step 0 and at every checkpoint."""
    known, rows = {} if name in SHIPPED else trained(recipe, corpus, run), []
    for step in (0, *recipe.checkpoints):
        model = checkpoint(name, recipe, corpus, run, step)
        row = suite_table.timed_row(name, recipe, model, corpus, text_name, step)
        rows.append(row | suite_table.permuted(model) | known.get(step, {}))
    return rows


def trained(
    recipe: SuiteRecipe, corpus: text.Corpus, run: Path,
    seen: Callable[[torch.Tensor, int], torch.Tensor] = lambda ids, _: ids,
) -> dict[int, dict]:  # fmt: skip
    """Train a model on what it is to see of each batch; give its running loss and the seconds until each checkpoint."""
    state, start, dtype = run / "state.safetensors", time.monotonic(), getattr(torch, recipe.precision)
    done = int(load_file(state)["step"]) if state.exists() else 0

    def objective(model: PreTrainedModel, ids: torch.Tensor, step: int) -> torch.Tensor:
        return loss(model, seen(ids, step), dtype)

    fit(recipe, build(recipe), corpus, run, every_seconds=60.0, objective=objective)
    # A resumed run knows the time of its last part alone, so the time of a step is what is kept.
    per_step = (time.monotonic() - start) / max(1, recipe.steps - done)
    log = {int(row["step"]): row["train_loss"] for row in run_files.read_log(run / "log.csv", recipe.steps)}
    steps = (0, *recipe.checkpoints)
    return {step: {"train_loss": log.get(step), "train_seconds": round(per_step * step, 1)} for step in steps}


def weights(recipe: SuiteRecipe, run: Path, step: int) -> PreTrainedModel:
    """Return a checkpoint of a run; step 0 comes from the seed."""
    if step == 0:
        return build(recipe)
    return AutoModelForCausalLM.from_pretrained(run / f"step{step}", dtype=torch.float32)


def checkpoint(name: str, recipe: SuiteRecipe, corpus: text.Corpus, run: Path, step: int) -> Model:
    """Return a checkpoint of a run to be measured; of an embedded model, the one that ships."""
    if name in SHIPPED:
        return load_model(name, revision=f"step{step}", device="cpu")
    return wrap_model(weights(recipe, run, step), corpus.tokenizer, name=name)


def run_suite(names: list[str], source: Path | None, run: Path, table: Path, text_name: str = "") -> None:
    """Train and measure models of the suite."""
    order = [*SUITE, *SHIPPED]
    if unknown := [name for name in names if name not in order]:
        raise ParameterError(f"the model {unknown[0]!r} is not in the suite; choose from {', '.join(order)}")
    chosen = {name: SUITE.get(name) or SuiteRecipe(**asdict(RECIPES[name])) for name in names}
    run_all(chosen, train_one, source, run, table, order, text_name)


def run_all(
    chosen: Mapping[str, SuiteRecipe], rows_of: Callable[..., list[dict]], source: Path | None, run: Path, table: Path,
    order: list[str], text_name: str, header: str = suite_table.HEADER,
) -> None:  # fmt: skip
    """Train and measure runs that were not before, keep the table up to date and say what each came to."""
    label = text_name or (source.name if source else "")
    for number, (name, recipe) in enumerate(chosen.items(), start=1):
        start, corpus, kept = time.monotonic(), prepare_corpus(recipe, source, run), run / name / "rows.json"
        run_files.claim(run / name, recipe)
        if not kept.exists():
            paths.write_text(kept, json.dumps(rows_of(name, recipe, corpus, run / name, label), indent=1))
        rows = json.loads(kept.read_text())
        suite_table.write(table, rows, order, header)
        last = rows[-1]
        pair_loss = f", coupling loss {last['coupling_loss']:.3f}" if "coupling_loss" in last else ""
        print(
            f"[{number}/{len(chosen)}] {name}: step {last['step']}, validation loss {last['validation_loss']:.3f}, "
            f"coupling (1 - normalized_miscoupling, K = 10) {1 - last['normalized_miscoupling_k10']:.3f}, "
            f"null {1 - last['normalized_miscoupling_k10_null']:.3f}{pair_loss}, {time.monotonic() - start:.0f} s",
            flush=True,
        )


def prepare_corpus(recipe: SuiteRecipe, source: Path | None, run: Path) -> text.Corpus:
    """Tokenise a corpus once for all models that share it; its split never depends on a model's seed."""
    folder = run / "tokens"
    if recipe.corpus == "grammar":
        folder, source = run / "tokens-grammar", run / "grammar.txt"
        if not source.exists():
            run.mkdir(parents=True, exist_ok=True)
            source.write_text(text.grammar_text(_PARAGRAPHS))
    if source is None:
        raise ParameterError("there is no text; give a text file or a folder of .txt files, as the first argument")
    return text.prepare(source, folder, recipe.vocabulary, recipe.held_out, seed=0)


if __name__ == "__main__":
    import_module("companion.training.__main__").main(command="suite")
