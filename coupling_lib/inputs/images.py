"""Images in the format of a vision model: resized, with its channels, and normalised as in its training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from coupling_lib.blocks.record import images_config, sides
from coupling_lib.errors import ParameterError, check_whole, shown
from coupling_lib.inputs.labelled_images import read_dataset

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_HALVES = (0.5, 0.5, 0.5)
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# By model type: mean and standard deviation of the pixels of its training.
_NORMALISED = {
    "deit": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip_vision_model": _CLIP,
    "metaclip_2_vision_model": _CLIP,
}


@dataclass(frozen=True, eq=False)
class Picture:
    """One image, as it is shown and as a model reads it."""

    name: str
    label: int
    shown: np.ndarray
    pixels: torch.Tensor


def load_images(source: str | Path, config: Any, n: int = 8, seed: int = 0) -> list[Picture]:
    """Give a few images as a vision model reads them.

    Args:
        source: a data set of `read_dataset`, whose held-out images are drawn from; a folder of pictures, taken in
            the order of their names; or `"noise"` for random images, when nothing else is at hand.
        config: the model's configuration, with `image_size` and `num_channels`, or one whose `vision_config` has
            them; its `image_mean` and `image_std` are used where it has them, else those of the family's training:
            ImageNet's for DeiT, CLIP's own, and one half for other families.
        n: how many.
        seed: seed of the choice among held-out images, and of noise.

    Returns:
        n pictures.

    Raises:
        ParameterError: if there are not so many, or the model reads no images.

    Example:
        >>> from transformers import ViTConfig
        >>> picture = load_images("digits", ViTConfig(image_size=8, num_channels=1), n=1)[0]
        >>> picture.shown.shape, tuple(picture.pixels.shape)
        ((8, 8), (1, 1, 8, 8))
    """
    config = images_config(config)
    if not hasattr(config, "image_size") or not hasattr(config, "num_channels"):
        raise ParameterError(f"model type {getattr(config, 'model_type', '?')!r} reads no images; take a ViT or DeiT")
    check_whole("images", n, 1)
    check_whole("seed", seed, 0, 2**63 - 1)
    if not isinstance(source, str | Path) or "\0" in str(source):
        raise ParameterError(f"pictures is {source!r}; it must be a data set, a folder of pictures, or 'noise'")
    path = Path(source)
    if str(source) == "noise":
        generator = torch.Generator().manual_seed(seed)
        shape = (config.num_channels, *sides(config.image_size))
        raw = [("noise", -1, torch.rand(shape, generator=generator)) for _ in range(n)]
    elif path.is_dir() and not (path / "data_batch_1").is_file():
        raw = _pictures(path, n)
    else:
        data = read_dataset(source)
        if n > len(data.test):
            raise ParameterError(f"images is {n}; {data.name} holds {len(data.test)} images out; take fewer")
        chosen = np.random.default_rng(seed).permutation(len(data.test))[:n].tolist()
        labels = data.test_labels.tolist()
        raw = [(f"{data.name} {data.classes[labels[i]]}", labels[i], data.test[i] / 255) for i in chosen]
    pictures = []
    for name, label, image in raw:
        shown = image.permute(1, 2, 0).numpy()
        shown = shown[..., 0] if shown.shape[-1] != 3 else shown
        pictures.append(Picture(name, label, shown, pixels_for(image[None], config)))
    return pictures


def pixels_for(images: torch.Tensor, config: Any) -> torch.Tensor:
    """Bring images into a model's format: its size, its channels, normalised."""
    config = images_config(config)
    size = sides(config.image_size)
    if tuple(images.shape[-2:]) != size:
        images = functional.interpolate(images, size=size, mode="bilinear", antialias=True)
    if images.shape[1] != config.num_channels:
        images = images.mean(dim=1, keepdim=True).expand(-1, config.num_channels, -1, -1)
    mean, std = (torch.tensor(part).view(1, -1, 1, 1) for part in normalisation(config))
    return (images - mean) / std


def normalisation(config: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give the mean and standard deviation that a model's input is normalised with."""
    if getattr(config, "image_mean", None) is not None:
        return tuple(config.image_mean), tuple(config.image_std)
    mean, std = _NORMALISED.get(getattr(config, "model_type", ""), (_HALVES, _HALVES))
    if config.num_channels == 3:
        return mean, std
    return (sum(mean) / 3,) * config.num_channels, (sum(std) / 3,) * config.num_channels


def patch_box(config: Any, token: int, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Say which part of an image a token stands for."""
    config = images_config(config)
    size, patch = sides(config.image_size), sides(config.patch_size)
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    # DeiT has a distillation token behind the class token.
    first = 2 if getattr(config, "model_type", "") == "deit" else 1
    number = token - first if token >= 0 else rows * columns + token
    if not 0 <= number < rows * columns:
        return None
    row, column = divmod(number, columns)
    high, wide = shape[0] // rows, shape[1] // columns
    return column * wide, row * high, wide, high


def _pictures(folder: Path, n: int) -> list[tuple[str, int, torch.Tensor]]:
    """The first n pictures of a folder, in colour."""
    from PIL import Image

    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _PICTURES)
    if len(files) < n:
        raise ParameterError(f"the folder {str(folder)!r} holds {len(files)} pictures; {n} were asked for")
    found = []
    for file in files[:n]:
        try:
            array = np.asarray(Image.open(file).convert("RGB"), dtype=np.float32) / 255
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            said = shown(error)
            raise ParameterError(f"the picture {str(file)!r} cannot be read ({said}); take it out, or fix it") from None
        found.append((file.name, -1, torch.from_numpy(array).permute(2, 0, 1)))
    return found
