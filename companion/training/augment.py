r"""Augmentation of image batches in plain PyTorch: RandAugment's idea, random erasing, mixup and cutmix.

Images are batches `(n, c, h, w)` of floats between 0 and 1, and every function draws from the generator that it
receives, so that a training step is a function of its seed alone. The operations are a small selection of those of
RandAugment (Cubuk and others, 2020): geometric ones as one affine resampling, and changes of brightness, contrast
and tone. Magnitudes run from 0 to 10 as there.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
TONAL = ("brightness", "contrast", "solarize", "posterize")
OPERATIONS = (*GEOMETRIC, *TONAL)

# Full magnitude, 10: radians, shear factors, shares of the image's side, shares of brightness and contrast.
_FULL = {"rotate": math.radians(30), "shear_x": 0.3, "shear_y": 0.3, "translate_x": 0.25, "translate_y": 0.25}
_FULL_TONE = 0.9


def rand_augment(
    images: Tensor, generator: torch.Generator, layers: int = 2, magnitude: float = 9.0, spread: float = 0.5
) -> Tensor:
    """Apply a few operations to each image, drawn independently for each."""
    for _ in range(layers):
        n = len(images)
        chosen = torch.randint(len(OPERATIONS), (n,), generator=generator)
        strength = (magnitude + spread * torch.randn(n, generator=generator)).clamp(0, 10) / 10
        signed = strength * torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0)
        strength, signed, chosen = (part.to(images.device) for part in (strength, signed, chosen))
        images = _change_tone(_transform(images, chosen, signed), chosen, strength, signed)
    return images


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images left to right."""
    flip = (torch.rand(len(images), generator=generator) < 0.5).to(images.device)
    return torch.where(flip[:, None, None, None], images.flip(-1), images)


def random_crop(images: Tensor, generator: torch.Generator, padding: int) -> Tensor:
    """Pad each image with black and crop a window of its own size."""
    if padding == 0:
        return images
    n, _, h, w = images.shape
    padded = functional.pad(images, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, n), generator=generator).to(images.device)
    rows = top[:, None] + torch.arange(h, device=images.device)
    columns = left[:, None] + torch.arange(w, device=images.device)
    index = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_erasing(images: Tensor, generator: torch.Generator, probability: float = 0.25) -> Tensor:
    """Replace a rectangle of some images by noise."""
    # The rectangle covers 2 to 33 % of the image with sides in a ratio between 0.3 and 3.3, as in DeiT.
    n, _, h, w = images.shape
    erased = torch.rand(n, generator=generator) < probability
    area = torch.empty(n).uniform_(0.02, 1 / 3, generator=generator)
    ratio = torch.empty(n).uniform_(math.log(0.3), math.log(3.3), generator=generator).exp()
    mask = _rectangles((area * ratio).sqrt(), (area / ratio).sqrt(), h, w, generator) & erased[:, None, None]
    noise = torch.rand(images.shape, generator=generator)
    return torch.where(mask[:, None].to(images.device), noise.to(images), images)


def mix(
    images: Tensor, targets: Tensor, generator: torch.Generator, mixup: float = 0.8, cutmix: float = 1.0,
    probability: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mix a batch with itself in reverse order, by mixup or by cutmix, with equal probability if both are on."""
    # One share $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$ serves the batch. Mixup adds the images in the proportion
    # $\lambda : 1-\lambda$; cutmix pastes a rectangle whose area is $1-\lambda$, and the targets take the share that
    # was really pasted.
    draw, which = torch.rand(2, generator=generator).tolist()
    cut = cutmix > 0 and (mixup <= 0 or which < 0.5)
    alpha = cutmix if cut else mixup
    if alpha <= 0 or draw >= probability:
        return images, targets
    # A draw from Beta(alpha, alpha) is a quotient of gamma variables.
    first, second = torch._standard_gamma(torch.full((2,), alpha), generator=generator).tolist()
    share = first / (first + second)
    other, other_targets = images.flip(0), targets.flip(0)
    if cut:
        h, w = images.shape[-2:]
        side = torch.tensor([math.sqrt(1 - share)])
        mask = _rectangles(side, side, h, w, generator)[0]
        share = 1 - mask.float().mean().item()
        images = torch.where(mask.to(images.device), other, images)
    else:
        images = share * images + (1 - share) * other
    return images, share * targets + (1 - share) * other_targets


def smooth_targets(labels: Tensor, classes: int, smoothing: float = 0.1) -> Tensor:
    """Convert labels to class probabilities, with a share spread evenly over all classes."""
    return functional.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes


def _transform(images: Tensor, chosen: Tensor, signed: Tensor) -> Tensor:
    """Rotate, shear or shift the images with such an operation; edges are filled with black."""

    def amount(name: str) -> Tensor:
        return torch.where(chosen == OPERATIONS.index(name), signed * _FULL[name], torch.zeros_like(signed))

    angle = amount("rotate")
    cos, sin = angle.cos(), angle.sin()
    # In units of half a side, as `affine_grid` counts.
    rows = [
        torch.stack([cos, -sin + amount("shear_x"), 2 * amount("translate_x")], dim=1),
        torch.stack([sin + amount("shear_y"), cos, 2 * amount("translate_y")], dim=1),
    ]
    moved = chosen < len(GEOMETRIC)
    grid = functional.affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
    resampled = functional.grid_sample(images, grid, align_corners=False)
    return torch.where(moved[:, None, None, None], resampled, images)


def _change_tone(images: Tensor, chosen: Tensor, strength: Tensor, signed: Tensor) -> Tensor:
    """Change brightness, contrast or tone of the images with such an operation."""
    strength, factor = strength[:, None, None, None], (1 + _FULL_TONE * signed)[:, None, None, None]
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    levels = 2.0 ** (8 - (4 * strength).round())
    changed = {
        "brightness": images * factor,
        "contrast": mean + (images - mean) * factor,
        "solarize": torch.where(images >= 1 - strength, 1 - images, images),
        "posterize": (images * 255 / 256 * levels).floor() / (levels - 1),
    }
    for name, result in changed.items():
        images = torch.where((chosen == OPERATIONS.index(name))[:, None, None, None], result, images)
    return images.clamp(0, 1)


def _rectangles(height: Tensor, width: Tensor, h: int, w: int, generator: torch.Generator) -> Tensor:
    """Draw masks `(n, h, w)` of rectangles at random places; sides as shares of the image's."""
    centre_y, centre_x = torch.rand(2, len(height), generator=generator)
    y, x = (torch.arange(h) + 0.5) / h, (torch.arange(w) + 0.5) / w
    rows = (y - centre_y[:, None]).abs() <= height[:, None] / 2
    columns = (x - centre_x[:, None]).abs() <= width[:, None] / 2
    return rows[:, :, None] & columns[:, None, :]
