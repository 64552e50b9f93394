"""Images in the format of a vision model: resized, with its channels, and normalised as in its training."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from coupling_lib.blocks.model_config import sides
from coupling_lib.blocks.record import images_config, passed
from coupling_lib.errors import ParameterError, check_whole, shown
from coupling_lib.inputs.labelled_images import read_dataset
from coupling_lib.models.model import Model
from coupling_lib.modes import exclusive

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
    """One image, as displayed and as a model's input."""

    name: str
    label: int
    shown: np.ndarray
    pixels: torch.Tensor


def load_images(source: str | Path, model: Any, n: int = 8, seed: int = 0) -> list[Picture]:
    """Load a few images in a vision model's input format.

    Args:
        source: a data set of `read_dataset`, whose held-out images are drawn from; a folder of pictures, taken in
            the order of their names; or `"noise"` for random images, when nothing else is at hand.
        model: a model from `load_model`, whose folder's image processor is used where it has one; or a configuration,
            with `image_size` and `num_channels`, or one whose `vision_config` has them. Without a processor the
            configuration's `image_mean` and `image_std` are used where it has them, else those of the family's
            training: ImageNet's for DeiT, CLIP's own, and one half for other families, of which a warning says so.
        n: how many.
        seed: seed of the choice among held-out images, and of noise.

    Returns:
        n pictures.

    Raises:
        ParameterError: if there are not so many, or the model reads no images.

    Example:
        >>> from transformers import ViTConfig
        >>> config = ViTConfig(image_size=8, num_channels=1, image_mean=[0.3], image_std=[0.4])
        >>> picture = load_images("digits", config, n=1)[0]
        >>> picture.shown.shape, tuple(picture.pixels.shape)
        ((8, 8), (1, 1, 8, 8))
    """
    processor = getattr(model, "processor", None)
    config = images_config(model.hf.config if hasattr(model, "hf") else model)
    if not hasattr(config, "image_size") or not hasattr(config, "num_channels"):
        raise ParameterError(f"model type {getattr(config, 'model_type', '?')!r} reads no images; take a ViT or DeiT")
    check_whole("images", n, 1)
    check_whole("seed", seed, 0, 2**63 - 1)
    if not isinstance(source, str | Path) or "\0" in str(source):
        raise ParameterError(f"pictures is {source!r}; it must be a data set, a folder of pictures, or 'noise'")
    if processor is None and getattr(config, "image_mean", None) is None and config.model_type not in _NORMALISED:
        message = "its folder has no preprocessor_config.json, and its configuration no image_mean"
        warnings.warn(f"pixels are normalised by one half, as {message}; add the one it was trained with", stacklevel=2)
    raw = _choose_images(source, config, n, seed)
    return [_picture(name, label, image, config, processor) for name, label, image in raw]


def _choose_images(source: str | Path, config: Any, n: int, seed: int) -> list[tuple[str, int, torch.Tensor]]:
    """Choose images, with their names and labels: `(c, h, w)`, from 0 to 1."""
    path = Path(source)
    if str(source) == "noise":
        generator = torch.Generator().manual_seed(seed)
        shape = (config.num_channels, *sides(config.image_size))
        return [("noise", -1, torch.rand(shape, generator=generator)) for _ in range(n)]
    if path.is_dir() and not (path / "data_batch_1").is_file():
        return _pictures(path, n)
    data = read_dataset(source)
    if n > len(data.test):
        raise ParameterError(f"images is {n}; {data.name} holds {len(data.test)} images out; take fewer")
    chosen = np.random.default_rng(seed).permutation(len(data.test))[:n].tolist()
    labels = data.test_labels.tolist()
    return [(f"{data.name} {data.classes[labels[i]]}", labels[i], data.test[i] / 255) for i in chosen]


def _picture(name: str, label: int, image: torch.Tensor, config: Any, processor: Any) -> Picture:
    """Convert one image to a model's input format, by its own processor where it has one."""
    if processor is None:
        pixels = pixels_for(image[None], config)
    else:
        if len(image) != config.num_channels:
            image = image.mean(dim=0, keepdim=True)
        in_bytes = (image * 255).round().to(torch.uint8).expand(config.num_channels, -1, -1)
        pixels = processor(images=[in_bytes.numpy()], return_tensors="pt", input_data_format="channels_first")
        pixels = pixels["pixel_values"]
        # A processor may crop a picture: display exactly what the model reads.
        mean, std = (torch.tensor(getattr(processor, key)).view(-1, 1, 1) for key in ("image_mean", "image_std"))
        image = (pixels[0] * std + mean).clamp(0, 1) if processor.do_normalize else pixels[0]
    shown = image.permute(1, 2, 0).numpy()
    return Picture(name, label, shown[..., 0] if shown.shape[-1] != 3 else shown, pixels)


