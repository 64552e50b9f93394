"""Labelled images: nothing is lost, nothing runs, every form of CIFAR-10 gives the same arrays."""

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from sklearn.datasets import load_digits

from coupling_lib.errors import ParameterError
from coupling_lib.inputs.labelled_images import HELD_OUT, read_dataset


def test_digits_are_split_once_for_all_and_normalised():
    data, again = read_dataset("digits"), read_dataset("digits")
    assert torch.equal(data.test, again.test) and torch.equal(data.train_labels, again.train_labels)
    ours = torch.cat([data.train, data.test]).flatten(1).numpy()
    theirs = np.round(load_digits().images * 255 / 16).astype(np.uint8).reshape(-1, 64)
    assert sorted(map(bytes, ours)) == sorted(map(bytes, theirs))
    assert len(data.test) == round(HELD_OUT * len(ours)) and set(data.test_labels.tolist()) == set(range(10))
    (mean,), (std,) = data.statistics()
    x = (data.train.float() / 255 - mean) / std
    assert (float(x.mean()), float(x.std())) == pytest.approx((0, 1), abs=1e-3)


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def test_cifar_batches_are_read_without_running_code(tmp_path):
    for number, name in enumerate(BATCHES):
        batch = {b"data": PIXELS[2 * number : 2 * number + 2].reshape(2, -1), b"labels": [number, 9]}
        (tmp_path / name).write_bytes(pickle.dumps(batch))
    data = read_dataset(tmp_path)
    assert torch.equal(torch.cat([data.train, data.test]), torch.from_numpy(PIXELS)) and len(data.train) == 10
    assert data.train_labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9] and data.test_labels.tolist() == [5, 9]
    for name in BATCHES:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": io.BytesIO, b"labels": []}))
    refused(ParameterError, r"asks for _io\.BytesIO", read_dataset, tmp_path)


def test_cifar_archive_gives_the_pictures_that_it_holds(tmp_path):
    smooth, streams = np.broadcast_to(PIXELS[:, :, :1, :1], PIXELS.shape), []
    for image in smooth:
        Image.fromarray(image.transpose(1, 2, 0).copy()).save(buffer := io.BytesIO(), "JPEG", quality=95)
        streams.append(buffer.getvalue())
    arrays = {"class_names": np.array(["a", "b"])}
    for split, chosen in (("train", streams[:8]), ("test", streams[8:])):
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(chosen), dtype=np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, chosen)])
        arrays[f"{split}_labels"] = np.arange(len(chosen)) % 2
    np.savez(tmp_path / "cifar.npz", **arrays)
    data = read_dataset(tmp_path / "cifar.npz")
    assert data.train.shape == (8, 3, 32, 32)
    assert data.classes == ("a", "b") and data.test_labels.tolist() == [0, 1, 0, 1]
    assert np.abs(data.train.numpy().astype(int) - smooth[:8]).max() < 12
