"""The lens against whole-model autograd in float64, over every causal family, and what would go wrong unnoticed."""

import numpy as np
import pytest
import tiny_families
import torch
from families import FAMILIES, each_family, loaded, named
from reference import as_leaf, outputs, relative_error, rows
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UnsupportedModelError

CAUSAL = [family for family in FAMILIES if not family.bidirectional]
IDS = torch.randint(1, 64, (1, 9), generator=torch.Generator().manual_seed(1))
EYE = torch.eye(32, dtype=torch.float64)


def traced_by(name: str) -> cl.Trace:
    return cl.trace(loaded(named(name), torch.float64), IDS)


def whole_model(model, depth: int, token: int) -> torch.Tensor:
    """d x^L_t / d x^l_t by autograd through all later blocks at once, all tokens of them."""
    blocks, x = model.blocks.modules, []

    def change(stream):
        x.append(stream[0, token].clone().requires_grad_(True))
        return torch.cat([stream[:, :token], x[0][None, None], stream[:, token + 1 :]], dim=1)

    if depth == len(blocks):
        return torch.eye(model.d_model, dtype=torch.float64)
    with torch.enable_grad():
        (y,) = outputs(model.hf, {"input_ids": IDS}, blocks[depth], change, [blocks[-1]])
    return torch.stack([torch.autograd.grad(value, x[0], retain_graph=True)[0] for value in y[0, token]])


@each_family(CAUSAL)
def test_lens_equals_autograd_in_every_causal_family(family):
    model = loaded(family, torch.float64)
    for token in (-1, 5):
        found = cl.lens(cl.trace(model, IDS), token)
        assert found.shape == (4, 32, 32) and torch.equal(found[-1], EYE)
        for depth in range(3):
            wanted = whole_model(model, depth, token % 9)
            assert relative_error(found[depth], wanted) < (1e-6 if family.wide else 1e-5)


def assert_products_equal(found, formed, v, x) -> None:
    """Products both ways, and with the states, are those of the matrices."""
    M = formed.dense()
    for ours, theirs in ((found @ v, M @ v), (found.of(v), M.mT @ v), (found.states(), (M @ x[:, :, None])[..., 0])):
        assert ours.shape == (4, 32) and relative_error(ours, theirs) < 1e-12


def test_lens_products_equal_those_of_formed_matrices():
    traced = traced_by("gpt2")
    free, formed = cl.lens(traced), cl.lens(traced)
    v = torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for lens in (free, formed):
        assert_products_equal(lens, formed, v, traced.hidden[:, -1])
    assert "_dense" not in vars(free)
    assert relative_error(free @ v.numpy(), free @ v) == 0 and np.asarray(formed).shape == (4, 32, 32)


@pytest.mark.parametrize("kind", ["llama", "gpt-neox", "granite", "gemma2-window", "cohere"])
def test_readout_applies_the_models_head_to_lens(kind):
    """Granite divides its logits, Cohere multiplies them, Gemma-2 caps them."""
    traced = traced_by(kind)
    model = traced.model
    read, logits = cl.lens(traced).readout(k=3), model.hf(input_ids=IDS).logits[0, -1]
    assert read.ids.shape == read.logits.shape == (4, 3) and read.tokens is None
    if kind == "gemma2-window":
        assert read.ids[-1].tolist() == logits.topk(3).indices.tolist()
        return
    # Granite scales in float32.
    torch.testing.assert_close(read.logits[-1], logits.topk(3).values, rtol=1e-6, atol=1e-8)
    norm, head = traced.final_norm, model.hf.get_output_embeddings()
    scale = logits / head(norm(traced.hidden[-1, -1]))
    for depth in range(4):
        state = whole_model(model, depth, 8) @ traced.hidden[depth, -1]
        own = head(norm(state)) * scale.median()
        assert read.ids[depth].tolist() == own.topk(3).indices.tolist()
        torch.testing.assert_close(read.logits[depth], own.topk(3).values, rtol=1e-5, atol=1e-8)