def pixels_for(images: torch.Tensor, config: Any) -> torch.Tensor:
    """Convert images to a model's input format: size, channels, normalisation."""
    config = images_config(config)
    size = sides(config.image_size)
    if tuple(images.shape[-2:]) != size:
        images = functional.interpolate(images, size=size, mode="bilinear", antialias=True)
    if images.shape[1] != config.num_channels:
        images = images.mean(dim=1, keepdim=True).expand(-1, config.num_channels, -1, -1)
    mean, std = (torch.tensor(part).view(1, -1, 1, 1) for part in normalisation(config))
    return (images - mean) / std


def normalisation(config: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation with which a model's input is normalised."""
    given = [getattr(config, name, None) for name in ("image_mean", "image_std")]
    if given.count(None) == 1:
        raise ParameterError(f"image_mean is {given[0]} and image_std {given[1]}; expected both in the configuration")
    if None not in given:
        return tuple(given[0]), tuple(given[1])
    mean, std = _NORMALISED.get(getattr(config, "model_type", ""), (_HALVES, _HALVES))
    if config.num_channels == 3:
        return mean, std
    return (sum(mean) / 3,) * config.num_channels, (sum(std) / 3,) * config.num_channels


@exclusive
def first_states(model: Model, given: torch.Tensor) -> torch.Tensor:
    """Return the states `(1, n, d)` that a model's first block reads."""
    hf = model.hf
    return passed(hf, model.blocks, {hf.main_input_name: given.to(hf.device, hf.dtype)}, count=1)[0].input


def patch_grid(model: Model, pixels: torch.Tensor) -> tuple[int, int, int]:
    """Return the number of tokens before the patches of an image `(1, c, h, w)`, and the rows and columns of these."""
    # The state of a class, distillation or register token before the first block does not change with the image.
    config = images_config(model.hf.config)
    if model.hf.main_input_name != "pixel_values" or not hasattr(config, "patch_size"):
        raise ParameterError(f"{model.name} reads no images; give a vision transformer such as 'nano-vit'")
    rows, columns = (side // patch for side, patch in zip(pixels.shape[-2:], sides(config.patch_size), strict=True))
    first, second = (first_states(model, image) for image in (pixels, 1 - pixels.flip(-1)))
    patches = (first != second).any(-1)[0].nonzero().flatten().tolist()
    if patches != list(range(patches[0], patches[0] + rows * columns) if patches else ()):
        raise ParameterError(
            f"{len(patches)} of the {first.shape[1]} tokens of {model.name} answer to an image, which has {rows} x "
            f"{columns} patches; a model with one token for each patch, in order, is expected"
        )
    return patches[0], rows, columns


def patch_box(model: Model, token: int, picture: Picture) -> tuple[int, int, int, int] | None:
    """Return the box of a token's patch in a picture: x, y, width and height; None for a token without a patch."""
    before, rows, columns = patch_grid(model, picture.pixels)
    number = token - before if token >= 0 else rows * columns + token
    if not 0 <= number < rows * columns:
        return None
    row, column = divmod(number, columns)
    high, wide = picture.shown.shape[0] // rows, picture.shown.shape[1] // columns
    return column * wide, row * high, wide, high


def _pictures(folder: Path, n: int) -> list[tuple[str, int, torch.Tensor]]:
    """Read the first n pictures of a folder, in colour and upright, transparent parts in the colour under them."""
    from PIL import Image, ImageOps

    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _PICTURES)
    if len(files) < n:
        raise ParameterError(f"the folder {str(folder)!r} holds {len(files)} pictures; {n} were asked for")
    found = []
    for file in files[:n]:
        try:
            image = ImageOps.exif_transpose(Image.open(file))
            if image.mode.startswith("I"):  # 16 bits, which a conversion would clip at 255
                image = Image.fromarray((np.asarray(image, dtype=np.int64).clip(0, 65535) // 257).astype(np.uint8))
            array = np.asarray(image.convert("RGB"), dtype=np.float32) / 255
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            why = f"the picture {str(file)!r} cannot be read ({shown(error)})"
            raise ParameterError(f"{why}; take it out, or fix it") from None
        found.append((file.name, -1, torch.from_numpy(array).permute(2, 0, 1)))
    return found
