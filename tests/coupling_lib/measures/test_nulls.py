"""Nulls of a model: means over pairs against `measure_depth`, relative coupling, and the decisive test."""

import itertools

import numpy as np
import pytest
import torch
from random_numbers import normal, seeded
from reference import coupling, miscoupling
from refusals import refused
from tiny import llama

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.measures import nulls
from coupling_lib.metrics.expected_null import expected_null
from coupling_lib.metrics.nulls import filled_spectrum, relative_to_null
from coupling_lib.metrics.variants import VARIANTS, different_pairs, values_of_pairs
from coupling_lib.svd.shared import without_isotropic
from coupling_lib.svd.triplets import top_triplets_stacked

IDS = [torch.tensor([[5, 17, 99, 3, 42]]), torch.tensor([[7, 8, 9]])]
DIFFERENT = ~np.eye(3, dtype=bool)


@pytest.fixture(scope="module")
def model():
    return cl.wrap_model(llama(), name="tiny")


@pytest.fixture(scope="module")
def measured(model):
    return nulls.measure_nulls(model, IDS, ks=(4, 8))


@pytest.fixture(scope="module")
def depth(model):
    """Coupling across depth, by boundary."""
    return {name: cl.measure_depth(model, IDS, ks=(3, 4, 8, 10), boundary=name) for name in ("block", "hidden_states")}


def jacobians(model, ids) -> np.ndarray:
    traced = cl.trace(model, ids)
    return np.stack([traced.jacobian(block).dense().double().numpy() for block in range(traced.n_blocks)])


def mean_miscoupling(J, others, pairs) -> float:
    return np.mean([miscoupling(coupling(J[a], others[b], 4)) for a, b in pairs])


def test_measured_values_and_nulls_equal_measure_depth(depth, measured):
    wanted = depth["block"].sel(k=[4, 8])
    for name in VARIANTS:
        found = measured["value"].sel(kind="measured", variant=name).transpose("prompt", "k")
        np.testing.assert_allclose(found, wanted[name].values[..., DIFFERENT].mean(-1), rtol=1e-5, err_msg=name)
    share = 1 - measured["value"] / measured["null"]
    np.testing.assert_allclose(measured["relative"], share.transpose(*measured["relative"].dims), rtol=1e-4, atol=1e-6)
    # One draw per pair of blocks lies around the expectation.
    rotated = measured["relative"].sel(kind="rotated", variant=["mismatch", "released_norm", "basis_uu"])
    assert abs(rotated).max() < 0.1
    for name in ("normalized_miscoupling", "released_trace", "basis_uv"):
        expected = cl.null_of(wanted.isel(prompt=[0]), name, seed=3).mean("block_1")
        found = measured.isel(prompt=0).sel(variant=name)
        both = np.hypot(expected.error, found.null_error)
        assert (abs(found.null - expected["value"]) < 5 * both + 1e-6).all(), name
        assert (found.null_error < 4e-4).all() and (found.null <= found.closed_form + 1e-6).all()


