"""The re-written released method against an independent slow version of it, and against this library."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import released, stages
from benchmarks.shapes import SHAPES, prompt_ids


@pytest.fixture(scope="module")
def model():
    return SHAPES["nano-neox"].build()


@pytest.fixture(scope="module")
def ids(model):
    return prompt_ids(model, 16)


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def theirs(model, ids, request):
    everything = list(range(model.n_blocks))
    empty = torch.zeros(model.n_blocks, model.d_model, model.d_model)
    return stages.theirs(model, ids, request.param, everything, stand_in=empty)


def off_diagonal(values: torch.Tensor) -> torch.Tensor:
    return values[..., ~torch.eye(values.shape[-1], dtype=torch.bool)]


@pytest.mark.parametrize(("n_tokens", "chunks"), [(1, 5), (19, 5), (20, 7), (64, 11), (128, 17)])
def test_chunks_follow_the_release(n_tokens, chunks):
    assert released.chunk_count(n_tokens) == chunks


def test_jacobian_is_the_derivative_between_hidden_states(model, ids):
    with released.attention_set_to(model.hf, "eager"):
        states = released.hidden_states(model.hf, ids)
        for block in (0, 5, model.n_blocks - 1):
            J = released.jacobian(states, block)
            for row in (0, 40, 95):
                (whole,) = torch.autograd.grad(states[block + 1][0, -1, row], states[block], retain_graph=True)
                wanted = whole[0, -1].clone()
                wanted[row] -= 1
                torch.testing.assert_close(J[row], wanted, rtol=1e-4, atol=1e-6)


def test_couplings_follow_the_definition_entry_by_entry():
    generator = torch.Generator().manual_seed(0)
    J = list(torch.randn(2, 6, 6, generator=generator, dtype=torch.float64))
    decomposed = released.decompose(J)
    found = released.couple(J, decomposed, ks=(3,))
    U, _, Vh = decomposed[1]
    s = decomposed[0][1]
    squares = {"": 0.0, "_vju": 0.0}
    for i in range(3):
        for j in range(3):
            target = float(s[i]) if i == j else 0.0
            squares[""] += (abs(float(U[:, i] @ J[0] @ Vh[j])) - target) ** 2
            squares["_vju"] += (abs(float(Vh[i] @ J[0] @ U[:, j])) - target) ** 2
    for suffix, square in squares.items():
        norm = math.sqrt(square / sum(float(value) ** 2 for value in s[:3]))
        trace = math.sqrt(square) / sum(float(value) for value in s[:3])
        assert float(found[f"released_norm{suffix}"][0, 0, 1]) == pytest.approx(norm, rel=1e-6)
        assert float(found[f"released_trace{suffix}"][0, 0, 1]) == pytest.approx(trace, rel=1e-6)


def test_library_agrees_off_the_last_block(model, ids, theirs):
    ours = stages.ours(model, ids)
    found = stages.agreement(ours, theirs, list(range(model.n_blocks)))
    assert found["pairs"] == 11 * 10
    assert found["metric_relative"] < 1e-5
    assert found["metric_absolute_same_block"] < 1e-4
    assert found["jacobian_relative"] < 1e-5


def test_library_agrees_everywhere_at_the_released_boundary(model, ids, theirs):
    ours = stages.ours(model, ids, boundary="hidden_states")
    for name in released.READINGS:
        found, wanted = off_diagonal(ours.values[name]), off_diagonal(theirs.values[name])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)


def test_last_block_differs_at_its_own_boundary(model, ids, theirs):
    ours = stages.ours(model, ids)
    name, last = "released_norm", model.n_blocks - 1
    assert (ours.values[name][:, last, :last] / theirs.values[name][:, last, :last] - 1).abs().max() > 1e-2


def test_the_model_is_given_back_as_it_was(model, ids):
    before = stages.ours(model, ids).J
    with released.attention_set_to(model.hf, "sdpa"):
        released.hidden_states(model.hf, ids)
    assert torch.equal(stages.ours(model, ids).J, before)


@pytest.mark.parametrize(
    ("n_blocks", "count", "chosen"), [(12, 12, [*range(12)]), (12, 3, [0, 5, 10]), (24, 3, [0, 11, 22]), (2, 9, [0, 1])]
)
def test_blocks_spread_over_depth_without_the_last(n_blocks, count, chosen):
    assert stages.some_blocks(n_blocks, count) == chosen
