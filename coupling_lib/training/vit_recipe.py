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
    """Everything that decides a training run besides the images.

    The defaults are DeiT-Tiny's (Touvron and others, 2021; the arguments of its published code), which the paper
    trains after; its width, depth and heads are the paper's. What the paper does not tell (patch, epochs, batch,
    learning rate, augmentation) is DeiT's, except for the patch, which fits images of 32 pixels. DeiT's repeated
    augmentation, colour jitter and moving average of the weights are left out.

    Args:
        width: width d of the residual stream (paper: 192).
        blocks: number of transformer blocks L (paper: 12).
        heads: attention heads (paper: 3).
        patch: side of a patch in pixels.
        epochs: passes through the training images.
        batch: images per step.
        learning_rate: peak of AdamW for 512 images per step; scaled by `batch` / 512.
        warmup_epochs: linear warm-up from `warmup_rate`.
        warmup_rate: learning rate of the first step.
        final_rate: learning rate at which the cosine ends.
        weight_decay: decoupled weight decay of matrices; biases, norms, class token and positions have none.
        drop_path: rate of stochastic depth at the last block, growing linearly from 0 at the first.
        label_smoothing: share of each target spread over all classes.
        layers: operations of RandAugment per image.
        magnitude: their mean strength, 0 to 10.
        spread: standard deviation of the strength.
        erasing: share of images with a rectangle of noise.
        mixup: alpha of mixup; 0 turns it off.
        cutmix: alpha of cutmix; 0 turns it off.
        mixing: chance that a batch is mixed.
        crop: pixels of padding for random crops.
        flip: whether images are mirrored at random.
        clip: largest norm of the gradient; 0 for no bound, as in DeiT.
        spread_of_weights: standard deviation of the fresh weights.
        seed: seed of initialisation, batches, augmentation and stochastic depth.
    """

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
    """Give the Hugging Face configuration of a recipe on a data set.

    Args:
        recipe: the recipe.
        data: the images, whose size, channels, classes and normalisation the configuration records.

    Returns:
        the configuration.
    """
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
    """Build a vision transformer with fresh weights from a seed: step 0 of a run.

    Args:
        config: its configuration.
        seed: seed of the initialisation.

    Returns:
        the model in float32.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViTForImageClassification._from_config(config, dtype=torch.float32, attn_implementation="eager")


def learning_rate(recipe: VitRecipe, step: int, per_epoch: int) -> float:
    """Linear warm-up, then a cosine.

    Args:
        recipe: the recipe.
        step: number of the step, from 0.
        per_epoch: steps per epoch.

    Returns:
        the learning rate of that step.
    """
    peak = recipe.learning_rate * recipe.batch / 512
    warmup, total = recipe.warmup_epochs * per_epoch, recipe.epochs * per_epoch
    if step < warmup:
        return recipe.warmup_rate + (peak - recipe.warmup_rate) * step / warmup
    done = (step - warmup) / max(1, total - warmup)
    return recipe.final_rate + (peak - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * done))


def steps_per_epoch(recipe: VitRecipe, data: LabelledImages) -> int:
    """Count the full batches of an epoch; what is left over is seen in other epochs.

    Args:
        recipe: the recipe.
        data: the images.

    Returns:
        the number of steps.

    Raises:
        ParameterError: if there are fewer images than a batch takes.
    """
    if recipe.batch > len(data.train):
        raise ParameterError(f"batch is {recipe.batch}; {data.name} has {len(data.train)} training images; take fewer")
    return len(data.train) // recipe.batch


def grid(weight_decays: tuple[float, ...], rates: tuple[float, ...], base: VitRecipe) -> Iterator[VitRecipe]:
    """Give the recipes of a grid of weight decay by stochastic depth.

    Args:
        weight_decays: the weight decays.
        rates: the rates of stochastic depth.
        base: everything else.

    Yields:
        one recipe per pair, rate by rate within each weight decay.
    """
    for weight_decay in weight_decays:
        for rate in rates:
            yield replace(base, weight_decay=weight_decay, drop_path=rate)