def test_traceless_part_equals_explicit_loops(model, measured):
    J = jacobians(model, IDS[0])
    traces = np.trace(J, axis1=1, axis2=2) / J.shape[-1]
    share = traces**2 * J.shape[-1] / (J**2).sum(axis=(1, 2))
    np.testing.assert_allclose(measured["isotropic_share"][0], share, rtol=1e-4)
    rest = J - traces[:, None, None] * np.eye(J.shape[-1])
    found = measured["normalised"].isel(prompt=0).sel(k=4, part="traceless", kind="measured", span="neighbours")
    neighbours = [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert found.item() == pytest.approx(mean_miscoupling(rest, rest, neighbours), abs=1e-4)


def test_controls_expose_isotropic_and_symmetric_coupling():
    d, k, name = 256, 4, "normalized_miscoupling"
    low = torch.randn(8, d, 8, generator=seeded(0))
    # Each block shrinks what it hears, along directions of its own, and shrinks everything a little.
    J = -low @ low.mT / d - 0.5 * torch.eye(d)
    null = nulls._random_bases(J, top_triplets_stacked(J, k).S, [k], [name])[1][0]

    def relative(J):
        U, S, Vh, _ = top_triplets_stacked(J, k)
        pairs = values_of_pairs(J, U, S, Vh.mT, U, Vh.mT, [k], [name])[name]
        return relative_to_null(different_pairs(pairs).mean(dim=-1), null)

    assert (relative(J) > 0.9).all()
    # The trace holds a little of the low rank, too, so that a little is left.
    assert (relative(without_isotropic(J.clone())) < 0.2).all()
    # Independent symmetric traceless blocks: nothing is learned or shared, and coupling is far above random bases.
    G = normal(5, 8, 96, 96)
    J = without_isotropic(G + G.mT)
    U, _, V = nulls._top(J, 10)
    values, error, *_ = nulls._of_part(J, (U, V), normal(6, 9, 20, 96), [10], [nulls.MAIN], 0)
    by_kind = dict(zip(nulls.KINDS, (1 - values[:, 0, 0, 0]).tolist(), strict=True))
    wanted = 1 - (1 - 2 / 11) ** 0.5
    assert by_kind["measured"] == by_kind["other prompt"] == pytest.approx(wanted, abs=0.02)
    assert by_kind["conjugated"] == pytest.approx(wanted, abs=5 * error[0, 0, 0].item() + 0.005)
    assert by_kind["rotated"] == pytest.approx(0.0516, abs=0.015) and by_kind["unpaired"] < 0.06


def test_controls_use_another_prompt_and_state_directions(model, measured):
    J, other = jacobians(model, IDS[0]), jacobians(model, IDS[0].flip(1))
    found = measured.isel(prompt=0).sel(k=4, part="whole", span="all pairs")["normalised"]
    assert found.sel(kind="other prompt").item() == pytest.approx(
        mean_miscoupling(J, other, itertools.permutations(range(3), 2)), abs=1e-4
    )
    states = cl.trace(model, IDS[0]).hidden.detach().double().reshape(-1, 32).numpy()
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    P = np.linalg.svd(states - states.mean(axis=0))[2][:4].T
    wanted = np.mean([miscoupling(P.T @ one @ P) for one in J])
    assert found.sel(kind="state directions").item() == pytest.approx(wanted, abs=1e-4)
    assert nulls.other_prompt(cl.load_model("nano-neox"), "x") != "x"
    turned = torch.tensor([[3, 1, 3]])
    assert not torch.equal(nulls.other_prompt(model, turned), turned)


@pytest.mark.parametrize("boundary", ["hidden_states", "block"])
def test_the_decisive_test_measures_the_released_normalisations(model, depth, boundary):
    found = nulls.measure_decisive(model, IDS, ks=(10, 50), boundary=boundary)
    # Of width 32 a tenth is 3; 50 vectors do not exist and are left out.
    assert found["k"].values.tolist() == [10, 3]
    assert found["rule"].values.tolist() == ["10", "0.1 d"]
    for name, (rule, k) in itertools.product(nulls.DECISIVE, (("10", 10), ("0.1 d", 3))):
        every = depth[boundary][name].sel(k=k).values
        got = found["value"].sel(variant=name, rule=rule)
        np.testing.assert_allclose(got.sel(pairs="different"), every[:, DIFFERENT].mean(axis=1), rtol=1e-5)
        np.testing.assert_allclose(got.sel(pairs="all"), every.mean(axis=(1, 2)), rtol=1e-4, atol=1e-6)


def test_decisive_null_equals_expected_null_of_spectra(model, depth):
    found = nulls.measure_decisive(model, IDS[:1], ks=(10,))
    S, norm = (torch.tensor(depth["hidden_states"][name].values[0]) for name in ("singular_values", "frobenius_norm"))
    spectrum = filled_spectrum(S, 32, norm)
    expected = expected_null(spectrum, 32, [10], ["released_trace"], seed=4)["released_trace"].value.mean().item()
    found = found.sel(variant="released_trace", rule="10", pairs="different")
    assert found["null"].item() == pytest.approx(expected, abs=5 * found["null_error"].item())
    assert found["null_error"].item() < 1e-4
    root = VARIANTS["released_trace"].null(spectrum, 32, 10).sqrt().mean().item()
    assert 0 < root - expected < 1e-3


def test_null_curves_agree_with_the_closed_form():
    curves = nulls.null_curves(widths=(32, 64), ks=(8,), decays=(0.0, 1.0), n_samples=40)
    assert curves["k"].sel(rule="0.1 d").values.tolist() == [3, 6]
    chosen = curves.sel(variant=["mismatch", "released_norm", "released_trace", "basis_uu"])
    assert abs((chosen["simulated"] - chosen["closed_form"]) / chosen["error"]).max() < 5


def test_ladder_of_ks_contains_the_chosen_k(model):
    assert [nulls.ladder(k, 32) for k in (4, 32)] == [(2, 4, 8), (16, 32)]
    refused(ParameterError, "k is 1", nulls.ladder, 1, 32)
    refused(ParameterError, "at least 2", nulls.measure_nulls, model, IDS, ks=(1, 4))
    single = cl.wrap_model(llama(num_hidden_layers=1), name="single")
    for measure in (nulls.measure_nulls, nulls.measure_decisive):
        refused(ParameterError, "1 block", measure, single, IDS[:1], ks=(4,))
