"""Images for vision models: two data sets of labelled images, folders of pictures, and a model's own format.

`read_dataset` gives a labelled data set split into training and held-out images: `"digits"` ships with
scikit-learn and needs no network; CIFAR-10 is read from a local copy. `load_images` gives a few held-out images, or
pictures of a folder, as a model reads them: resized, with its channels, and normalised as in its training.
"""

from __future__ import annotations

import io
import itertools
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from coupling_lib.errors import ParameterError

HELD_OUT = 0.4
"""Share of the digits that is held out for testing."""

SPLIT_SEED = 0
"""Seed of the split of the digits; the same for every training, so that all models are tested on the same images."""

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_HALVES = (0.5, 0.5, 0.5)
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """A data set of labelled images.

    Args:
        name: "digits" or "cifar10".
        train: images `(n, c, h, w)`, uint8.
        train_labels: class numbers `(n,)`.
        test: held-out images, in the same form.
        test_labels: their class numbers.
        classes: names of the classes.
    """

    name: str
    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor
    classes: tuple[str, ...]

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Give mean and standard deviation of each channel over the training images, values from 0 to 1.

        Returns:
            two tuples with one number per channel.
        """
        pixels = self.train.double() / 255
        mean, std = pixels.mean(dim=(0, 2, 3)), pixels.std(dim=(0, 2, 3))
        return tuple(round(float(v), 4) for v in mean), tuple(round(float(v), 4) for v in std)


def read_dataset(source: str | Path) -> LabelledImages:
    """Read a labelled data set.

    Args:
        source: `"digits"`; or CIFAR-10: its folder of Python batches (`cifar-10-batches-py`), an `.npz` with JPEG
            bytes (arrays `train_jpeg`, `train_offsets`, `train_labels`, the same for `test`, `class_names`), or
            `"cifar10"` for the hub, which needs a network and the package `datasets`.

    Returns:
        the data set.

    Raises:
        ParameterError: if there is no such data set.
    """
    path = Path(source)
    if str(source) == "digits":
        return _digits()
    if path.is_dir() and (path / "data_batch_1").is_file():
        return _cifar_batches(path)
    if path.is_file() and path.suffix == ".npz":
        return _cifar_jpeg(path)
    if str(source) == "cifar10":
        return _cifar_hub()
    raise ParameterError(
        f"data is {str(source)!r}; it must be 'digits', 'cifar10', a folder with CIFAR-10's data_batch_1 to "
        "data_batch_5 and test_batch, or an .npz of CIFAR-10"
    )


@dataclass(frozen=True, eq=False)
class Picture:
    """One image, as it is shown and as a model reads it.

    Args:
        name: what it is, for a caption.
        label: number of its class; -1 where it has none.
        shown: grey or colour values from 0 to 1, `(h, w)` or `(h, w, 3)`.
        pixels: the model's input `(1, c, h, w)`, normalised.
    """

    name: str
    label: int
    shown: np.ndarray
    pixels: torch.Tensor


def load_images(source: str | Path, config: Any, n: int = 8, seed: int = 0) -> list[Picture]:
    """Give a few images as a vision model reads them.

    Args:
        source: a data set of `read_dataset`, whose held-out images are drawn from; a folder of pictures, taken in
            the order of their names; or `"noise"` for random images, when nothing else is at hand.
        config: the model's configuration, with `image_size` and `num_channels`; its `image_mean` and `image_std`
            are used where it has them, else ImageNet's for DeiT and one half for other families.
        n: how many.
        seed: seed of the choice among held-out images, and of noise.

    Returns:
        n pictures.

    Raises:
        ParameterError: if there are not so many, or the model reads no images.
    """
    if not hasattr(config, "image_size") or not hasattr(config, "num_channels"):
        raise ParameterError(f"model type {getattr(config, 'model_type', '?')!r} reads no images; take a ViT or DeiT")
    if n < 1:
        raise ParameterError(f"images is {n!r}; it must be a whole number from 1")
    path = Path(source)
    if str(source) == "noise":
        generator = torch.Generator().manual_seed(seed)
        size = _size(config)
        raw = [("noise", -1, torch.rand(config.num_channels, *size, generator=generator)) for _ in range(n)]
    elif path.is_dir() and not (path / "data_batch_1").is_file():
        raw = _pictures(path, n)
    else:
        data = read_dataset(source)
        if n > len(data.test):
            raise ParameterError(f"images is {n}; {data.name} holds {len(data.test)} images out; take fewer")
        order = np.random.default_rng(seed).permutation(len(data.test))[:n]
        raw = [
            (f"{data.name} {data.classes[int(data.test_labels[i])]}", int(data.test_labels[i]), data.test[i] / 255)
            for i in map(int, order)
        ]
    return [Picture(name, label, _shown(image), pixels_for(image[None], config)) for name, label, image in raw]


def pixels_for(images: torch.Tensor, config: Any) -> torch.Tensor:
    """Bring images into a model's format: its size, its channels, normalised.

    Args:
        images: values from 0 to 1, `(n, c, h, w)`.
        config: the model's configuration.

    Returns:
        the model's input `(n, channels, height, width)`.
    """
    size = _size(config)
    if tuple(images.shape[-2:]) != size:
        images = functional.interpolate(images, size=size, mode="bilinear", antialias=True)
    channels = config.num_channels
    if images.shape[1] != channels:
        grey = images.mean(dim=1, keepdim=True)
        images = grey.expand(-1, channels, -1, -1)
    mean, std = normalisation(config)
    return (images - torch.tensor(mean).view(1, -1, 1, 1)) / torch.tensor(std).view(1, -1, 1, 1)


def normalisation(config: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give the mean and standard deviation that a model's input is normalised with.

    Args:
        config: the model's configuration.

    Returns:
        one number per channel each.
    """
    if getattr(config, "image_mean", None) is not None:
        return tuple(config.image_mean), tuple(config.image_std)
    mean, std = _IMAGENET if getattr(config, "model_type", "") == "deit" else (_HALVES, _HALVES)
    if config.num_channels == 3:
        return mean, std
    return (sum(mean) / 3,) * config.num_channels, (sum(std) / 3,) * config.num_channels


