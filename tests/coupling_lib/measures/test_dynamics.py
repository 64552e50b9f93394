"""Dynamics are the metrics, tested against loops, of dense Jacobians in float64; and the released check."""

import numpy as np
import pytest
import torch
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.metrics import dynamics

PROMPTS = [PARIS, "It was the best of times"]
close = np.testing.assert_allclose


@pytest.fixture(scope="module", params=["nano-neox", "nano-llama"])
def model(request):
    return cl.load_model(request.param)


@pytest.fixture(scope="module")
def ds(model):
    return cl.measure_dynamics(model, PROMPTS, k=6)


@pytest.fixture(scope="module")
def system(model) -> tuple[torch.Tensor, torch.Tensor]:
    """Jacobians and states of the last token."""
    trace = cl.trace(model, PARIS)
    J = torch.stack([trace.jacobian(block).dense() for block in range(trace.n_blocks)])
    return J.double(), trace.hidden[:, -1].double()


def test_carried_states_are_products_of_the_jacobians(model, ds, system):
    (J, x), one = system, ds.isel(prompt=0)
    found = dynamics.carried_states(J, x)
    close(one.carried_cosine, found.cosine, atol=1e-3)
    close(one.carried_norm_ratio, found.norm_ratio, rtol=1e-3)
    close(one.contribution, dynamics.contributions(J, x), atol=1e-4)
    # The released check uses Hugging Face's `hidden_states`: no last block, and a target after the final norm.
    ids = torch.tensor([model.tokenizer(PARIS)["input_ids"]])
    normed = model.hf(ids, output_hidden_states=True).hidden_states[-1][0, -1].double()
    carried = x[0]
    for matrix in J[:-1]:
        carried = carried + matrix @ carried
    last = cl.trace(model, PARIS).jacobian(11, boundary="hidden_states").dense().double()
    ends = {
        "embedding": (x[0], x[-1]),
        "released": (carried, normed),
        "product": (carried + J[-1] @ carried, x[-1]),
        "product with final norm": (carried + last @ carried, normed),
        "affine": (x[-1], x[-1]),
    }
    wanted = {name: float(torch.cosine_similarity(*pair, dim=0)) for name, pair in ends.items()}
    assert {name: float(one.end_cosine.sel(reading=name)) for name in wanted} == pytest.approx(wanted, abs=1e-3)
    close(one.end_cosine.sel(reading="product"), one.carried_cosine.isel(start=0, level=-1), atol=1e-5)
    assert float(ds.end_relative_error.sel(reading="affine").max()) < 1e-4


def test_linear_parts_and_growth_equal_lapack(ds, system):
    (J, x), one = system, ds.isel(prompt=0)
    close(one.linear_norm_ratio[[0, 6]], dynamics.linear_part(J, x).norm_ratio[[0, 6]], rtol=0.05, atol=1e-5)
    U, S, Vh = torch.linalg.svd(J)
    close(one.left_right_cosine[[2, 11]], torch.einsum("ldk,lkd->lk", U, Vh)[[2, 11], :6], atol=1e-2)
    close(one.singular_values, S[:, :6], rtol=1e-4)
    found = dynamics.growth(J, x, torch.linalg.svd(J.mean(dim=0)).U[:, :1], S)
    for name, tolerance in (("state", {"rtol": 1e-2}), ("along", {"atol": 1e-2}), ("singular", {"rtol": 1e-4})):
        close(one[f"growth_{name}"][-1, 0], getattr(found, name)[-1, 0], **tolerance)


def test_parallel_blocks_behind_norms_have_no_linear_part():
    ds = cl.measure_dynamics(cl.load_model("nano-neox"), PROMPTS[:1], k=2)
    assert float(ds.linear_norm_ratio.max()) < 0.01


def test_states_carried_by_random_bases_lose_direction(model, ds):
    assert abs(float(ds.null_cosine.isel(level=-1).mean())) < 0.1
    close(ds.null_cosine.isel(level=0), 1, rtol=1e-5)
    other = cl.measure_dynamics(model, PROMPTS[1:], k=6, seed=1)
    assert not np.allclose(other.null_cosine[0, 1:], ds.null_cosine[1, 1:])
    refused(ParameterError, "k is 97", cl.measure_dynamics, model, PROMPTS, k=97)
    refused(ParameterError, "n_samples is 0", cl.measure_dynamics, model, PROMPTS, n_samples=0)
