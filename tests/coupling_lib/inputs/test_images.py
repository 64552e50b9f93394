"""Images in a model's own format, as they are shown and as they are read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from coupling_lib.errors import ParameterError
from coupling_lib.inputs import images
from coupling_lib.inputs.labelled_images import read_dataset

SMALL = SimpleNamespace(model_type="vit", image_size=8, patch_size=2, num_channels=1, image_mean=[0.3], image_std=[0.4])
LARGE = SimpleNamespace(model_type="deit", image_size=[32, 32], patch_size=16, num_channels=3)


def test_images_come_held_out_normalised_and_by_seed():
    first, again, other = (images.load_images("digits", SMALL, 5, seed) for seed in (0, 0, 1))
    held_out = {tuple(image.flatten().tolist()) for image in read_dataset("digits").test}
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