def patch_box(config: Any, token: int, shape: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """Say which part of an image a token stands for.

    Args:
        config: the model's configuration.
        token: the token's position; from the end if negative.
        shape: height and width of the image as it is shown, in pixels.

    Returns:
        left, top, width and height in those pixels; None for the class token and others that are no patches.
    """
    size, patch = _size(config), config.patch_size
    patch = (patch, patch) if isinstance(patch, int) else tuple(patch)
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    # DeiT has a distillation token behind the class token.
    first = 2 if getattr(config, "model_type", "") == "deit" else 1
    number = token - first if token >= 0 else rows * columns + token
    if not 0 <= number < rows * columns:
        return None
    row, column = divmod(number, columns)
    high, wide = shape[0] // rows, shape[1] // columns
    return column * wide, row * high, wide, high


def _size(config: Any) -> tuple[int, int]:
    size = config.image_size
    return (size, size) if isinstance(size, int) else tuple(size)


def _shown(image: torch.Tensor) -> np.ndarray:
    array = image.permute(1, 2, 0).numpy()
    return array[..., 0] if array.shape[-1] != 3 else array


def _digits() -> LabelledImages:
    """The digits of scikit-learn, grey values 0 to 16, shuffled once and split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits.target))
    # 16 grey levels above 0 become bytes.
    images = torch.from_numpy(np.round(digits.images * (255 / 16)).astype(np.uint8))[order].unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))[order]
    held = round(HELD_OUT * len(order))
    return LabelledImages(
        "digits", images[held:], labels[held:], images[:held], labels[:held], tuple(map(str, range(10)))
    )


def _cifar_batches(folder: Path) -> LabelledImages:
    """CIFAR-10 as its authors publish it: pickled batches, of which only plain arrays are accepted."""
    parts = [_Plain((folder / f"data_batch_{i}").open("rb")).load() for i in range(1, 6)]
    held = _Plain((folder / "test_batch").open("rb")).load()
    meta = folder / "batches.meta"
    names = _Plain(meta.open("rb")).load()[b"label_names"] if meta.is_file() else [str(i).encode() for i in range(10)]
    return LabelledImages(
        "cifar10",
        torch.from_numpy(np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)),
        torch.tensor([label for part in parts for label in part[b"labels"]]),
        torch.from_numpy(held[b"data"].reshape(-1, 3, 32, 32).copy()),
        torch.tensor(held[b"labels"]),
        tuple(name.decode() for name in names),
    )


class _Plain(pickle.Unpickler):
    """Reads pickles that hold numpy arrays, lists and texts, and refuses everything that could run code."""

    def __init__(self, stream: Any):
        super().__init__(stream, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        allowed = {("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}
        if (module.rpartition(".")[2], name) not in allowed or not module.startswith("numpy"):
            raise ParameterError(f"a CIFAR-10 batch asks for {module}.{name}; fetch the files anew from their authors")
        return super().find_class(module, name)


def _cifar_jpeg(file: Path) -> LabelledImages:
    """CIFAR-10 as JPEG bytes in one file."""
    from PIL import Image

    with np.load(file) as arrays:

        def split(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            stream, offsets = arrays[f"{name}_jpeg"].tobytes(), arrays[f"{name}_offsets"]
            images = [
                np.asarray(Image.open(io.BytesIO(stream[start:end])).convert("RGB"))
                for start, end in itertools.pairwise(offsets)
            ]
            labels = torch.from_numpy(arrays[f"{name}_labels"].astype(np.int64))
            return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), labels

        names = tuple(str(name) for name in arrays["class_names"])
        return LabelledImages("cifar10", *split("train"), *split("test"), names)


def _cifar_hub() -> LabelledImages:
    """CIFAR-10 from the Hugging Face hub."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise ParameterError(
            "data is 'cifar10' and the package datasets is not installed; pip install datasets, or give a local folder"
        ) from None
    both = load_dataset("uoft-cs/cifar10")

    def split(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = np.stack([np.asarray(image.convert("RGB")) for image in both[name]["img"]])
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(both[name]["label"])

    return LabelledImages("cifar10", *split("train"), *split("test"), tuple(both["train"].features["label"].names))


def _pictures(folder: Path, n: int) -> list[tuple[str, int, torch.Tensor]]:
    """The first n pictures of a folder, in colour."""
    from PIL import Image

    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in _PICTURES)
    if len(files) < n:
        raise ParameterError(f"the folder {str(folder)!r} holds {len(files)} pictures; {n} were asked for")
    arrays = [np.asarray(Image.open(file).convert("RGB"), dtype=np.float32) / 255 for file in files[:n]]
    return [(file.name, -1, torch.from_numpy(a).permute(2, 0, 1)) for file, a in zip(files[:n], arrays, strict=True)]
