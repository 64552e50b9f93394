"""Augmentation: what it leaves alone, what it keeps, and that a seed decides everything."""

from __future__ import annotations

import pytest
import torch

from companion.training import augment


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    return torch.rand(32, 3, 8, 8, generator=seeded(1))


@pytest.fixture
def targets():
    return augment.smooth_targets(torch.arange(32) % 10, 10, 0.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, g: augment.rand_augment(x, g),
        lambda x, g: augment.random_erasing(x, g, 0.5),
        lambda x, g: augment.random_crop(x, g, 2),
        lambda x, g: augment.random_flip(x, g),
        lambda x, g: augment.mix(x, torch.ones(len(x), 1), g)[0],
    ],
    ids=["rand_augment", "erasing", "crop", "flip", "mix"],
)
def test_augmentation_is_a_function_of_its_seed(images, change):
    first, again, other = change(images, seeded(3)), change(images, seeded(3)), change(images, seeded(4))
    assert torch.equal(first, again) and not torch.equal(first, other) and not torch.equal(first, images)
    assert first.shape == images.shape and first.min() >= 0 and first.max() <= 1


def test_zero_strength_changes_nothing(images, targets):
    assert torch.allclose(augment.rand_augment(images, seeded(), layers=0), images)
    assert torch.equal(augment.random_erasing(images, seeded(), 0.0), images)
    assert torch.equal(augment.random_crop(images, seeded(), 0), images)
    for off in (dict(mixup=0.0, cutmix=0.0), dict(probability=0.0)):
        mixed, shares = augment.mix(images, targets, seeded(), **off)
        assert torch.equal(mixed, images) and torch.equal(shares, targets)
    # Posterising to 8 bits and contrast by a factor of 1 are the identity as well; solarising above 1 too.
    assert torch.allclose(augment.rand_augment(images, seeded(), 3, magnitude=0.0, spread=0.0), images, atol=1 / 128)


# A quarter of the side at magnitude 10: two of eight pixels. A turn keeps the centre.
@pytest.mark.parametrize(("operation", "side", "column"), [("translate_x", 8, 2), ("rotate", 9, 4)])
def test_a_pixel_is_moved_by_whole_pixels(operation, side, column):
    image = torch.zeros(1, 1, side, side)
    image[0, 0, 4, 4] = 1
    moved = augment._transform(image, torch.tensor([augment.OPERATIONS.index(operation)]), torch.tensor([1.0]))
    assert moved[0, 0, 4, column] == pytest.approx(1)
    assert operation == "rotate" or moved.sum() == pytest.approx(1)


def test_crop_is_a_window_of_padded_image(images):
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for image, window in zip(padded, augment.random_crop(images, seeded(5), 2), strict=True):
        assert any(torch.equal(window, image[:, i : i + 8, j : j + 8]) for i in range(5) for j in range(5))


def test_erasing_changes_about_the_share_asked_for():
    images = torch.zeros(2000, 1, 8, 8)
    changed = (augment.random_erasing(images, seeded(), 0.25) != 0).flatten(1)
    assert changed.any(1).float().mean() == pytest.approx(0.25, abs=0.04)
    assert changed.sum(1).max() <= 64 * 0.6


@pytest.mark.parametrize("seed", range(6))
def test_cutmix_shares_count_the_pasted_pixels(targets, seed):
    labels = torch.arange(32) % 10
    images = labels[:, None, None, None].float().expand(-1, 1, 8, 8) / 10
    mixed, shares = augment.mix(images, targets, seeded(seed), mixup=0.0, cutmix=1.0)
    assert torch.allclose(shares.sum(1), torch.ones(32))
    kept = torch.isclose(mixed, images).float().mean(dim=(1, 2, 3))
    different = labels != labels.flip(0)
    torch.testing.assert_close(shares[torch.arange(32), labels][different], kept[different])


def test_mixup_mixes_targets_as_it_does_images(images, targets):
    mixed, shares = augment.mix(images, targets, seeded(2), mixup=0.8, cutmix=0.0)
    share = float(shares[0].max())
    share = share if torch.allclose(mixed[0], share * images[0] + (1 - share) * images[-1], atol=1e-6) else 1 - share
    torch.testing.assert_close(mixed, share * images + (1 - share) * images.flip(0))
    p = augment.smooth_targets(torch.tensor([2, 0]), 4, 0.2)
    assert torch.allclose(p, torch.tensor([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]]))
