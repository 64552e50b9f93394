"""Augmentation: what it leaves alone, what it keeps, and that a seed decides everything."""

import pytest
import torch
from random_numbers import seeded

from companion.training import augment

IMAGES, LABELS = torch.rand(32, 3, 8, 8, generator=seeded(1)), torch.arange(32) % 10
TARGETS = augment.smooth_targets(LABELS, 10, 0.0)
CHANGES = {
    "rand_augment": augment.rand_augment,
    "erasing": lambda x, g: augment.random_erasing(x, g, 0.5),
    "crop": lambda x, g: augment.random_crop(x, g, 2),
    "flip": augment.random_flip,
    "mix": lambda x, g: augment.mix(x, torch.ones(len(x), 1), g)[0],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_augmentation_is_a_function_of_its_seed(change):
    first, again, other = (change(IMAGES, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other) and not torch.equal(first, IMAGES)
    assert first.shape == IMAGES.shape and first.min() >= 0 and first.max() <= 1


def test_zero_strength_changes_nothing():
    assert torch.allclose(augment.rand_augment(IMAGES, seeded(0), layers=0), IMAGES)
    assert torch.equal(augment.random_erasing(IMAGES, seeded(0), 0.0), IMAGES)
    assert torch.equal(augment.random_crop(IMAGES, seeded(0), 0), IMAGES)
    for off in (dict(mixup=0.0, cutmix=0.0), dict(probability=0.0)):
        mixed, shares = augment.mix(IMAGES, TARGETS, seeded(0), **off)
        assert torch.equal(mixed, IMAGES) and torch.equal(shares, TARGETS)
    # Posterising to 8 bits and contrast by a factor of 1 are the identity as well; solarising above 1 too.
    assert torch.allclose(augment.rand_augment(IMAGES, seeded(0), 3, magnitude=0.0, spread=0.0), IMAGES, atol=1 / 128)


# A quarter of the side at magnitude 10: two of eight pixels. A turn keeps the centre, and spreads the pixel.
@pytest.mark.parametrize(("operation", "side", "column", "total"), [("translate_x", 8, 2, 1), ("rotate", 9, 4, None)])
def test_a_pixel_is_moved_by_whole_pixels(operation, side, column, total):
    image = torch.zeros(1, 1, side, side)
    image[0, 0, 4, 4] = 1
    moved = augment._transform(image, torch.tensor([augment.OPERATIONS.index(operation)]), torch.tensor([1.0]))
    assert moved[0, 0, 4, column] == pytest.approx(1)
    assert total is None or moved.sum() == pytest.approx(total)


def test_crop_is_a_window_of_padded_image():
    windows = torch.nn.functional.pad(IMAGES, (2, 2, 2, 2)).unfold(2, 8, 1).unfold(3, 8, 1)
    found = augment.random_crop(IMAGES, seeded(5), 2)[:, :, None, None]
    assert (windows == found).all(dim=(1, 4, 5)).flatten(1).any(dim=1).all()


def test_erasing_changes_about_the_share_asked_for():
    changed = (augment.random_erasing(torch.zeros(2000, 1, 8, 8), seeded(0), 0.25) != 0).flatten(1)
    assert changed.any(1).float().mean() == pytest.approx(0.25, abs=0.04)
    assert changed.sum(1).max() <= 64 * 0.6


@pytest.mark.parametrize("seed", range(6))
def test_cutmix_shares_count_the_pasted_pixels(seed):
    images = LABELS[:, None, None, None].float().expand(-1, 1, 8, 8) / 10
    mixed, shares = augment.mix(images, TARGETS, seeded(seed), mixup=0.0, cutmix=1.0)
    assert torch.allclose(shares.sum(1), torch.ones(32))
    kept, different = torch.isclose(mixed, images).float().mean(dim=(1, 2, 3)), LABELS != LABELS.flip(0)
    torch.testing.assert_close(shares[torch.arange(32), LABELS][different], kept[different])


def test_mixup_mixes_targets_as_it_does_images():
    mixed, shares = augment.mix(IMAGES, TARGETS, seeded(2), mixup=0.8, cutmix=0.0)
    share = shares[0, LABELS[0]]
    assert 0 < share < 1
    torch.testing.assert_close(mixed, share * IMAGES + (1 - share) * IMAGES.flip(0))
    torch.testing.assert_close(shares, share * TARGETS + (1 - share) * TARGETS.flip(0))
    p = augment.smooth_targets(torch.tensor([2, 0]), 4, 0.2)
    assert torch.allclose(p, torch.tensor([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]]))
