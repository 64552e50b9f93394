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
    assert abs(float(x.mean())) < 1e-3 and abs(float(x.std()) - 1) < 1e-3


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)


def test_cifar_batches_are_read_without_running_code(tmp_path, pixels):
    for i in range(1, 6):
        batch = {b"data": pixels[2 * i - 2 : 2 * i].reshape(2, -1), b"labels": [i, 0]}
        (tmp_path / f"data_batch_{i}").write_bytes(pickle.dumps(batch))
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": pixels[10:].reshape(2, -1), b"labels": [7, 8]}))
    data = read_dataset(tmp_path)
    assert torch.equal(data.train, torch.from_numpy(pixels[:10])) and data.test_labels.tolist() == [7, 8]
    assert data.train_labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (tmp_path / name).write_bytes(pickle.dumps({b"data": io.BytesIO, b"labels": []}))
    refused(ParameterError, r"asks for _io\.BytesIO", read_dataset, tmp_path)
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
    data = read_dataset(tmp_path / "cifar.npz")
    assert data.train.shape == (8, 3, 32, 32)
    assert data.classes == ("a", "b") and data.test_labels.tolist() == [0, 1, 0, 1]
    assert np.abs(data.train.numpy().astype(int) - smooth[:8]).max() < 12
