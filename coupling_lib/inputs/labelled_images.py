"""Labelled images, split into training and held-out ones: scikit-learn's digits, and CIFAR-10."""

import io
import itertools
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coupling_lib.errors import ParameterError, shown

HELD_OUT = 0.4
"""Share of the digits that is held out for testing."""


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """A data set of labelled images."""

    name: str
    train: torch.Tensor
    train_labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor
    classes: tuple[str, ...]

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of each channel over the training images, values from 0 to 1."""
        pixels = self.train.double() / 255
        mean, std = pixels.mean(dim=(0, 2, 3)), pixels.std(dim=(0, 2, 3))
        return tuple(round(float(v), 4) for v in mean), tuple(round(float(v), 4) for v in std)


def read_dataset(source: str | Path) -> LabelledImages:
    """Read a labelled data set."""
    if not isinstance(source, str | Path) or "\0" in str(source):
        raise ParameterError(f"data is {shown(source)}; it must be the name or the path of a data set")
    path = Path(source)
    if str(source) == "digits":
        return _digits()
    if (path / "data_batch_1").is_file():
        return _cifar_batches(path)
    if path.is_file() and path.suffix == ".npz":
        return _cifar_jpeg(path)
    if str(source) == "cifar10":
        return _cifar_hub()
    raise ParameterError(
        f"data is {str(source)!r}; it must be 'digits', 'cifar10', a folder with CIFAR-10's data_batch_1 to "
        "data_batch_5 and test_batch, or an .npz of CIFAR-10"
    )


def _digits() -> LabelledImages:
    """Load the digits of scikit-learn, grey values 0 to 16, shuffled once and split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    # One seed for all trainings, so that all models are tested on the same images.
    order = np.random.default_rng(0).permutation(len(digits.target))
    # 16 grey levels above 0 are scaled to bytes.
    images = torch.from_numpy(np.round(digits.images * (255 / 16)).astype(np.uint8))[order].unsqueeze(1)
    labels, held = torch.from_numpy(digits.target.astype(np.int64))[order], round(HELD_OUT * len(order))
    names = tuple(map(str, range(10)))
    return LabelledImages("digits", images[held:], labels[held:], images[:held], labels[:held], names)


def _cifar_batches(folder: Path) -> LabelledImages:
    """Load CIFAR-10 as its authors publish it: pickled batches, of which only plain arrays are accepted."""

    def read(name: str) -> Any:
        with (folder / name).open("rb") as stream:
            return _PlainUnpickler(stream, encoding="bytes").load()

    def split(*names: str) -> tuple[torch.Tensor, torch.Tensor]:
        parts = list(map(read, names))
        pixels = np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)
        return torch.from_numpy(pixels), torch.tensor([label for part in parts for label in part[b"labels"]])

    named = (folder / "batches.meta").is_file()
    names = read("batches.meta")[b"label_names"] if named else [str(i).encode() for i in range(10)]
    train, test = split(*(f"data_batch_{i}" for i in range(1, 6))), split("test_batch")
    return LabelledImages("cifar10", *train, *test, tuple(name.decode() for name in names))


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of numpy arrays, lists and texts that refuses everything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}
        if (module.rpartition(".")[2], name) not in allowed or not module.startswith("numpy"):
            raise ParameterError(f"a CIFAR-10 batch asks for {module}.{name}; fetch the files anew from their authors")
        return super().find_class(module, name)


def _cifar_jpeg(file: Path) -> LabelledImages:
    """Load CIFAR-10 from JPEG bytes in one file."""
    from PIL import Image

    with np.load(file) as arrays:

        def split(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            stream, ends = arrays[f"{name}_jpeg"].tobytes(), itertools.pairwise(arrays[f"{name}_offsets"])
            pictures = (Image.open(io.BytesIO(stream[start:end])) for start, end in ends)
            return _in_colour(pictures, arrays[f"{name}_labels"])

        names = tuple(str(name) for name in arrays["class_names"])
        return LabelledImages("cifar10", *split("train"), *split("test"), names)


def _cifar_hub() -> LabelledImages:
    """Load CIFAR-10 from the Hugging Face hub."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise ParameterError(
            "data is 'cifar10' and the package datasets is not installed; pip install datasets, or give a local folder"
        ) from None
    both = load_dataset("uoft-cs/cifar10")
    train, test = (_in_colour(both[name]["img"], both[name]["label"]) for name in ("train", "test"))
    return LabelledImages("cifar10", *train, *test, tuple(both["train"].features["label"].names))


def _in_colour(pictures: Iterable[Any], labels: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack pictures, channels first, with their labels."""
    arrays = np.stack([np.asarray(picture.convert("RGB")) for picture in pictures])
    return torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous(), torch.tensor(np.asarray(labels, dtype=np.int64))
