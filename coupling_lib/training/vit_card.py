"""Shipping a trained vision transformer: a Hugging Face folder in half precision, its record and its card."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import ViTForImageClassification

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.labelled_images import LabelledImages
from coupling_lib.training.recipe import digest
from coupling_lib.training.vit import evaluate
from coupling_lib.training.vit_recipe import VitRecipe, configuration, initialise, steps_per_epoch

_DATA = {
    "digits": "handwritten digits of scikit-learn (UCI optical recognition, 8 x 8 pixels, grey)",
    "cifar10": "CIFAR-10 (32 x 32 pixels, colour)",
}


def ship(name: str, run: Path, target: Path, data: LabelledImages) -> None:
    """Write a finished run to where it is shipped from, with record and card."""
    if not (run / "model" / "model.safetensors").exists():
        raise ParameterError(f"the run in {str(run)!r} is not finished; start its command again to resume")
    recipe = VitRecipe(**{k: v for k, v in json.loads((run / "recipe.json").read_text()).items() if k != "data"})
    model = ViTForImageClassification.from_pretrained(run / "model", dtype=torch.float16)
    # Nothing reads the rate from here but whoever wants to know how the model was trained.
    model.config.drop_path_rate = recipe.drop_path
    if target.exists():
        shutil.rmtree(target)
    model.save_pretrained(target)
    record = _record(name, recipe, model.float(), data)
    (target / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    (target / "README.md").write_text(_card(record))


def _record(name: str, recipe: VitRecipe, model: ViTForImageClassification, data: LabelledImages) -> dict:
    """Gather the facts of a run; accuracies are those of the weights as they are shipped."""
    step0 = initialise(configuration(recipe, data), recipe.seed)
    train, test = (evaluate(model, x, y) for x, y in ((data.train, data.train_labels), (data.test, data.test_labels)))
    return {
        "name": name,
        "seed": recipe.seed,
        "steps": recipe.epochs * steps_per_epoch(recipe, data),
        "parameters": sum(parameter.numel() for parameter in step0.parameters()),
        "digest_step0": digest(step0),
        "command": f"python -m coupling_lib.training.vit one {data.name} --weight-decay {recipe.weight_decay:g} "
        f"--drop-path {recipe.drop_path:g} --seed {recipe.seed} --epochs {recipe.epochs} "
        f"--ship data/checkpoints/{name}",
        "recipe": vars(recipe),
        "data": {"name": data.name, "train": len(data.train), "test": len(data.test)},
        "train_accuracy": round(train[0], 4),
        "train_loss": round(train[1], 4),
        "test_accuracy": round(test[0], 4),
        "test_loss": round(test[1], 4),
        "untrained_test_accuracy": round(evaluate(step0, data.test, data.test_labels)[0], 4),
        "versions": {package: version(package) for package in ("torch", "transformers")},
    }


def _card(record: dict) -> str:
    """Write the model card from the record."""
    recipe = record["recipe"]
    augmentation = (
        f"RandAugment ({recipe['layers']} operation(s), magnitude {recipe['magnitude']:g}), random erasing "
        f"{recipe['erasing']:g}, mixup {recipe['mixup']:g} and cutmix {recipe['cutmix']:g} on a share of "
        f"{recipe['mixing']:g} of the batches, label smoothing {recipe['label_smoothing']:g}"
    )
    depth = "none" if recipe["drop_path"] == 0 else f"rate {recipe['drop_path']:g} at the last block, linear in depth"
    peak = recipe["learning_rate"] * recipe["batch"] / 512
    return f"""# {record["name"]}

A small vision transformer, trained for this project so that everything in it runs without a network.
It is an object of study, not a reader of digits.

| | |
| --- | --- |
| architecture | ViT (pre-norm, class token, learnt positions), as DeiT without distillation |
| size | {record["parameters"]:,} parameters; {recipe["blocks"]} blocks, width {recipe["width"]}, {recipe["heads"]} \
heads, MLP width {4 * recipe["width"]}, patches of {recipe["patch"]} x {recipe["patch"]} pixels |
| data | {_DATA[record["data"]["name"]]}; {record["data"]["train"]:,} images trained on, \
{record["data"]["test"]:,} held out |
| training | {record["steps"]:,} steps ({recipe["epochs"]} epochs) of {recipe["batch"]} images; AdamW, learning rate \
{peak:g} with {recipe["warmup_epochs"]} epochs of warm-up and a cosine, weight decay {recipe["weight_decay"]:g} |
| stochastic depth | {depth} |
| augmentation | {augmentation} |
| seed | {record["seed"]} (initialisation, batches, augmentation, stochastic depth) |
| stored as | float16, safetensors |
| made with | torch {record["versions"]["torch"]}, transformers {record["versions"]["transformers"]} |
| command | `{record["command"]}` |

| | accuracy | loss (nats) |
| --- | --- | --- |
| training images | {record["train_accuracy"]:.1%} | {record["train_loss"]:.3f} |
| held-out images | {record["test_accuracy"]:.1%} | {record["test_loss"]:.3f} |
| held-out images, untrained (revision `step0`, from its seed, not stored) | \
{record["untrained_test_accuracy"]:.1%} | |
"""
