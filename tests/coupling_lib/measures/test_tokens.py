"""Coupling across tokens against brute force: whole blocks differentiated by autograd, full SVDs, loops over pairs."""

import copy

import numpy as np
import pytest
import scipy.stats
import tiny
import torch
import xarray as xr
from families import GQA, Family, named
from reference import brute_force_jacobian, coupling, miscoupling
from refusals import refused
from torch import nn

import coupling_lib as cl
from coupling_lib import measures
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures.random_bases import drawn_null
from coupling_lib.measures.tokens import KINDS, token_comparisons, token_reports

K = 4


def tiny_family(name: str) -> tuple[cl.Model, torch.Tensor]:
    """A random model of a family, and an input of it."""
    model, generator = cl.wrap_model(named(name).build(), name=name), torch.Generator().manual_seed(1)
    if model.hf.main_input_name == "pixel_values":
        return model, torch.randn(1, 3, 16, 16, generator=generator, dtype=model.hf.dtype)
    return model, torch.randint(1, 64, (1, 9), generator=generator)


def brute_force(model, given, kind, block, other, fixed, positions):
    """Jacobians at block and other, by name of the pair; the identity is taken off where the tokens agree."""
    hf, name = model.hf, model.hf.main_input_name
    pairs = [{"self": (t, t), "input": (fixed, t), "output": (t, fixed)}[kind] for t in positions]
    return [
        [brute_force_jacobian(hf, model.blocks.modules[index], {name: given}, *pair).double().numpy() for pair in pairs]
        for index in (block, other)
    ]


# Falcon evaluates blocks through a cache, Mamba by the whole sequence; BERT and ViT see both ways.
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gpt2", "falcon-7b", "mamba", "bert", "vit"])
def test_every_pair_of_tokens_equals_brute_force(name, kind):
    (model, given), fixed = tiny_family(name), {"self": None, "input": 3, "output": 5}[kind]
    ds = cl.measure_tokens(model, given, block=1, other=2, kind=kind, fixed=fixed, k=K, tokens=4)
    positions = ds.position.values[0].tolist()
    assert fixed not in positions
    first, second = brute_force(model, given, kind, 1, 2, fixed, positions)
    S = np.linalg.svd(first, compute_uv=False)[:, :K]
    np.testing.assert_allclose(ds.singular_values[0], S, rtol=1e-5)
    A = np.array([[coupling(J, other, K) for other in second] for J in first])
    np.testing.assert_allclose(np.abs(ds.matrix), np.abs(A), atol=1e-4 * S.max())
    shares = [[miscoupling(one) for one in row] for row in A]
    np.testing.assert_allclose(ds.normalized_miscoupling[0], shares, atol=1e-5)
    distance = np.linalg.norm(A - S[:, None, :, None] * np.eye(K), axis=(2, 3)) / np.linalg.norm(S, axis=1)[:, None]
    np.testing.assert_allclose(ds.mismatch[0], distance, rtol=1e-4)


REACHED = {
    "self": ("gpt2", "self", None, [4, 5, 6, 7, 8]),
    "input": ("gpt2", "input", None, [4, 5, 6, 7, 8]),
    "input 5": ("gpt2", "input", 5, [6, 7, 8, -1, -1]),
    "output": ("gpt2", "output", None, [3, 4, 5, 6, 7]),
    "output 3": ("gpt2", "output", 3, [0, 1, 2, -1, -1]),
    "both ways": ("bert", "input", 5, [0, 1, 2, 3, 4, 6, 7, 8, -1, -1, -1, -1]),
}


@pytest.mark.parametrize(("name", "kind", "fixed", "positions"), REACHED.values(), ids=REACHED)
def test_only_tokens_that_attention_reaches_are_compared(name, kind, fixed, positions):
    model, given = tiny_family(name)
    ds = cl.measure_tokens(model, given, block=1, kind=kind, fixed=fixed, k=K, tokens=len(positions))
    assert ds.position.values[0].tolist() == positions
    padded = np.array(positions) < 0
    assert np.isnan(ds.mismatch.values[0, padded]).all() and np.isnan(ds.matrix.values[padded]).all()
    assert int(ds.fixed_position[0]) == {"self": -1, "input": fixed or 1, "output": fixed or 8}[kind]


