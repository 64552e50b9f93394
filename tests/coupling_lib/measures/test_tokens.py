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


def example(hf) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if hf.main_input_name == "pixel_values":
        return torch.randn(1, 3, 16, 16, generator=generator, dtype=hf.dtype)
    return torch.randint(1, 64, (1, 9), generator=generator)


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
    family = named(name)
    model = cl.wrap_model(family.build(), name=name)
    given = example(model.hf)
    fixed = {"self": None, "input": 3, "output": 5}[kind]
    ds = cl.measure_tokens(model, given, block=1, other=2, kind=kind, fixed=fixed, k=K, tokens=4)
    positions = ds.position.values[0].tolist()
    assert fixed not in positions
    first, second = brute_force(model, given, kind, 1, 2, fixed, positions)
    scale = max(np.linalg.svd(J, compute_uv=False)[0] for J in first)
    for i, J in enumerate(first):
        s = np.linalg.svd(J, compute_uv=False)
        np.testing.assert_allclose(ds.singular_values[0, i], s[:K], rtol=1e-5)
        for j, other in enumerate(second):
            A = coupling(J, other, K)
            np.testing.assert_allclose(np.abs(ds.matrix[i, j]), np.abs(A), atol=1e-4 * scale)
            assert float(ds.normalized_miscoupling[0, i, j]) == pytest.approx(miscoupling(A), abs=1e-5)
            wanted = np.linalg.norm(A - np.diag(s[:K])) / np.linalg.norm(s[:K])
            assert float(ds.mismatch[0, i, j]) == pytest.approx(wanted, rel=1e-4)


def test_identity_is_not_subtracted_between_different_tokens():
    """With the identity taken off, as in later code of the authors, every singular value would lie near 1."""
    model = cl.wrap_model(named("gpt2").build(), name="gpt2")
    given = example(model.hf)
    ds = cl.measure_tokens(model, given, block=1, kind="output", fixed=8, k=K, tokens=3)
    raw = brute_force_jacobian(model.hf, model.blocks.modules[1], {"input_ids": given}, 7, 8)
    right, wrong = (torch.linalg.svdvals(J)[:K].numpy() for J in (raw, raw - torch.eye(32)))
    np.testing.assert_allclose(ds.singular_values[0, 2], right, rtol=1e-6)
    assert np.abs(ds.singular_values[0, 2] - wrong).max() > 0.1


def test_only_tokens_that_attention_reaches_are_compared():
    for kind, fixed, positions in [
        ("self", None, [4, 5, 6, 7, 8]),
        ("input", None, [4, 5, 6, 7, 8]),
        ("input", 5, [6, 7, 8]),
        ("output", None, [3, 4, 5, 6, 7]),
        ("output", 3, [0, 1, 2]),
    ]:
        model = cl.wrap_model(named("gpt2").build(), name="gpt2")
        ds = cl.measure_tokens(model, example(model.hf), block=1, kind=kind, fixed=fixed, k=K, tokens=5)
        assert ds.position.values[0].tolist() == positions + [-1] * (5 - len(positions))
        assert np.isnan(ds.mismatch.values[0, len(positions) :]).all() and np.isnan(ds.matrix[len(positions) :]).all()
        assert int(ds.fixed_position[0]) == {"self": -1, "input": fixed or 1, "output": fixed or 8}[kind]
    model = cl.wrap_model(named("bert").build(), name="bert")
    ds = cl.measure_tokens(model, example(model.hf), block=1, kind="input", fixed=5, k=K, tokens=12)
    assert ds.position.values[0].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, -1, -1, -1, -1]
    family = Family("window", "MistralConfig", dict(GQA, sliding_window=4))
    model = cl.wrap_model(family.build(), name="window")
    ds = cl.measure_tokens(model, example(model.hf), block=1, kind="input", fixed=2, k=K, tokens=5)
    assert ds.position.values[0].tolist() == [3, 4, 5, -1, -1]
    compared = token_comparisons((8, 9), token_in=1, token_out=-1)
    assert compared["input 9-10"] == {"block": 8, "other": 9, "kind": "input", "fixed": 1}
    between, within = token_reports(compared)
    assert [compared[name]["other"] for name in between + within] == [9, 9, 9, 8, 8, 8]


