"""The recipe of the vision transformers: DeiT's training without distillation, on digits or CIFAR-10.

    python -m coupling_lib.training.vit one digits --weight-decay 0.04 --drop-path 0.1 --run runs/vit
    python -m coupling_lib.training.vit grid digits --run runs/vit --table data/vit_grid.csv

The model is Hugging Face's `ViTForImageClassification`, so that the library that measures language models measures
it as it is. Batches, augmentation and dropped branches are functions of the seed and the step: a run that was
killed resumes where its state was last written and ends with the same weights, and all models of one seed start
from the same weights and see the same images.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch.nn import functional
from tqdm import tqdm
from transformers import ViTForImageClassification

from coupling_lib.errors import CouplingError, ParameterError
from coupling_lib.inputs import images
from coupling_lib.inputs.labelled_images import LabelledImages, read_dataset
from coupling_lib.models.drop_path import DropPath
from coupling_lib.training import augment, run_files
from coupling_lib.training.vit_recipe import (
    RECIPES,
    VitRecipe,
    configuration,
    initialise,
    learning_rate,
    steps_per_epoch,
)


def batch(recipe: VitRecipe, data: LabelledImages, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw and augment the images of one step; a function of its arguments alone."""
    per_epoch = steps_per_epoch(recipe, data)
    epoch, place = divmod(step, per_epoch)
    order = torch.randperm(len(data.train), generator=_generator(recipe.seed, 3 * epoch))
    chosen = order[place * recipe.batch : (place + 1) * recipe.batch]
    generator = _generator(recipe.seed, 3 * step + 1)
    x = data.train[chosen].float() / 255
    x = augment.random_crop(x, generator, recipe.crop)
    x = augment.random_flip(x, generator) if recipe.flip else x
    x = augment.rand_augment(x, generator, recipe.layers, recipe.magnitude, recipe.spread)
    x = augment.random_erasing(x, generator, recipe.erasing)
    targets = augment.smooth_targets(data.train_labels[chosen], len(data.classes), recipe.label_smoothing)
    return augment.mix(x, targets, generator, recipe.mixup, recipe.cutmix, recipe.mixing)


def train(recipe: VitRecipe, data: LabelledImages, run: Path, every_seconds: float = 15.0) -> Path:
    """Train a model by a recipe; call it again to resume."""
    run = Path(run)
    run.mkdir(parents=True, exist_ok=True)
    written, as_json = run / "recipe.json", json.dumps(asdict(recipe) | {"data": data.name}, indent=1)
    if written.exists() and written.read_text() != as_json:
        raise ParameterError(f"{str(run)!r} holds a run of another recipe; give another folder or remove it")
    written.write_text(as_json)
    state, clock = run / "state.safetensors", run / "seconds.txt"
    if (run / "model" / "model.safetensors").exists():
        return run
    model = initialise(configuration(recipe, data), recipe.seed).train()
    optimiser = _optimiser(model, recipe)
    start = run_files.load_state(state, model, optimiser) if state.exists() else 0
    before = float(clock.read_text()) if start and clock.exists() else 0.0
    dropping = DropPath(model.vit.layers, recipe.drop_path)
    per_epoch = steps_per_epoch(recipe, data)
    began = saved = time.monotonic()
    progress = tqdm(range(start, recipe.epochs * per_epoch), recipe.name, unit="step", mininterval=5, disable=None)
    for step in progress:
        value = _step(recipe, data, model, optimiser, dropping, step, per_epoch)
        progress.set_postfix(loss=f"{value:.3f}", refresh=False)
        if time.monotonic() - saved > every_seconds:
            run_files.save_state(state, model, optimiser, step + 1)
            saved = time.monotonic()
            clock.write_text(f"{before + saved - began:.1f}")
    dropping.remove()
    clock.write_text(f"{before + time.monotonic() - began:.1f}")
    # Written beside its place, then renamed: a killed run never leaves half a model.
    model.eval().save_pretrained(run / "model.part")
    (run / "model.part").rename(run / "model")
    state.unlink(missing_ok=True)
    return run


@torch.no_grad()
def evaluate(model: ViTForImageClassification, x: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Measure a model on labelled images, in evaluation mode and without augmentation."""
    model.eval()
    parts = [model(pixel_values=images.pixels_for(part / 255, model.config)).logits for part in x.split(256)]
    logits = torch.cat(parts).float()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return float(accuracy), float(functional.cross_entropy(logits, labels))


def _step(
    recipe: VitRecipe,
    data: LabelledImages,
    model: ViTForImageClassification,
    optimiser: torch.optim.AdamW,
    dropping: DropPath,
    step: int,
    per_epoch: int,
) -> float:
    """Take one step of training and give its loss."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(recipe, step, per_epoch)
    x, targets = batch(recipe, data, step)
    dropping.seed(_seed(recipe.seed, 3 * step + 2))
    loss = functional.cross_entropy(model(pixel_values=images.pixels_for(x, model.config)).logits, targets)
    loss.backward()
    if recipe.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return loss.item()


def _optimiser(model: ViTForImageClassification, recipe: VitRecipe) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only; the class token and the positions are no matrices."""
    named = dict(model.named_parameters())
    decays = {
        name: p.ndim >= 2 and not name.endswith(("cls_token", "position_embeddings")) for name, p in named.items()
    }
    groups = [
        {"params": [p for name, p in named.items() if decays[name]], "weight_decay": recipe.weight_decay},
        {"params": [p for name, p in named.items() if not decays[name]], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)


def _seed(seed: int, number: int) -> int:
    """Make one seed of a run's seed and a counter."""
    return (seed << 32) + number


def _generator(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(_seed(seed, number))


def main(arguments: list[str] | None = None) -> None:
    """Train one model, or the grid: the command line."""
    from coupling_lib.training import vit_card, vit_grid

    parser = argparse.ArgumentParser(prog="python -m coupling_lib.training.vit", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("one", "grid"):
        command = commands.add_parser(name, help="train one model" if name == "one" else "train and measure the grid")
        command.add_argument("recipe", choices=RECIPES, help="the recipe, named after its data set")
        command.add_argument("--data", help="where the images are (default: the recipe's data set)")
        command.add_argument("--run", type=Path, default=Path("runs/vit"), help="folder of the runs; it resumes")
        command.add_argument("--epochs", type=int, help="passes through the images (default: the recipe's)")
        command.add_argument("--threads", type=int, help="CPU threads (default: all)")
    one, whole = commands.choices["one"], commands.choices["grid"]
    one.add_argument("--weight-decay", type=float, default=0.04)
    one.add_argument("--drop-path", type=float, default=0.0, help="rate of stochastic depth at the last block")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--ship", type=Path, help="folder to write the model, its record and its card to when done")
    whole.add_argument("--table", type=Path, default=Path("data/vit_grid.csv"), help="table of what is measured")
    whole.add_argument("--images", type=int, default=vit_grid.IMAGES, help="held-out images measured per model")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    base = RECIPES[options.recipe]
    base = replace(base, epochs=options.epochs) if options.epochs else base
    try:
        data = read_dataset(options.data or options.recipe)
        if options.command == "grid":
            vit_grid.run_grid(vit_grid.paper_grid(base), data, options.run, options.table, options.images)
            return
        recipe = replace(base, weight_decay=options.weight_decay, drop_path=options.drop_path, seed=options.seed)
        folder = train(recipe, data, options.run / recipe.name)
        if options.ship:
            vit_card.ship(options.ship.name, folder, options.ship, data)
    except (CouplingError, FileNotFoundError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