def test_windows_and_pairs_of_blocks_limit_the_comparisons():
    model = cl.wrap_model(Family("window", "MistralConfig", dict(GQA, sliding_window=4)).build())
    ds = cl.measure_tokens(model, tiny_family("gpt2")[1], block=1, kind="input", fixed=2, k=K, tokens=5)
    assert ds.position.values[0].tolist() == [3, 4, 5, -1, -1]
    compared = token_comparisons((8, 9), token_in=1, token_out=-1)
    assert compared["input 9-10"] == {"block": 8, "other": 9, "kind": "input", "fixed": 1}
    between, within = token_reports(compared)
    assert [compared[name]["other"] for name in between + within] == [9, 9, 9, 8, 8, 8]


@pytest.fixture(scope="module")
def ds(model):
    return cl.measure_tokens(model, [PARIS, "It was the best"], block=8, other=9, tokens=12)


def test_shorter_prompts_are_padded_with_nan(model, ds):
    assert PARIS.endswith("".join(ds.text.values[0])) and "".join(ds.text.values[1]) == "It was the best"
    short = int((ds.position[1] >= 0).sum())
    assert np.isfinite(ds.mismatch[1, :short, :short]).all() and np.isnan(ds.mismatch[1, short:]).all()
    assert np.isnan(ds.conjugated[1, short:]).all() and np.isfinite(ds.conjugated_error).all()
    assert float(ds.residual.max()) < 1e-5
    assert (ds.attrs["kind"], ds.attrs["block"], ds.attrs["other"]) == ("self", 8, 9)
    of_itself = cl.measure_tokens(model, PARIS, block=6).normalized_miscoupling[0]
    assert np.abs(np.diagonal(of_itself)).max() < 1e-4


def test_null_of_tokens_equals_the_closed_form(ds):
    null, again = (drawn_null(ds, "normalized_miscoupling", seed=3) for _ in range(2))
    assert null.sizes["jacobian"] == int((ds.position >= 0).sum())
    assert float(null.mean()) == pytest.approx(np.sqrt(1 - 1 / 10), rel=0.01)
    xr.testing.assert_equal(null, again)
    null = drawn_null(cl.measure_tokens(*tiny_family("gpt2"), block=1, k=32, tokens=4), "mismatch", n_samples=400)
    # E m^2 = 1 + K^2 |J|^2 / (d^2 |s|^2), which is 2 for K = d.
    np.testing.assert_allclose((null**2).mean("sample"), 2.0, rtol=0.03)


@pytest.mark.parametrize(("kind", "other"), [("self", 2), ("input", 2), ("output", 2), ("self", 1)])
def test_conjugation_null_is_the_mean_over_rotations(kind, other, monkeypatch):
    """Q J' Q^T is formed and decomposed for every token; both parts, and the spread of the mean over pairs."""
    monkeypatch.setattr(measures.tokens, "_DRAWS", 200)
    (model, given), fixed = tiny_family("gpt2"), {"self": None, "input": 3, "output": 5}[kind]
    for layer in model.hf.transformer.h:  # left and right vectors that lie close, so that the two nulls differ
        layer.mlp = nn.Linear(32, 32, dtype=model.hf.dtype)
        layer.mlp.weight.data = 20 * (layer.mlp.weight.data + layer.mlp.weight.data.T)
    model = cl.wrap_model(model.hf.eval(), name="gpt2")
    ds = cl.measure_tokens(model, given, block=1, other=other, kind=kind, fixed=fixed, k=K, tokens=3)
    rng, different = np.random.default_rng(0), ~np.eye(3, dtype=bool)
    whole = brute_force(model, given, kind, 1, other, fixed, ds.position.values[0].tolist())
    for prefix in ("", "shared_"):
        first, second = (np.stack([J - bool(prefix) * np.trace(J) / 32 * np.eye(32) for J in part]) for part in whole)
        Q = scipy.stats.ortho_group.rvs(32, size=1200, random_state=rng).reshape(400, 3, 32, 32)
        U, _, Vh = np.linalg.svd(Q @ second @ Q.swapaxes(-1, -2))
        A = np.einsum("sjdk,ide,sjle->sijkl", U[..., :K], first, Vh[..., :K, :])
        squares = (A**2).sum((-2, -1))
        draws = np.sqrt(1 - np.einsum("sijkk->sij", A**2) / squares)
        found, error = ds[f"{prefix}conjugated"][0].values, float(ds[f"{prefix}conjugated_error"][0])
        np.testing.assert_allclose(found, draws.mean(0), atol=5 * draws.std(0).max() * (1 / 200 + 1 / 400) ** 0.5)
        assert error == pytest.approx(draws[:, different].mean(1).std() / 200**0.5, rel=0.25)
        chance = float(drawn_null(ds, "normalized_miscoupling").mean())
        assert kind != "self" or chance - found.mean() > 0.03