def test_linearised_readouts_are_derivatives_of_the_logits():
    traced = traced_by("gpt-neox")
    last, step = traced.hidden[-1, -1], 1e-6
    read, states = cl.lens(traced).readout(k=4, norm="linearised"), cl.lens(traced).states()
    head, norm = traced.model.hf.get_output_embeddings(), traced.final_norm
    for depth in range(4):
        slope = (head(norm(last + step * states[depth])) - head(norm(last - step * states[depth]))) / (2 * step)
        torch.testing.assert_close(read.logits[depth], slope[read.ids[depth]], rtol=1e-5, atol=1e-7)
    model = cl.load_model("nano-neox")
    traced = cl.trace(model, "It was the best of times, it was the worst of")
    read = cl.lens(traced).readout(k=2)
    own = model.hf(**traced.inputs).logits[0, -1].topk(2)
    assert read.ids[-1].tolist() == own.indices.tolist() and len(read.tokens) == 13
    assert read.tokens[-1][0] == model.tokenizer.decode(own.indices[0])


@each_family(family for family in FAMILIES if family.bidirectional)
def test_a_bidirectional_model_is_refused_with_the_reason(family):
    model = loaded(family, torch.float64)
    given = IDS if model.hf.main_input_name == "input_ids" else torch.randn(1, 3, 16, 16, dtype=torch.float64)
    message, traced = "is bidirectional: .* a lens is for causal decoders", cl.trace(model, given)
    refused(UnsupportedModelError, message, cl.lens, traced)
    refused(UnsupportedModelError, "is bidirectional", cl.lens(traced, targets="later", skip=0).dense)


def every_pair(model, depth: int) -> torch.Tensor:
    """d x^L_t' / d x^l_t of all tokens, (t', t, d, d), one entry of a last state at a time."""
    blocks, leaf = model.blocks.modules, []
    with torch.enable_grad():
        (y,) = outputs(model.hf, {"input_ids": IDS}, blocks[depth], lambda x: as_leaf(x, leaf), [blocks[-1]])
    return torch.stack([rows(each, leaf[0]).transpose(0, 1) for each in y[0]])


@pytest.mark.parametrize("kind", ["llama", pytest.param("qwen3-next", marks=pytest.mark.thorough)])
def test_lens_with_later_targets_matches_brute_force(kind):
    """1/|V| sum of d x^L_t' / d x^l_t over t and t' of V, t' >= t."""
    traced = traced_by(kind)
    pairs, found = every_pair(traced.model, 1), cl.lens(traced, targets="later", skip=3)
    valid = range(3, 8)
    wanted = sum(pairs[later, t] for t in valid for later in valid if later >= t) / len(valid)
    assert relative_error(found[1], wanted) < 1e-4 and relative_error(pairs[8, 8], found[1]) > 0.1
    assert torch.equal(found[3], EYE)
    assert_products_equal(found, found, torch.randn(32, dtype=torch.float64), traced.hidden[:, -1])


def test_lens_with_later_targets_includes_shared_states():
    """Targets of a single token are that token's own whole derivative, shared keys and values with it."""
    model = cl.wrap_model(tiny_families.build("causal", "zaya", alone=False).double())
    found = cl.lens(cl.trace(model, IDS), targets="later", skip=7)
    for depth in range(3):
        assert relative_error(found[depth], whole_model(model, depth, 7)) < 1e-5


LATER = "skip is 16; of 9 tokens so many and the last are left out, so it must .* from 0 to 7"
REFUSED = {
    "token": (lambda traced: cl.lens(traced, token=9), "token is 9; this input has 9 tokens"),
    "length": (lambda traced: cl.lens(traced) @ torch.ones(31), r"shape \(31,\)"),
    "columns": (lambda traced: cl.lens(traced) @ torch.ones(32, 2), r"shape \(32, 2\); \(32,\) is expected"),
    "nan": (lambda traced: cl.lens(traced) @ torch.full((32,), torch.nan), "NaN"),
    "targets": (lambda traced: cl.lens(traced, targets="all"), "targets is 'all'; it must be 'own' or 'later'"),
    "skip": (lambda traced: cl.lens(traced, targets="later"), LATER),
    "norm": (lambda traced: cl.lens(traced).readout(norm="none"), "norm is 'none'; it must be"),
    "k": (lambda traced: cl.lens(traced).readout(k=65), "k is 65"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_refused(call, message):
    refused(ParameterError, message, call, traced_by("llama"))