def test_shorter_prompts_are_padded_with_nan(model):
    ds = cl.measure_tokens(model, [PARIS, "It was the best"], block=8, other=9, tokens=12)
    assert dict(ds.mismatch.sizes) == {"prompt": 2, "token_1": 12, "token_2": 12}
    assert PARIS.endswith("".join(ds.text.values[0])) and "".join(ds.text.values[1]) == "It was the best"
    short = int((ds.position[1] >= 0).sum())
    assert np.isfinite(ds.mismatch[1, :short, :short]).all() and np.isnan(ds.mismatch[1, short:]).all()
    assert float(ds.residual.max()) < 1e-5
    assert (ds.attrs["kind"], ds.attrs["block"], ds.attrs["other"]) == ("self", 8, 9)
    ds = cl.measure_tokens(model, PARIS, block=6)
    assert np.abs(np.diagonal(ds.normalized_miscoupling[0])).max() < 1e-4
    different = cl.measure_tokens(model, PARIS, block=6, other=7)
    assert np.diagonal(different.normalized_miscoupling[0]).min() > 0.5


def test_null_of_tokens_equals_the_closed_form(model):
    ds = cl.measure_tokens(model, [PARIS, "It was the best"], block=8)
    null = drawn_null(ds, "normalized_miscoupling", seed=3)
    assert null.sizes["jacobian"] == int((ds.position >= 0).sum())
    assert float(null.mean()) == pytest.approx(np.sqrt(1 - 1 / 10), rel=0.01)
    xr.testing.assert_equal(null, drawn_null(ds, "normalized_miscoupling", seed=3))
    model = cl.wrap_model(named("gpt2").build(), name="gpt2")
    ds = cl.measure_tokens(model, example(model.hf), block=1, k=32, tokens=4)
    null = drawn_null(ds, "mismatch", n_samples=400)
    # E m^2 = 1 + K^2 |J|^2 / (d^2 |s|^2), which is 2 for K = d.
    np.testing.assert_allclose((null**2).mean("sample"), 2.0, rtol=0.03)


@pytest.mark.parametrize(("kind", "other"), [("self", 2), ("input", 2), ("output", 2), ("self", 1)])
def test_conjugation_null_is_the_mean_over_rotations(kind, other, monkeypatch):
    """Q J' Q^T is formed and decomposed for every token; both parts, and the spread of the mean over pairs."""
    monkeypatch.setattr(measures.tokens, "_DRAWS", 200)
    hf = named("gpt2").build()
    for layer in hf.transformer.h:  # left and right vectors that lie close, so that the two nulls differ
        layer.mlp = nn.Linear(32, 32, dtype=hf.dtype)
        layer.mlp.weight.data = 20 * (layer.mlp.weight.data + layer.mlp.weight.data.T)
    model = cl.wrap_model(hf, name="gpt2")
    given, fixed = example(model.hf), {"self": None, "input": 3, "output": 5}[kind]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(k=97), "k is 97; nano-neox has width 96, so it must be a whole number from 1 to 96"),
        (dict(block=12), "block is 12; nano-neox has 12 blocks, counted from 0"),
        (dict(other=-1), "other is -1; nano-neox has 12 blocks, counted from 0"),
        (dict(kind="both"), "kind is 'both'; it must be one of self, input, output"),
        (dict(tokens=1), "tokens is 1; a comparison takes 2 at least"),
        (dict(kind="input", fixed=40), "token is 40; this input has 18 tokens, 0 to 17"),
        (dict(kind="output", fixed=1), "the fixed token, at position 1 of 18, attends to 1 token besides itself"),
        (dict(kind="input", fixed=-2), "the fixed token, at position 16 of 18, reaches 1 token besides itself"),
        (dict(prompts="It"), "this input has 1 token"),
    ],
)
def test_impossible_settings_are_refused(model, arguments, message):
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
