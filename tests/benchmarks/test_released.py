"""The re-written released method against an independent slow version of it, and against this library."""

import pytest
import torch

from benchmarks import released, stages
from benchmarks.shapes import SHAPES, prompt_ids

BLOCKS, WIDTH = 12, 96


@pytest.fixture(scope="module")
def given():
    model = SHAPES["nano-neox"].build()
    return model, prompt_ids(model, 16)


@pytest.fixture(scope="module")
def ours(given):
    return stages.ours(*given)


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def theirs(given, request):
    return stages.theirs(*given, request.param, [*range(BLOCKS)], stand_in=torch.zeros(BLOCKS, WIDTH, WIDTH))


def test_jacobian_is_the_derivative_between_hidden_states(given):
    model, ids = given
    with released.attention_set_to(model.hf, "eager"):
        states = released.hidden_states(model.hf, ids)
        for block in (0, 5, BLOCKS - 1):
            J = released.jacobian(states, block)
            for row in (0, 40, 95):
                (whole,) = torch.autograd.grad(states[block + 1][0, -1, row], states[block], retain_graph=True)
                wanted = whole[0, -1] - torch.eye(WIDTH)[row]
                torch.testing.assert_close(J[row], wanted, rtol=1e-4, atol=1e-6)


def test_couplings_follow_the_definition_entry_by_entry():
    J = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    decomposed = released.decompose(list(J))
    found = released.couple(list(J), decomposed, ks=(3,))
    (U, _, Vh), s = decomposed[1], decomposed[0][1]
    for suffix, left, right in (("", U.T, Vh), ("_vju", Vh, U.T)):
        entries = [[abs(left[i] @ J[0] @ right[j]) - s[i] * (i == j) for j in range(3)] for i in range(3)]
        distance = sum(float(entry) ** 2 for row in entries for entry in row) ** 0.5
        for name, norm in (("norm", sum(s[:3] ** 2) ** 0.5), ("trace", sum(s[:3]))):
            value = found[f"released_{name}{suffix}"][0, 0, 1]
            assert float(value) == pytest.approx(distance / float(norm), rel=1e-6)


def test_library_agrees_only_off_the_last_block(ours, theirs):
    found = stages.agreement(ours, theirs, [*range(BLOCKS)])
    assert found["pairs"] == 11 * 10 and found["metric_absolute_same_block"] < 1e-4
    assert found["metric_relative"] < 1e-5 and found["jacobian_relative"] < 1e-5
    own, other = (run.values["released_norm"][:, -1, :-1] for run in (ours, theirs))
    assert (own / other - 1).abs().max() > 1e-2


def test_library_agrees_everywhere_at_the_released_boundary(given, theirs):
    ours, apart = stages.ours(*given, boundary="hidden_states"), ~torch.eye(BLOCKS, dtype=torch.bool)
    for name in released.READINGS:
        torch.testing.assert_close(ours.values[name][..., apart], theirs.values[name][..., apart], rtol=1e-5, atol=0)


def test_the_model_is_given_back_as_it_was(given, ours):
    model, ids = given
    with released.attention_set_to(model.hf, "sdpa"):
        released.hidden_states(model.hf, ids)
    assert torch.equal(stages.ours(*given).J, ours.J)


@pytest.mark.parametrize(("n_tokens", "chunks"), [(1, 5), (19, 5), (20, 7), (64, 11), (128, 17)])
def test_chunks_follow_the_release(n_tokens, chunks):
    assert released.chunk_count(n_tokens) == chunks


@pytest.mark.parametrize(
    ("n_blocks", "count", "chosen"), [(12, 12, [*range(12)]), (12, 3, [0, 5, 10]), (24, 3, [0, 11, 22]), (2, 9, [0, 1])]
)
def test_blocks_spread_over_depth_without_the_last(n_blocks, count, chosen):
    assert stages.some_blocks(n_blocks, count) == chosen
