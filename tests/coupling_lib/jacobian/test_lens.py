"""The lens against whole-model autograd in float64, over every causal family, and what would go wrong unnoticed."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_families
import torch
from families import FAMILIES, each_family, loaded, named
from reference import relative_error, rows

from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.inputs.traced import trace
from coupling_lib.jacobian.lens import lens
from coupling_lib.models.load import load_model
from coupling_lib.models.storages import wrap_model

CAUSAL = [family for family in FAMILIES if not family.bidirectional]
IDS = torch.randint(1, 64, (1, 9), generator=torch.Generator().manual_seed(1))


def whole_model(model, depth: int, token: int) -> torch.Tensor:
    """d x^L_t / d x^l_t by autograd through all later blocks at once, all tokens of them."""
    blocks, seen = model.blocks.modules, {}

    def enter(module, args, kwargs):
        stream = (args[0] if args else kwargs["hidden_states"]).detach().clone()
        x = seen["x"] = stream[0, token].clone().requires_grad_(True)
        stream = torch.cat([stream[:, :token], x[None, None], stream[:, token + 1 :]], dim=1)
        return ((stream, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": stream})

    def leave(module, args, output):
        seen["y"] = (output[0] if isinstance(output, tuple) else output)[0, token]

    if depth == len(blocks):
        return torch.eye(model.d_model, dtype=torch.float64)
    hooks = [
        blocks[depth].register_forward_pre_hook(enter, with_kwargs=True),
        blocks[-1].register_forward_hook(leave),
    ]
    with torch.enable_grad():
        model.hf(input_ids=IDS)
    for hook in hooks:
        hook.remove()
    rows = [torch.autograd.grad(y, seen["x"], retain_graph=True)[0] for y in seen["y"]]
    return torch.stack(rows)


@each_family(CAUSAL)
def test_a_lens_equals_whole_model_autograd_in_every_causal_family(family):
    model = loaded(family, torch.float64)
    for token in (-1, 5):
        found = lens(trace(model, IDS), token)
        assert found.shape == (4, 32, 32) and torch.equal(found[-1], torch.eye(32, dtype=torch.float64))
        for depth in range(3):
            wanted = whole_model(model, depth, token % 9)
            assert relative_error(found[depth], wanted) < (1e-6 if family.wide else 1e-5)


def test_mistakes_of_others_are_seen_by_the_comparison():
    """One block too many, a transposed matrix, and states after the final norm are each far from autograd."""
    model = loaded(named("llama"), torch.float64)
    traced = trace(model, IDS)
    found, wanted = lens(traced).dense(), whole_model(model, 1, 8)
    assert relative_error(found[1], wanted) < 1e-6
    assert relative_error(found[0], wanted) > 0.1  # off by one block
    assert relative_error(found[1].T, wanted) > 0.1
    after = traced.jacobian(2, boundary="hidden_states").dense() + torch.eye(32, dtype=torch.float64)
    other = after @ (traced.jacobian(1).dense() + torch.eye(32, dtype=torch.float64))
    assert relative_error(other, wanted) > 0.1


def test_products_without_matrices_are_those_of_the_matrices():
    traced = trace(loaded(named("gpt2"), torch.float64), IDS)
    free, formed = lens(traced), lens(traced)
    formed.dense()
    v = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for ours, theirs in (
        (free @ v, formed @ v),
        (free.of(v), formed.of(v)),
        (free.states(), formed.states()),
    ):
        assert ours.shape == (4, 32) and relative_error(ours, theirs) < 1e-12
    assert "_dense" not in vars(free)
    assert relative_error(formed @ v, torch.stack([M @ v for M in formed.dense()])) < 1e-12
    assert relative_error(formed.of(v), torch.stack([M.T @ v for M in formed.dense()])) < 1e-12
    assert relative_error(free @ v.numpy(), free @ v) == 0 and np.asarray(formed).shape == (4, 32, 32)


@pytest.mark.parametrize("kind", ["llama", "gpt-neox", "granite", "gemma2-window", "cohere"])
def test_a_readout_is_the_models_own_head_of_what_the_lens_gives(kind):
    """Granite divides its logits, Cohere multiplies them, Gemma-2 caps them."""
    model = loaded(named(kind), torch.float64)
    traced = trace(model, IDS)
    found, logits = lens(traced), model.hf(input_ids=IDS).logits[0, -1]
    read = found.readout(k=3)
    assert read.ids.shape == read.logits.shape == (4, 3) and read.tokens is None
    if kind == "gemma2-window":
        assert read.ids[-1].tolist() == logits.topk(3).indices.tolist()
        return
    torch.testing.assert_close(
        read.logits[-1], logits.topk(3).values, rtol=1e-6, atol=1e-8
    )  # Granite scales in float32
    norm, head = traced.final_norm, model.hf.get_output_embeddings()
    scale = logits / head(norm(traced.hidden[-1, -1]))
    for depth in range(4):
        state = whole_model(model, depth, 8) @ traced.hidden[depth, -1]
        own = head(norm(state)) * scale.median()
        assert read.ids[depth].tolist() == own.topk(3).indices.tolist()
        torch.testing.assert_close(read.logits[depth], own.topk(3).values, rtol=1e-5, atol=1e-8)


def test_a_linearised_readout_is_the_derivative_of_the_logits():
    model = loaded(named("gpt-neox"), torch.float64)
    traced = trace(model, IDS)
    last, step = traced.hidden[-1, -1], 1e-6
    read, states = lens(traced).readout(k=4, norm="linearised"), lens(traced).states()
    head, norm = model.hf.get_output_embeddings(), traced.final_norm
    for depth in range(4):
        slope = (head(norm(last + step * states[depth])) - head(norm(last - step * states[depth]))) / (2 * step)
        torch.testing.assert_close(read.logits[depth], slope[read.ids[depth]], rtol=1e-5, atol=1e-7)


def test_the_last_depth_of_a_trained_model_is_its_own_answer():
    model = load_model("nano-neox")
    traced = trace(model, "It was the best of times, it was the worst of")
    read = lens(traced).readout(k=2)
    own = model.hf(**traced.inputs).logits[0, -1].topk(2)
    assert read.ids[-1].tolist() == own.indices.tolist() and len(read.tokens) == 13
    assert read.tokens[-1][0] == model.tokenizer.decode(own.indices[0])


@each_family(family for family in FAMILIES if family.bidirectional)
def test_a_bidirectional_model_is_refused_with_the_reason(family):
    model = loaded(family, torch.float64)
    given = IDS if model.hf.main_input_name == "input_ids" else torch.randn(1, 3, 16, 16, dtype=torch.float64)
    with pytest.raises(UnsupportedModelError, match="is bidirectional: .* a lens is for causal decoders"):
        lens(trace(model, given))


def every_pair(model, depth: int) -> torch.Tensor:
    """d x^L_t' / d x^l_t of all tokens, (t', t, d, d), one entry of a last state at a time."""
    leaf, seen = [], []

    def enter(module, args, kwargs):
        leaf.append((args[0] if args else kwargs["hidden_states"]).detach().clone().requires_grad_(True))
        return ((leaf[0], *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": leaf[0]})

    def leave(module, args, output):
        seen.append(output[0] if isinstance(output, tuple) else output)

    blocks = model.blocks.modules
    hooks = [
        blocks[depth].register_forward_pre_hook(enter, with_kwargs=True),
        blocks[-1].register_forward_hook(leave),
    ]
    with torch.enable_grad():
        model.hf(input_ids=IDS)
    for hook in hooks:
        hook.remove()
    return torch.stack([rows(y, leaf[0]).transpose(0, 1) for y in seen[0][0]])


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen3-next", marks=pytest.mark.thorough)])
def test_a_lens_with_later_targets_is_a_brute_force_sum(kind):
    """1/|V| sum of d x^L_t' / d x^l_t over t and t' of V, t' >= t."""
    model = loaded(named(kind), torch.float64)
    traced = trace(model, IDS)
    pairs, found = every_pair(model, 1), lens(traced, targets="later", skip=3)
    valid = range(3, 8)
    wanted = sum(pairs[later, t] for t in valid for later in valid if later >= t) / len(valid)
    assert relative_error(found[1], wanted) < 1e-4 and relative_error(pairs[8, 8], found[1]) > 0.1
    assert torch.equal(found[3], torch.eye(32, dtype=torch.float64))
    v, x = torch.randn(32, dtype=torch.float64), traced.hidden[:, -1]
    assert relative_error(found @ v, torch.stack([M @ v for M in found.dense()])) < 1e-12
    assert relative_error(found.of(v), torch.stack([M.T @ v for M in found.dense()])) < 1e-12
    assert relative_error(found.states(), torch.einsum("lij,lj->li", found.dense(), x)) < 1e-12


