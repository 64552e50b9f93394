"""Images: data sets without a network, and pictures in a model's own format."""

from __future__ import annotations

import io
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from coupling_lib import images
from coupling_lib.errors import ParameterError

SMALL = SimpleNamespace(model_type="vit", image_size=8, patch_size=2, num_channels=1, image_mean=[0.3], image_std=[0.4])
LARGE = SimpleNamespace(model_type="deit", image_size=[32, 32], patch_size=16, num_channels=3)


def test_the_digits_are_split_once_for_all_and_no_image_is_lost():
    data, again = images.read_dataset("digits"), images.read_dataset("digits")
    assert torch.equal(data.test, again.test) and torch.equal(data.train_labels, again.train_labels)
    ours = torch.cat([data.train, data.test]).flatten(1).numpy()
    theirs = np.round(load_digits().images * 255 / 16).astype(np.uint8).reshape(-1, 64)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))
    assert len(data.test) == round(images.HELD_OUT * len(ours)) and set(data.test_labels.tolist()) == set(range(10))


def test_statistics_normalise_the_training_images():
    data = images.read_dataset("digits")
    (mean,), (std,) = data.statistics()
    x = (data.train.float() / 255 - mean) / std
    assert abs(float(x.mean())) < 1e-3 and abs(float(x.std()) - 1) < 1e-3


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)


def test_cifar_is_read_from_its_python_batches(tmp_path, pixels):
    for i in range(1, 6):
        batch = {b"data": pixels[2 * i - 2 : 2 * i].reshape(2, -1), b"labels": [i, 0]}
        (tmp_path / f"data_batch_{i}").write_bytes(pickle.dumps(batch))
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": pixels[10:].reshape(2, -1), b"labels": [7, 8]}))
    data = images.read_dataset(tmp_path)
    assert torch.equal(data.train, torch.from_numpy(pixels[:10])) and data.test_labels.tolist() == [7, 8]
    assert data.train_labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]


def test_a_batch_that_would_run_code_is_refused(tmp_path):
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": io.BytesIO, b"labels": []}))
    with pytest.raises(ParameterError, match=r"asks for _io\.BytesIO"):
        images.read_dataset(tmp_path)


def test_cifar_is_read_from_jpeg_bytes(tmp_path, pixels):
    smooth = np.broadcast_to(pixels[:, :, :1, :1], (12, 3, 32, 32))
    streams = []
    for image in smooth:
        buffer = io.BytesIO()
        Image.fromarray(image.transpose(1, 2, 0).copy()).save(buffer, "JPEG", quality=95)
        streams.append(buffer.getvalue())
    arrays = {"class_names": np.array(["a", "b"])}
    for split, chosen in (("train", streams[:8]), ("test", streams[8:])):
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(chosen), dtype=np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, chosen)])
        arrays[f"{split}_labels"] = np.arange(len(chosen)) % 2
    np.savez(tmp_path / "cifar.npz", **arrays)
    data = images.read_dataset(tmp_path / "cifar.npz")
    assert (
        data.train.shape == (8, 3, 32, 32) and data.classes == ("a", "b") and data.test_labels.tolist() == [0, 1, 0, 1]
    )
    assert np.abs(data.train.numpy().astype(int) - smooth[:8]).max() < 12


def test_images_come_held_out_normalised_and_by_seed():
    first, again, other = (images.load_images("digits", SMALL, 5, seed) for seed in (0, 0, 1))
    held_out = {tuple(image.flatten().tolist()) for image in images.read_dataset("digits").test}
    for picture in first:
        raw = picture.pixels * 0.4 + 0.3
        assert tuple((raw * 255).round().to(torch.uint8).flatten().tolist()) in held_out
        assert picture.pixels.shape == (1, 1, 8, 8) and picture.shown.shape == (8, 8)
        assert picture.name == f"digits {picture.label}"
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a.pixels, b.pixels) for a, b in zip(first, other, strict=True))


def test_grey_images_are_enlarged_and_coloured_for_a_model_that_reads_colour():
    (picture,) = images.load_images("digits", LARGE, 1)
    assert picture.pixels.shape == (1, 3, 32, 32)
    mean, std = images.normalisation(LARGE)
    raw = picture.pixels * torch.tensor(std).view(1, 3, 1, 1) + torch.tensor(mean).view(1, 3, 1, 1)
    assert torch.allclose(raw[:, 0], raw[:, 1], atol=1e-6) and raw.min() > -0.01 and raw.max() < 1.01


def test_a_folder_of_pictures_is_read_by_name_and_noise_is_named(tmp_path):
    for name in ("b.png", "a.png"):
        Image.new("RGB", (10, 6), (255, 0, 0) if name == "a.png" else (0, 0, 255)).save(tmp_path / name)
    first, second = images.load_images(tmp_path, LARGE, 2)
    assert (first.name, second.name) == ("a.png", "b.png") and first.shown[0, 0].tolist() == [1, 0, 0]
    assert first.pixels.shape == (1, 3, 32, 32)
    assert images.load_images("noise", SMALL, 1)[0].name == "noise"


@pytest.mark.parametrize(
    ("token", "box"),
    [(0, None), (1, (0, 0, 2, 2)), (6, (2, 2, 2, 2)), (16, (6, 6, 2, 2)), (-1, (6, 6, 2, 2)), (17, None)],
)
def test_a_token_stands_for_its_patch(token, box):
    assert images.patch_box(SMALL, token, (8, 8)) == box


@pytest.mark.parametrize(
    ("source", "config", "n", "message"),
    [
        ("letters", SMALL, 1, "data is 'letters'; it must be 'digits'"),
        ("digits", SMALL, 10_000, "images is 10000; digits holds 719 images out"),
        ("digits", SMALL, 0, "images is 0; it must be a whole number from 1"),
        ("digits", SimpleNamespace(model_type="llama"), 1, "model type 'llama' reads no images"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(source, config, n, message):
    with pytest.raises(ParameterError, match=message):
        images.load_images(source, config, n)
