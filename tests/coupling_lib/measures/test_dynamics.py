"""Dynamics against loops over dense Jacobians in float64, and against the released check."""

import numpy as np
import pytest
import torch
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS

PROMPTS = [PARIS, "It was the best of times"]


@pytest.fixture(scope="module", params=["nano-neox", "nano-llama"])
def model(request):
    return cl.load_model(request.param)


@pytest.fixture(scope="module")
def ds(model):
    return cl.measure_dynamics(model, PROMPTS, k=6)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def jacobians_and_states(model) -> tuple[np.ndarray, np.ndarray]:
    trace = cl.trace(model, PARIS)
    J = torch.stack([trace.jacobian(block).dense() for block in range(trace.n_blocks)])
    return J.double().numpy(), trace.hidden[:, -1].double().numpy()


def test_carried_states_are_products_of_the_jacobians(model, ds):
    J, x = jacobians_and_states(model)
    for start in (0, 5):
        state = x[start]
        for level in range(start + 1, 13):
            state = state + J[level - 1] @ state
            found = ds.isel(prompt=0, start=start, level=level)
            assert float(found.carried_cosine) == pytest.approx(cosine(state, x[level]), abs=1e-3)
            ratio = np.linalg.norm(state) / np.linalg.norm(x[level])
            assert float(found.carried_norm_ratio) == pytest.approx(ratio, rel=1e-3)
    # The released check uses Hugging Face's `hidden_states`: no last block, and a target after the final norm.
    ids = torch.tensor([model.tokenizer(PARIS)["input_ids"]])
    normed = model.hf(ids, output_hidden_states=True).hidden_states[-1][0, -1].double().numpy()
    carried = x[0]
    for matrix in J[:-1]:
        carried = carried + matrix @ carried
    last = cl.trace(model, PARIS).jacobian(11, boundary="hidden_states").dense().double().numpy()
    wanted = {
        "embedding": cosine(x[0], x[-1]),
        "released": cosine(carried, normed),
        "product": cosine(carried + J[-1] @ carried, x[-1]),
        "product with final norm": cosine(carried + last @ carried, normed),
        "affine": 1.0,
    }
    found = ds.end_cosine.isel(prompt=0)
    assert {name: float(found.sel(reading=name)) for name in wanted} == pytest.approx(wanted, abs=1e-3)
    assert float(ds.end_relative_error.sel(reading="affine").max()) < 1e-4
    forward = ds.carried_cosine.isel(start=0, level=-1).values
    np.testing.assert_allclose(found.sel(reading="product"), forward[0], atol=1e-5)


def test_linear_parts_and_growth_equal_lapack(model, ds):
    J, x = jacobians_and_states(model)
    for block in (0, 6):
        linear, true = J[block] @ x[block], x[block + 1] - x[block]
        ratio = np.linalg.norm(linear) / np.linalg.norm(true)
        assert float(ds.linear_norm_ratio[0, block]) == pytest.approx(ratio, rel=0.05, abs=1e-5)
    np.testing.assert_allclose(ds.contribution.sum("level"), 1, atol=1e-4)
    carried = ds.carried_cosine.isel(start=0, level=-1) * ds.carried_norm_ratio.isel(start=0, level=-1)
    np.testing.assert_allclose(ds.contribution.isel(level=0), carried, atol=1e-5)
    for block in (2, 11):
        U, S, Vh = np.linalg.svd(J[block])
        np.testing.assert_allclose(ds.left_right_cosine[0, block], (U[:, :6] * Vh[:6].T).sum(0), atol=1e-2)
        np.testing.assert_allclose(ds.singular_values[0, block], S[:6], rtol=1e-4)
    u = np.linalg.svd(J.mean(axis=0))[0][:, 0]
    assert float(ds.growth_state[0, -1, 0]) == pytest.approx(np.log(abs(u @ x[-1]) / abs(u @ x[0])), rel=1e-2)
    along = sum(np.log(abs(1 + u @ matrix @ u)) for matrix in J)
    assert float(ds.growth_along[0, -1, 0]) == pytest.approx(along, abs=1e-2)
    singular = sum(np.log1p(np.linalg.svd(matrix)[1][0]) for matrix in J)
    assert float(ds.growth_singular[0, -1, 0]) == pytest.approx(singular, rel=1e-4)


def test_parallel_blocks_behind_norms_have_no_linear_part():
    ds = cl.measure_dynamics(cl.load_model("nano-neox"), PROMPTS[:1], k=2)
    assert float(ds.linear_norm_ratio.max()) < 0.01


def test_states_carried_by_random_bases_lose_direction(model, ds):
    assert abs(float(ds.null_cosine.isel(level=-1).mean())) < 0.1
    np.testing.assert_allclose(ds.null_cosine.isel(level=0), 1, rtol=1e-5)
    other = cl.measure_dynamics(model, PROMPTS[1:], k=6, seed=1)
    assert not np.allclose(other.null_cosine[0, 1:], ds.null_cosine[1, 1:])
    refused(ParameterError, "k is 97", cl.measure_dynamics, model, PROMPTS, k=97)
    refused(ParameterError, "n_samples is 0", cl.measure_dynamics, model, PROMPTS, n_samples=0)