def test_a_lens_with_later_targets_takes_what_blocks_hand_on():
    """Targets of a single token are that token's own whole derivative, shared keys and values with it."""
    hf = tiny_families.build("causal", "zaya", alone=False)
    model = wrap_model(hf.double())
    found = lens(trace(model, IDS), targets="later", skip=7)
    for depth in range(3):
        assert relative_error(found[depth], whole_model(model, depth, 7)) < 1e-5


def test_bad_input_is_one_line():
    traced = trace(loaded(named("llama"), torch.float64), IDS)
    with pytest.raises(ParameterError, match="token is 9; this input has 9 tokens"):
        lens(traced, token=9)
    for v, message in (
        (torch.ones(31), r"shape \(31,\)"),
        (torch.ones(32, 2), r"shape \(32, 2\); \(32,\) is expected"),
        (torch.full((32,), torch.nan), "NaN"),
    ):
        with pytest.raises(ParameterError, match=message):
            lens(traced) @ v
    for settings, message in (
        (dict(targets="all"), "targets is 'all'; it must be 'own' or 'later'"),
        (dict(targets="later"), "skip is 16; of 9 tokens so many and the last are left out, so it must .* from 0 to 7"),
    ):
        with pytest.raises(ParameterError, match=message):
            lens(traced, **settings)
    with pytest.raises(UnsupportedModelError, match="is bidirectional"):
        lens(trace(loaded(named("bert")), IDS), targets="later", skip=0).dense()
    with pytest.raises(ParameterError, match="norm is 'none'; it must be"):
        lens(traced).readout(norm="none")
    with pytest.raises(ParameterError, match="k is 65"):
        lens(traced).readout(k=65)
