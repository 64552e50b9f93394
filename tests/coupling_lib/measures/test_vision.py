"""Measurements of vision transformers against brute force in float64: whole forward passes, full decompositions."""

import itertools

import numpy as np
import pytest
import tiny
import torch
import transformers
from random_numbers import normal
from reference import brute_force_jacobian, coupling, miscoupling
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.measures import vision
from coupling_lib.measures.random_bases import drawn_null

K = 4
IMAGES = [*normal(1, 2, 1, 1, 8, 8)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    images = dict(image_size=8, patch_size=2, num_channels=1, num_labels=3)
    config = transformers.ViTConfig(**tiny.STACK, **images, initializer_range=0.2)
    hf = transformers.ViTForImageClassification._from_config(config).double().eval()
    return cl.wrap_model(hf, name="tiny-vit")


@pytest.fixture(scope="module")
def ds(model):
    return cl.measure_relations(model, IMAGES, k=K)


def brute_force(hf, image, pair) -> dict[str, np.ndarray]:
    """Two variants of every pair of blocks at one pair of tokens, by loops."""
    J = [brute_force_jacobian(hf, block, {"pixel_values": image}, *pair).numpy() for block in hf.vit.layers]
    out = {name: np.zeros((len(J), len(J))) for name in ("normalized_miscoupling", "released_trace")}
    for a, b in np.ndindex(len(J), len(J)):
        s, A = np.linalg.svd(J[a])[1][:K], coupling(J[a], J[b], K)
        out["normalized_miscoupling"][a, b] = miscoupling(A)
        out["released_trace"][a, b] = np.linalg.norm(np.abs(A) - np.diag(s)) / s.sum()
    return out | {"frobenius_norm": np.linalg.norm(J, axis=(1, 2))}


def test_every_token_relation_equals_brute_force(model, ds):
    assert list(ds.relation.values) == list(vision.RELATIONS)
    for (number, image), relation in itertools.product(enumerate(IMAGES), vision.RELATIONS):
        one = ds.sel(relation=relation).isel(prompt=number)
        for name, values in brute_force(model.hf, image, (int(one.token_in), int(one.token_out))).items():
            np.testing.assert_allclose(one[name].values, values, rtol=1e-6, atol=1e-9, err_msg=f"{relation} {name}")


def test_relations_have_tokens_nulls_and_refusals(model, ds):
    there, back = (ds.sel(relation=name) for name in ("patch a to b", "patch b to a"))
    assert (int(there.token_in), int(there.token_out)) == (int(back.token_out), int(back.token_in)) == (6, 11)
    null = drawn_null(ds, "normalized_miscoupling", n_samples=40, seed=3)
    np.testing.assert_array_equal(null, drawn_null(ds, "normalized_miscoupling", n_samples=40, seed=3))
    np.testing.assert_allclose(null.mean(("sample", "block_1")), np.sqrt(1 - 1 / K), rtol=0.05)
    llama, message = cl.wrap_model(tiny.llama()), "reads no images; give a vision transformer such as 'nano-vit'"
    refused(ParameterError, message, cl.measure_relations, llama, torch.tensor([[1, 2, 3]]))
    refused(ParameterError, "k is 99; tiny-vit has width 32", cl.measure_relations, model, IMAGES, k=99)
