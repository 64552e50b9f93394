"""Stochastic depth: off in evaluation, unbiased in training, a function of its seed."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
import transformers
from reference import brute_force_jacobian, coupling, miscoupling

import coupling_lib as cl
from companion.training.drop_path import DropPath, depth_rates, draw_gates, fixed_gates, measure_drop_path
from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.provenance import prompts_hash


@pytest.fixture
def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(**tiny.STACK, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    return transformers.ViTForImageClassification._from_config(config).eval()


@pytest.fixture
def pixels():
    return torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_drop_path_acts_only_in_training(vit, pixels):
    plain = vit(pixel_values=pixels).logits
    drop = DropPath(vit.vit.layers, 0.5)
    assert torch.equal(vit(pixel_values=pixels).logits, plain)
    vit.train()
    drop.generator.manual_seed(1)
    first = vit(pixel_values=pixels).logits
    drop.generator.manual_seed(1)
    assert torch.equal(vit(pixel_values=pixels).logits, first) and not torch.allclose(first, plain)
    drop.remove()
    assert torch.equal(vit(pixel_values=pixels).logits, plain)


@torch.no_grad()
def test_branches_drop_at_their_rate_keeping_the_mean():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = torch.nn.Identity(), torch.nn.Identity()

    blocks = [Block().train() for _ in range(3)]
    drop = DropPath(blocks, 0.4)
    drop.generator.manual_seed(0)
    ones = torch.ones(20_000, 1, 1)
    for block, p in zip(blocks, (0.0, 0.2, 0.4), strict=True):
        out = block.mlp(ones)
        assert (out == 0).float().mean() == pytest.approx(p, abs=0.02)
        assert out.mean() == pytest.approx(1, abs=0.03) and out.max() == pytest.approx(1 / (1 - p))


@torch.no_grad()
def test_fixed_gates_reproduce_a_draw_of_training_mode(vit, pixels):
    drop = DropPath(vit.vit.layers, 0.4)
    vit.train()
    drop.generator.manual_seed(7)
    trained = vit(pixel_values=pixels[:1]).logits
    generator = torch.Generator().manual_seed(7)
    gates = torch.ones(3, 2)
    for block, p in enumerate(depth_rates(0.4, 3)):
        for branch in range(2):
            if p > 0:
                gates[block, branch] = (torch.rand(1, generator=generator) >= p).float() / (1 - p)
    drop.remove()
    vit.eval()
    with fixed_gates(vit.vit.layers, gates):
        torch.testing.assert_close(vit(pixel_values=pixels[:1]).logits, trained)


def test_drawn_gates_never_drop_a_whole_block():
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([draw_gates(0.5, 4, generator) for _ in range(200)])
    assert draws.amax(dim=2).min() > 0
    for block, p in enumerate(depth_rates(0.5, 4)):
        values = draws[:, block].unique().tolist()
        assert values[-1] == pytest.approx(1 / (1 - p)) and values[:-1] in ([], [0.0])
    assert (draws[:, 0] == 1).all() and (draws[:, 3] == 0).any()


def test_invalid_rate_gates_and_modules_are_refused(vit):
    with pytest.raises(ParameterError, match=r"rate is 1\.0; a rate of stochastic depth is from 0 to below 1"):
        depth_rates(1.0, 3)
    with pytest.raises(ParameterError, match=r"gates has shape \(2, 2\); \(3, 2\) is expected"):
        with fixed_gates(vit.vit.layers, torch.ones(2, 2)):
            pass
    with pytest.raises(UnsupportedModelError, match="Linear has no branches named attention and mlp"):
        DropPath([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)], 0.1)


@pytest.fixture
def images(pixels):
    return list(pixels[:2, None].double())


def brute_force(hf, image, k=4) -> float:
    """Mean mis-coupling of all ordered pairs of different blocks at the class token, by nested loops."""
    J = [brute_force_jacobian(hf, block, {"pixel_values": image}, 0, 0).numpy() for block in hf.vit.layers]
    return float(np.mean([miscoupling(coupling(a, b, k)) for a in J for b in J if a is not b]))


def test_measured_drop_path_equals_brute_force(vit, images):
    vit, image = vit.double(), images[0]
    ds = measure_drop_path(cl.wrap_model(vit), [image], rate=0.4, draws=2, k=4, seed=5)
    assert float(ds["off"][0]) == pytest.approx(brute_force(vit, image), abs=1e-6)
    generator = torch.Generator().manual_seed((5 + int(prompts_hash([image]), 16)) % 2**63)
    for draw in range(2):
        with fixed_gates(vit.vit.layers, draw_gates(0.4, tiny.BLOCKS, generator)):
            assert float(ds["on"][0, draw]) == pytest.approx(brute_force(vit, image), abs=1e-6)
    assert not np.allclose(ds["on"], ds["off"])


def test_measurement_at_rate_zero_changes_nothing(vit, images):
    model = cl.wrap_model(vit.double())
    none = measure_drop_path(model, images, rate=0.0, draws=1, k=4)
    np.testing.assert_allclose(none["on"][:, 0], none["off"])
    many = measure_drop_path(model, images, rate=0.4, draws=3, k=4, seed=1)
    alone = measure_drop_path(model, images[1:], rate=0.4, draws=3, k=4, seed=1)
    np.testing.assert_allclose(many["on"][1:], alone["on"])
    with pytest.raises(ParameterError, match="draws is 0"):
        measure_drop_path(model, images, draws=0)
