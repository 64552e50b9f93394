"""What a vision transformer is trained with: the recipe, its configuration, step 0, and grids of recipes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from transformers import ViTConfig, ViTForImageClassification

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.labelled_images import LabelledImages


@dataclass(frozen=True)
class VitRecipe:
    """Everything that decides a training run besides the images."""

    # The defaults are DeiT-Tiny's (Touvron and others, 2021; the arguments of its published code), which the paper
    # trains after; its width, depth and heads are the paper's. What the paper does not tell (patch, epochs, batch,
    # learning rate, augmentation) is DeiT's, except for the patch, which fits images of 32 pixels. DeiT's repeated
    # augmentation, colour jitter and moving average of the weights are left out.

    width: int = 192
    blocks: int = 12
    heads: int = 3
    patch: int = 4
    epochs: int = 300
    batch: int = 1024
    learning_rate: float = 5e-4
    warmup_epochs: int = 5
    warmup_rate: float = 1e-6
    final_rate: float = 1e-5
    weight_decay: float = 0.05
    drop_path: float = 0.1
    label_smoothing: float = 0.1
    layers: int = 2
    magnitude: float = 9.0
    spread: float = 0.5
    erasing: float = 0.25
    mixup: float = 0.8
    cutmix: float = 1.0
    mixing: float = 1.0
    crop: int = 4
    flip: bool = True
    clip: float = 0.0
    spread_of_weights: float = 0.02
    seed: int = 0

    @property
    def name(self) -> str:
        """Name a run by what the grid varies."""
        return f"wd{self.weight_decay:g}-sd{self.drop_path:g}-seed{self.seed}"


RECIPES = {
    "cifar10": VitRecipe(),
    # Small enough for one core: fewer and smaller patches and a fifth of the width. A digit is not its mirror
    # image, and eight pixels do not survive strong changes, so the augmentation is lighter than DeiT's.
    "digits": VitRecipe(
        width=36,
        patch=2,
        epochs=14,
        batch=64,
        learning_rate=3.2e-2,
        warmup_epochs=3,
        layers=1,
        magnitude=4.0,
        erasing=0.1,
        mixup=0.2,
        cutmix=0.5,
        mixing=0.5,
        crop=0,
        flip=False,
        clip=1.0,
        # About 1 / sqrt(width); with DeiT's 0.02, made for 192, blocks this narrow hardly learn in so few steps.
        spread_of_weights=0.15,
    ),
}


def configuration(recipe: VitRecipe, data: LabelledImages) -> ViTConfig:
    """Give the Hugging Face configuration of a recipe on a data set."""
    mean, std = data.statistics()
    return ViTConfig(
        hidden_size=recipe.width,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.width,
        image_size=data.train.shape[-1],
        patch_size=recipe.patch,
        num_channels=data.train.shape[1],
        id2label=dict(enumerate(data.classes)),
        label2id={name: number for number, name in enumerate(data.classes)},
        layer_norm_eps=1e-6,
        initializer_range=recipe.spread_of_weights,
        image_mean=mean,
        image_std=std,
    )


def initialise(config: ViTConfig, seed: int) -> ViTForImageClassification:
    """Build a vision transformer with fresh weights from a seed: step 0 of a run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViTForImageClassification._from_config(config, dtype=torch.float32, attn_implementation="eager")


def learning_rate(recipe: VitRecipe, step: int, per_epoch: int) -> float:
    """Linear warm-up, then a cosine."""
    peak = recipe.learning_rate * recipe.batch / 512
    warmup, total = recipe.warmup_epochs * per_epoch, recipe.epochs * per_epoch
    if step < warmup:
        return recipe.warmup_rate + (peak - recipe.warmup_rate) * step / warmup
    done = (step - warmup) / max(1, total - warmup)
    return recipe.final_rate + (peak - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * done))


def steps_per_epoch(recipe: VitRecipe, data: LabelledImages) -> int:
    """Count the full batches of an epoch; what is left over is seen in other epochs."""
    if recipe.batch > len(data.train):
        raise ParameterError(f"batch is {recipe.batch}; {data.name} has {len(data.train)} training images; take fewer")
    return len(data.train) // recipe.batch


def grid(weight_decays: tuple[float, ...], rates: tuple[float, ...], base: VitRecipe) -> Iterator[VitRecipe]:
    """Give the recipes of a grid of weight decay by stochastic depth."""
    for weight_decay in weight_decays:
        for rate in rates:
            yield replace(base, weight_decay=weight_decay, drop_path=rate)
