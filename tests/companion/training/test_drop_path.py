"""Stochastic depth: off in evaluation, unbiased in training, a function of its seed."""

import numpy as np
import pytest
import tiny
import torch
import transformers
from reference import brute_force_jacobian, coupling, miscoupling
from refusals import refused

import coupling_lib as cl
from companion.training.drop_path import DropPath, depth_rates, draw_gates, fixed_gates, measure_drop_path
from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.provenance import prompts_hash

PIXELS = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
IMAGES = list(PIXELS[:2, None].double())


@pytest.fixture
def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(**tiny.STACK, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    return transformers.ViTForImageClassification._from_config(config).eval()


def logits(vit, drop=None, seed=0, images=4):
    if drop:
        drop.generator.manual_seed(seed)
    with torch.no_grad():
        return vit(pixel_values=PIXELS[:images]).logits


def test_drop_path_acts_only_in_training(vit):
    plain = logits(vit)
    drop = DropPath(vit.vit.layers, 0.5)
    assert torch.equal(logits(vit), plain)
    vit.train()
    first = logits(vit, drop, 1)
    assert torch.equal(logits(vit, drop, 1), first) and not torch.allclose(first, plain)
    drop.remove()
    assert torch.equal(logits(vit), plain)


def test_branches_drop_at_their_rate_keeping_the_mean():
    blocks = [torch.nn.Module() for _ in range(3)]
    for block in blocks:
        block.attention, block.mlp = torch.nn.Identity(), torch.nn.Identity()
    drop = DropPath(blocks, 0.4)
    drop.generator.manual_seed(0)
    for block, p in zip(blocks, (0.0, 0.2, 0.4), strict=True):
        out = block.mlp(torch.ones(20_000, 1, 1))
        assert (out == 0).float().mean() == pytest.approx(p, abs=0.02)
        assert out.mean() == pytest.approx(1, abs=0.03) and out.max() == pytest.approx(1 / (1 - p))


def test_fixed_gates_reproduce_a_draw_of_training_mode(vit):
    drop = DropPath(vit.vit.layers, 0.4)
    trained = logits(vit.train(), drop, seed=7, images=1)
    generator, gates = torch.Generator().manual_seed(7), torch.ones(3, 2)
    for block, p in enumerate(depth_rates(0.4, 3)):
        for branch in range(2):
            if p > 0:
                gates[block, branch] = (torch.rand(1, generator=generator) >= p).float() / (1 - p)
    drop.remove()
    with fixed_gates(vit.eval().vit.layers, gates):
        torch.testing.assert_close(logits(vit, images=1), trained)


def test_drawn_gates_never_drop_a_whole_block():
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([draw_gates(0.5, 4, generator) for _ in range(200)])
    assert draws.amax(dim=2).min() > 0
    for block, p in enumerate(depth_rates(0.5, 4)):
        values = draws[:, block].unique().tolist()
        assert values[-1] == pytest.approx(1 / (1 - p)) and values[:-1] in ([], [0.0])
    assert (draws[:, 0] == 1).all() and (draws[:, 3] == 0).any()


def test_invalid_rate_gates_modules_and_draws_are_refused(vit):
    rate, shape = (
        r"rate is 1\.0; a rate of stochastic depth is from 0 to below 1",
        r"gates has shape \(2, 2\); \(3, 2\)",
    )
    refused(ParameterError, rate, depth_rates, 1.0, 3)
    refused(ParameterError, f"{shape} is expected", fixed_gates(vit.vit.layers, torch.ones(2, 2)).__enter__)
    branches = "Linear has no branches named attention and mlp"
    refused(UnsupportedModelError, branches, DropPath, [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)], 0.1)
    refused(ParameterError, "draws is 0", measure_drop_path, cl.wrap_model(vit.double()), IMAGES, draws=0)


def brute_force(hf, image, k=4) -> float:
    """Mean mis-coupling of all ordered pairs of different blocks at the class token, by nested loops."""
    J = [brute_force_jacobian(hf, block, {"pixel_values": image}, 0, 0).numpy() for block in hf.vit.layers]
    return float(np.mean([miscoupling(coupling(a, b, k)) for a in J for b in J if a is not b]))


def test_measured_drop_path_equals_brute_force(vit):
    vit, image = vit.double(), IMAGES[0]
    ds = measure_drop_path(cl.wrap_model(vit), [image], rate=0.4, draws=2, k=4, seed=5)
    assert float(ds["off"][0]) == pytest.approx(brute_force(vit, image), abs=1e-6)
    generator = torch.Generator().manual_seed((5 + int(prompts_hash([image]), 16)) % 2**63)
    for draw in range(2):
        with fixed_gates(vit.vit.layers, draw_gates(0.4, tiny.BLOCKS, generator)):
            assert float(ds["on"][0, draw]) == pytest.approx(brute_force(vit, image), abs=1e-6)
    assert not np.allclose(ds["on"], ds["off"])


def test_rate_zero_and_other_images_change_nothing(vit):
    model = cl.wrap_model(vit.double())
    none = measure_drop_path(model, IMAGES, rate=0.0, draws=1, k=4)
    np.testing.assert_allclose(none["on"][:, 0], none["off"])
    many, alone = (measure_drop_path(model, given, rate=0.4, draws=3, k=4, seed=1) for given in (IMAGES, IMAGES[1:]))
    np.testing.assert_allclose(many["on"][1:], alone["on"])
