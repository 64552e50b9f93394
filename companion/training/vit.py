"""The recipe of the vision transformers: DeiT's training without distillation, on digits or CIFAR-10.

The model is Hugging Face's `ViTForImageClassification`, so that the library measures it like any other.
Batches, augmentation and dropped branches are functions of the seed and the step: a run that was
killed resumes where its state was last written and ends with the same weights, and all models of one seed start
from the same weights and see the same images.
"""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional
from tqdm import tqdm
from transformers import ViTConfig, ViTForImageClassification

from companion.training import augment, run_files
from companion.training.drop_path import DropPath
from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.inputs import images
from coupling_lib.inputs.labelled_images import LabelledImages


@dataclass(frozen=True)
class VitRecipe:
    """All settings of a training run besides the images."""

    # The defaults are DeiT-Tiny's (Touvron and others, 2021; the arguments of its published code), which the paper
    # follows; its width, depth and heads are the paper's. Settings that the paper omits (patch, epochs, batch,
    # learning rate, augmentation) is DeiT's, except for the patch, which fits images of 32 pixels. DeiT's repeated
    # augmentation, colour jitter and moving average of the weights are left out. `side` and `pictures`, where they are
    # not 0, are the pixels to which a picture's side is averaged, and how many pictures are trained on, the first ones.

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
    side: int = 0
    pictures: int = 0

    @property
    def name(self) -> str:
        """Name of a run, by the settings that the grid varies."""
        return f"wd{self.weight_decay:g}-sd{self.drop_path:g}-seed{self.seed}"

    @property
    def peak(self) -> float:
        """Highest learning rate of a run."""
        return self.learning_rate * self.batch / 512


RECIPES = {
    "cifar10": VitRecipe(),
    # Small enough for one core: fewer and smaller patches and a fifth of the width. A digit is not its mirror
    # image, and eight pixels do not survive strong changes, so the augmentation is lighter than DeiT's.
    # The spread of weights is about 1 / sqrt(width); with DeiT's 0.02, made for 192, blocks this narrow hardly learn in
    # so few steps.
    "digits": VitRecipe(
        width=36, patch=2, epochs=14, batch=64, learning_rate=3.2e-2, warmup_epochs=3, layers=1, magnitude=4.0,
        erasing=0.1, mixup=0.2, cutmix=0.5, mixing=0.5, crop=0, flip=False, clip=1.0, spread_of_weights=0.15,
    ),
    # Photographs that one core learns in a minute: a quarter of the pixels, so that patches of 4 give as many tokens as
    # for the digits, and few pictures seen often, so that training and held-out accuracy may differ.
    "cifar10-small": VitRecipe(
        width=36, epochs=26, batch=64, learning_rate=3.2e-2, warmup_epochs=3, layers=0, erasing=0.0, mixing=0.0, crop=2,
        clip=1.0, spread_of_weights=0.15, side=16, pictures=3000,
    ),
}  # fmt: skip


def prepared(recipe: VitRecipe, data: LabelledImages) -> LabelledImages:
    """Return a data set with the number and size of pictures of a recipe."""
    data = shrunk(data, recipe.side) if recipe.side else data
    return first(data, recipe.pictures) if recipe.pictures else data


def shrunk(data: LabelledImages, side: int) -> LabelledImages:
    """Average the pixels of square images to a smaller side."""
    have = data.train.shape[-1]
    if side < 1 or have % side:
        raise ParameterError(f"side is {side}; images of {have} pixels are averaged to a side that divides {have}")

    def averaged(images: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(images.float(), have // side).round().to(torch.uint8)

    return replace(data, name=f"{data.name}-{side}px", train=averaged(data.train), test=averaged(data.test))


def first(data: LabelledImages, count: int) -> LabelledImages:
    """Select the first training images; the held-out ones stay."""
    if not 1 <= count <= len(data.train):
        raise ParameterError(f"pictures is {count}; {data.name} has {len(data.train)} to train on, take 1 to so many")
    name = f"{data.name}-{count}"
    return replace(data, name=name, train=data.train[:count], train_labels=data.train_labels[:count])


def configuration(recipe: VitRecipe, data: LabelledImages) -> ViTConfig:
    """Return the Hugging Face configuration of a recipe on a data set."""
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
    """Return the learning rate: linear warm-up, then a cosine."""
    warmup, total = recipe.warmup_epochs * per_epoch, recipe.epochs * per_epoch
    if step < warmup:
        return recipe.warmup_rate + (recipe.peak - recipe.warmup_rate) * step / warmup
    done = (step - warmup) / max(1, total - warmup)
    return recipe.final_rate + (recipe.peak - recipe.final_rate) * 0.5 * (1 + math.cos(math.pi * done))


def steps_per_epoch(recipe: VitRecipe, data: LabelledImages) -> int:
    """Return the number of full batches of an epoch; the images left over are seen in other epochs."""
    if recipe.batch > len(data.train):
        raise ParameterError(f"batch is {recipe.batch}; {data.name} has {len(data.train)} training images; take fewer")
    return len(data.train) // recipe.batch


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
    """Train a model by a recipe; a repeated call resumes."""
    run_files.claim(run, recipe, data=data.name)
    state, clock = run / "state.safetensors", run / "seconds.txt"
    if (run / "model" / "model.safetensors").exists():
        return run
    model = initialise(configuration(recipe, data), recipe.seed).train()
    optimiser = run_files.adamw(model, recipe.learning_rate, recipe.weight_decay)
    start = run_files.load_state(state, model, optimiser) if state.exists() else 0
    before = float(clock.read_text()) if start and clock.exists() else 0.0
    dropping, per_epoch = DropPath(model.vit.layers, recipe.drop_path), steps_per_epoch(recipe, data)
    began = saved = time.monotonic()
    progress = tqdm(range(start, recipe.epochs * per_epoch), recipe.name, unit="step", mininterval=5, disable=None)
    for step in progress:
        x, targets = batch(recipe, data, step)
        dropping.generator = _generator(recipe.seed, 3 * step + 2)
        loss = functional.cross_entropy(model(pixel_values=images.pixels_for(x, model.config)).logits, targets)
        run_files.descend(model, optimiser, loss, learning_rate(recipe, step, per_epoch), recipe.clip)
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        if time.monotonic() - saved > every_seconds:
            run_files.save_state(state, model, optimiser, step + 1)
            saved = time.monotonic()
            clock.write_text(f"{before + saved - began:.1f}")
    dropping.remove()
    clock.write_text(f"{before + time.monotonic() - began:.1f}")
    with paths.atomic_path(run / "model") as partial:
        model.eval().save_pretrained(partial)
    state.unlink(missing_ok=True)
    return run


@torch.no_grad()
def evaluate(model: ViTForImageClassification, x: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Return a model's accuracy and loss on labelled images, in evaluation mode and without augmentation."""
    model.eval()
    parts = [model(pixel_values=images.pixels_for(part / 255, model.config)).logits for part in x.split(256)]
    logits = torch.cat(parts).float()
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return float(accuracy), float(functional.cross_entropy(logits, labels))


def _generator(seed: int, number: int) -> torch.Generator:
    """Return the generator of a run's seed and a counter."""
    return torch.Generator().manual_seed((seed << 32) + number)
