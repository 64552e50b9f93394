"""Measurements of vision transformers against brute force in float64: whole forward passes, full decompositions."""

import numpy as np
import pytest
import tiny
import torch
import transformers
from reference import brute_force_jacobian, coupling, miscoupling
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.measures import vision
from coupling_lib.measures.random_bases import drawn_null

K = 4
OFF = ~np.eye(tiny.BLOCKS, dtype=bool)


@pytest.fixture(scope="module")
def hf():
    torch.manual_seed(0)
    images = dict(image_size=8, patch_size=2, num_channels=1, num_labels=3)
    config = transformers.ViTConfig(**tiny.STACK, **images, initializer_range=0.2)
    return transformers.ViTForImageClassification._from_config(config).double().eval()


@pytest.fixture(scope="module")
def model(hf):
    return cl.wrap_model(hf, name="tiny-vit")


@pytest.fixture(scope="module")
def images():
    return list(torch.randn(2, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


def brute_force(hf, image, pair, k=K) -> dict[str, np.ndarray]:
    """Two variants of every pair of blocks at one pair of tokens, by nested loops."""
    J = [brute_force_jacobian(hf, block, {"pixel_values": image}, *pair).numpy() for block in hf.vit.layers]
    out = {name: np.zeros((len(J), len(J))) for name in ("normalized_miscoupling", "released_trace")}
    for a, Ja in enumerate(J):
        s = np.linalg.svd(Ja)[1][:k]
        for b, Jb in enumerate(J):
            A = coupling(Ja, Jb, k)
            out["normalized_miscoupling"][a, b] = miscoupling(A)
            out["released_trace"][a, b] = np.linalg.norm(np.abs(A) - np.diag(s)) / s.sum()
    return out | {"frobenius_norm": np.array([np.linalg.norm(Ja) for Ja in J])}


def test_every_token_relation_equals_brute_force(hf, model, images):
    ds = cl.measure_relations(model, images, k=K)
    assert list(ds.relation.values) == list(vision.RELATIONS)
    for number, image in enumerate(images):
        for relation in vision.RELATIONS:
            one = ds.sel(relation=relation).isel(prompt=number)
            wanted = brute_force(hf, image, (int(one.token_in), int(one.token_out)))
            for name, values in wanted.items():
                np.testing.assert_allclose(one[name].values, values, rtol=1e-6, atol=1e-9, err_msg=f"{relation} {name}")


def test_relations_differ_between_token_orders(model, images):
    ds = cl.measure_relations(model, images[:1], k=K)
    there, back = (ds.sel(relation=name) for name in ("patch a to b", "patch b to a"))
    assert (int(there.token_in), int(there.token_out)) == (int(back.token_out), int(back.token_in)) == (6, 11)
    assert (ds.frobenius_norm > 1e-6).all()
    assert not np.allclose(there.normalized_miscoupling.values[:, OFF], back.normalized_miscoupling.values[:, OFF])
    ds = cl.measure_relations(model, images, k=K)
    null = drawn_null(ds, "normalized_miscoupling", n_samples=40, seed=3)
    np.testing.assert_array_equal(null, drawn_null(ds, "normalized_miscoupling", n_samples=40, seed=3))
    np.testing.assert_allclose(null.mean(("sample", "block_1")), np.sqrt(1 - 1 / K), rtol=0.05)
    with pytest.raises(ParameterError, match="reads no images; give a vision transformer such as 'nano-vit'"):
        cl.measure_relations(cl.wrap_model(tiny.llama(), name="llama"), torch.tensor([[1, 2, 3]]))
    refused(ParameterError, "k is 99; tiny-vit has width 32", cl.measure_relations, model, images, k=99)
