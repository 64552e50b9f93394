"""Command lines of training; each resumes where it was stopped.

    python -m companion.training language nano-neox TEXT --run runs/nano-neox --ship data/checkpoints
    python -m companion.training EXPERIMENT TEXT --run runs/EXPERIMENT --table runs/EXPERIMENT.csv
    python -m companion.training vit one digits --weight-decay 0.04 --drop-path 0.1 --run runs/vit
    python -m companion.training vit grid digits --run runs/vit --table runs/vit_grid.csv
    python -m companion.training vit pairs cifar10-small --data CIFAR --run runs/vit --table runs/cifar_pairs.csv

`TEXT` is a text file or a folder of `.txt` files. `EXPERIMENT` is suite, quality, width, phases, later or regularised;
a model whose rows are all in the table is not trained again.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from companion.training import (
    cards,
    experiment,
    language,
    later,
    phases,
    quality,
    regularised,
    suite,
    vit,
    vit_grid,
    width,
)
from coupling_lib.errors import ParameterError, check_whole
from coupling_lib.inputs.labelled_images import LabelledImages, read_dataset
from coupling_lib.progress import in_one_line

RUNS = Path("runs")
EXPERIMENTS = {each.EXPERIMENT.name: each.EXPERIMENT for each in (suite, quality, width, phases, later, regularised)}
_TABLE = "the table to merge rows into"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line."""
    options = _parser().parse_args(arguments)
    interrupted = "interrupted; the same command goes on from the last checkpoint"
    if status := in_one_line(lambda: _act(options) or 0, interrupted):
        sys.exit(status)


def _act(given: argparse.Namespace) -> None:
    if given.threads is not None:
        torch.set_num_threads(check_whole("--threads", given.threads, 1))
    given.act(given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m companion.training", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = argparse.ArgumentParser(add_help=False)
    run.add_argument("--run", type=Path, help="folder of the run (default: one in runs); the same folder resumes")
    run.add_argument("--threads", type=int, help="CPU threads (default: all)")
    on_text = argparse.ArgumentParser(add_help=False, parents=[run])
    on_text.add_argument("--data", default="", help="what the text is, for card or table (default: its name)")
    what = "a text file or a folder of .txt files"

    command = commands.add_parser("language", parents=[on_text], help="train an embedded language model")
    command.set_defaults(act=_language)
    command.add_argument("name", choices=language.RECIPES, help="the recipe")
    command.add_argument("text", type=Path, help=what)
    command.add_argument("--seed", type=int, help="another seed, of weights and batches")
    command.add_argument("--ship", type=Path, help="folder to copy the checkpoints and the card to when done")

    for name, one in EXPERIMENTS.items():
        command = commands.add_parser(name, parents=[on_text], help=one.does)
        command.set_defaults(act=_experiment, experiment=one)
        command.add_argument("text", type=Path, nargs="?", help=what)
        command.add_argument("--table", type=Path, default=RUNS / f"{name}.csv", help=_TABLE)
        command.add_argument("--only", nargs="+", metavar="NAME", help="names of models (default: all)")

    on_images = argparse.ArgumentParser(add_help=False, parents=[run])
    on_images.add_argument("recipe", choices=vit.RECIPES, help="the recipe, named after its data set")
    on_images.add_argument("--data", help="where the images are (default: the recipe's data set)")
    on_images.add_argument("--epochs", type=int, help="passes through the images (default: the recipe's)")
    kinds = commands.add_parser("vit", help="train vision transformers").add_subparsers(required=True, metavar="KIND")

    command = kinds.add_parser("one", parents=[on_images], help="train one model")
    command.set_defaults(act=_one)
    command.add_argument("--weight-decay", type=float, default=0.04)
    command.add_argument("--drop-path", type=float, default=0.0, help="rate of stochastic depth at the last block")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--ship", type=Path, help="folder to write the model, its record and its card to when done")

    for kind, does in (("grid", "train and measure the grid"), ("pairs", "the same of pairs that differ in one rate")):
        command = kinds.add_parser(kind, parents=[on_images], help=does)
        command.set_defaults(act=_grid, kind=kind)
        command.add_argument("--table", type=Path, help=_TABLE)
        command.add_argument("--images", type=int, default=vit_grid.IMAGES, help="held-out images measured per model")
    return parser


def _language(given: argparse.Namespace) -> None:
    recipe, name = language.RECIPES[given.name], given.name
    if given.seed is not None:
        recipe, name = replace(recipe, seed=given.seed), f"{name}-seed{given.seed}"
    run = language.train(recipe, given.text, given.run or RUNS / name)
    if given.ship:
        cards.ship_language(given.name, run, given.ship / name, given.data or given.text.name)


def _experiment(given: argparse.Namespace) -> None:
    run = given.run or RUNS / given.experiment.name
    experiment.run(given.experiment, given.text, run, given.table, given.data, given.only)


def _one(given: argparse.Namespace) -> None:
    check_whole("--seed", given.seed, 0, 2**31 - 1)
    if not 0 <= given.weight_decay < math.inf:
        raise ParameterError(f"--weight-decay is {given.weight_decay}; it must be a number from 0")
    data, base = _images_and_recipe(given)
    recipe = replace(base, weight_decay=given.weight_decay, drop_path=given.drop_path, seed=given.seed)
    run = vit.train(recipe, data, (given.run or RUNS / "vit") / recipe.name)
    if given.ship:
        cards.ship_vision(given.ship.name, run, given.ship, data)


def _grid(given: argparse.Namespace) -> None:
    if (given.kind, given.recipe) not in vit_grid.GRIDS:
        raise ParameterError(f"there are no pairs of {given.recipe!r}; take cifar10-small")
    recipes, table = vit_grid.GRIDS[given.kind, given.recipe]
    data, base = _images_and_recipe(given)
    vit_grid.run_grid(recipes(base), data, given.run or RUNS / "vit", given.table or RUNS / table, given.images)


def _images_and_recipe(given: argparse.Namespace) -> tuple[LabelledImages, vit.VitRecipe]:
    base = vit.RECIPES[given.recipe]
    recipe = replace(base, epochs=base.epochs if given.epochs is None else check_whole("--epochs", given.epochs, 1))
    return vit.prepared(recipe, read_dataset(given.data or given.recipe.partition("-")[0])), recipe


if __name__ == "__main__":
    main()