def test_conjugation_null_does_not_depend_on_other_prompts(model):
    both = cl.measure_tokens(model, [PARIS, "It was the best"], block=8, other=9, tokens=12)
    alone = cl.measure_tokens(model, "It was the best", block=8, other=9, tokens=12)
    np.testing.assert_array_equal(both.conjugated[1], alone.conjugated[0])
    assert np.isnan(both.conjugated[1, 5:]).all() and np.isfinite(both.conjugated_error).all()


IMPOSSIBLE = {
    "k is 97; nano-neox has width 96, so it must be a whole number from 1 to 96": dict(k=97),
    "block is 12; nano-neox has 12 blocks, counted from 0": dict(block=12),
    "other is -1; nano-neox has 12 blocks, counted from 0": dict(other=-1),
    "kind is 'both'; it must be one of self, input, output": dict(kind="both"),
    "tokens is 1; a comparison takes 2 at least": dict(tokens=1),
    "token is 40; this input has 18 tokens, 0 to 17": dict(kind="input", fixed=40),
    "the fixed token, at position 1 of 18, attends to 1 token besides itself": dict(kind="output", fixed=1),
    "the fixed token, at position 16 of 18, reaches 1 token besides itself": dict(kind="input", fixed=-2),
    "this input has 1 token": dict(prompts="It"),
}


@pytest.mark.parametrize(("message", "arguments"), IMPOSSIBLE.items(), ids=IMPOSSIBLE)
def test_impossible_settings_are_refused(model, message, arguments):
    refused(ParameterError, message, cl.measure_tokens, model, **{"prompts": PARIS, "block": 8} | arguments)


class Cancelling(nn.Module):
    """Passes on the two tokens before, and takes a third away again, up to the rounding of two products."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp = mlp

    def forward(self, x):
        first, second, third = (nn.functional.pad(x, (0, 0, lag, 0))[:, :-lag] for lag in (1, 2, 3))
        return self.mlp(x) + first.tanh() + second.tanh() + third * 41 * (1 / 41) * 49 * (1 / 49) - third


def test_jacobians_lost_in_rounding_count_as_unconnected():
    hf = tiny.llama()
    for layer in hf.model.layers:
        layer.self_attn.register_forward_hook(lambda module, args, output: (0 * output[0], *output[1:]))
        layer.mlp = Cancelling(layer.mlp)
    ids, settings = torch.arange(3, 12)[None], dict(block=1, kind="output", k=3, tokens=3)
    message = "nano: 1 of 3 tokens were taken as not connected with the fixed one, at position 8"
    with pytest.warns(RuntimeWarning, match=message):
        ds = cl.measure_tokens(cl.wrap_model(hf, name="nano"), [ids], **settings)
    assert ds.position.values[0].tolist() == [6, 7, -1]
    # In float64 nothing is refused.
    wide = cl.measure_tokens(cl.wrap_model(hf.double(), name="nano"), [ids], **settings)
    assert wide.position.values[0].tolist() == [5, 6, 7]


@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
def test_error_bound_holds_and_keeps_trained_jacobians(name):
    """The bound is far below every one of them, and above what float64 shows of the error."""
    model = cl.load_model(name)
    times = "It was the best of times, it was the worst of times"
    traced = cl.trace(model, f"{times}, it was the age of wisdom, it was the age of foolishness")
    wide = cl.trace(cl.wrap_model(copy.deepcopy(model.hf).double()), traced.inputs["input_ids"])
    last = traced.n_tokens - 1
    for block in (0, 11):
        for token in range(0, last, 7):
            J, wanted = traced.jacobian(block, token, last), wide.jacobian(block, token, last).dense()
            error = float((J.dense().double() - wanted).norm())
            assert error < J.error < 1e-3 * float(wanted.norm()) and not J.vanishes()
