"""Nulls of a model: means over pairs against `measure_depth`, relative coupling, and the decisive test."""

import itertools

import numpy as np
import pytest
import torch
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


def test_measured_values_and_nulls_equal_measure_depth(model, measured):
    depth = cl.measure_depth(model, IDS, ks=(4, 8))
    for name in VARIANTS:
        expected = depth[name].values[..., DIFFERENT].mean(axis=-1)
        found = measured["value"].sel(kind="measured", variant=name).transpose("prompt", "k")
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
    for kind in measured.kind.values:
        share = 1 - measured["value"].sel(kind=kind) / measured["null"]
        np.testing.assert_allclose(measured["relative"].sel(kind=kind), share, rtol=1e-4, atol=1e-6)
    # One draw per pair of blocks lies around the expectation.
    rotated = measured["relative"].sel(kind="rotated", variant=["mismatch", "released_norm", "basis_uu"])
    assert abs(rotated).max() < 0.1
    depth = cl.measure_depth(model, IDS[:1], ks=(4, 8))
    for name in ("normalized_miscoupling", "released_trace", "basis_uv"):
        expected = cl.null_of(depth, name, seed=3).mean("block_1")
        found = measured.isel(prompt=0).sel(variant=name)
        both = np.hypot(expected.error, found.null_error)
        assert (abs(found.null - expected["value"]) < 5 * both + 1e-6).all(), name
        assert (found.null_error < 4e-4).all() and (found.null <= found.closed_form + 1e-6).all()


def test_traceless_part_equals_explicit_loops(model, measured):
    traced = cl.trace(model, IDS[0])
    J = np.stack([traced.jacobian(block).dense().double().numpy() for block in range(model.n_blocks)])
    traces = np.trace(J, axis1=1, axis2=2) / J.shape[-1]
    share = traces**2 * J.shape[-1] / (J**2).sum(axis=(1, 2))
    np.testing.assert_allclose(measured["isotropic_share"][0], share, rtol=1e-4)
    rest = J - traces[:, None, None] * np.eye(J.shape[-1])
    values = [miscoupling(coupling(one, other, 4)) for one, other in itertools.permutations(rest, 2)]
    null = measured["null"][0].sel(variant="normalized_miscoupling", k=4).item()
    found = measured.isel(prompt=0).sel(k=4, part="traceless")
    assert found["normalised"].sel(kind="measured", span="all pairs").item() == pytest.approx(np.mean(values), abs=1e-4)
    near = [miscoupling(coupling(rest[a], rest[b], 4)) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
    assert found["normalised"].sel(kind="measured", span="neighbours").item() == pytest.approx(np.mean(near), abs=1e-4)
    # The spectrum of the rest moves the null by less than this.
    assert found["normalised_null"].item() == pytest.approx(null, abs=2e-3)


def test_controls_expose_isotropic_and_symmetric_coupling():
    generator = torch.Generator().manual_seed(0)
    d, k = 256, 4
    low = torch.randn(8, d, 8, generator=generator)
    # Each block shrinks what it hears, along directions of its own, and shrinks everything a little.
    J = -low @ low.mT / d - 0.5 * torch.eye(d)
    U, S, Vh, _ = top_triplets_stacked(J, k)
    name = "normalized_miscoupling"
    null = nulls._random_bases(J, S, [k], [name])[1][0]
    plain = different_pairs(values_of_pairs(J, U, S, Vh.mT, U, Vh.mT, [k], [name])[name]).mean(dim=-1)
    assert (relative_to_null(plain, null) > 0.9).all()
    # The trace holds a little of the low rank, too, so that a little is left.
    without = without_isotropic(J.clone())
    U, S, Vh, _ = top_triplets_stacked(without, k)
    rest = different_pairs(values_of_pairs(without, U, S, Vh.mT, U, Vh.mT, [k], [name])[name]).mean(dim=-1)
    assert (relative_to_null(rest, null) < 0.2).all()
    # Independent symmetric traceless blocks: nothing is learned or shared, and coupling is far above random bases.
    G = torch.randn(8, 96, 96, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    J = without_isotropic(G + G.mT)
    U, _, V = nulls._top(J, 10)
    states = torch.randn(9, 20, 96, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    values, error, *_ = nulls._of_part(J, (U, V), states, [10], [nulls.MAIN], 0)
    by_kind = dict(zip(nulls.KINDS, (1 - values[:, 0, 0, 0]).tolist(), strict=True))
    wanted = 1 - (1 - 2 / 11) ** 0.5
    assert by_kind["measured"] == by_kind["other prompt"] == pytest.approx(wanted, abs=0.02)
    assert by_kind["conjugated"] == pytest.approx(wanted, abs=5 * error[0, 0, 0].item() + 0.005)
    assert by_kind["rotated"] == pytest.approx(0.0516, abs=0.015) and by_kind["unpaired"] < 0.06


def test_controls_use_another_prompt_and_state_directions(model, measured):
    first, other = (cl.trace(model, ids) for ids in (IDS[0], IDS[0].flip(1)))
    J, J2 = (np.stack([t.jacobian(b).dense().double().numpy() for b in range(3)]) for t in (first, other))
    found = measured.isel(prompt=0).sel(k=4, part="whole", span="all pairs")["normalised"]
    values = [miscoupling(coupling(J[a], J2[b], 4)) for a, b in itertools.permutations(range(3), 2)]
    assert found.sel(kind="other prompt").item() == pytest.approx(np.mean(values), abs=1e-4)
    states = first.hidden.detach().double().reshape(-1, 32).numpy()
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    P = np.linalg.svd(states - states.mean(axis=0))[2][:4].T
    values = [miscoupling(P.T @ one @ P) for one in J]
    assert found.sel(kind="state directions").item() == pytest.approx(np.mean(values), abs=1e-4)
    assert nulls.other_prompt(cl.load_model("nano-neox"), "x") != "x"
    turned = torch.tensor([[3, 1, 3]])
    assert not torch.equal(nulls.other_prompt(model, turned), turned)


@pytest.mark.parametrize("boundary", ["hidden_states", "block"])
def test_the_decisive_test_measures_the_released_normalisations(model, boundary):
    found = nulls.measure_decisive(model, IDS, ks=(10, 50), boundary=boundary)
    # Of width 32 a tenth is 3; 50 vectors do not exist and are left out.
    assert found["k"].values.tolist() == [10, 3]
    assert found["rule"].values.tolist() == ["10", "0.1 d"]
    depth = cl.measure_depth(model, IDS, ks=(3, 10), boundary=boundary)
    for name in nulls.DECISIVE:
        for rule, k in (("10", 10), ("0.1 d", 3)):
            every = depth[name].sel(k=k).values
            got = found["value"].sel(variant=name, rule=rule)
            np.testing.assert_allclose(got.sel(pairs="different"), every[:, DIFFERENT].mean(axis=1), rtol=1e-5)
            np.testing.assert_allclose(got.sel(pairs="all"), every.mean(axis=(1, 2)), rtol=1e-4, atol=1e-6)


def test_decisive_null_equals_expected_null_of_spectra(model):
    found = nulls.measure_decisive(model, IDS[:1], ks=(10,))
    depth = cl.measure_depth(model, IDS[:1], ks=(10,), boundary="hidden_states")
    S, norm = (torch.tensor(depth[name].values[0]) for name in ("singular_values", "frobenius_norm"))
    spectrum = filled_spectrum(S, 32, norm)
    expected = expected_null(spectrum, 32, [10], ["released_trace"], seed=4)["released_trace"].value.mean().item()
    place = {"variant": "released_trace", "rule": "10", "pairs": "different"}
    assert found["null"].sel(place).item() == pytest.approx(expected, abs=5 * found["null_error"].sel(place).item())
    assert found["null_error"].sel(place).item() < 1e-4
    root = VARIANTS["released_trace"].null(spectrum, 32, 10).sqrt().mean().item()
    assert 0 < root - expected < 1e-3


def test_null_curves_agree_with_the_closed_form():
    curves = nulls.null_curves(widths=(32, 64), ks=(8,), decays=(0.0, 1.0), n_samples=40)
    assert curves["k"].sel(rule="0.1 d").values.tolist() == [3, 6]
    for name in ("mismatch", "released_norm", "released_trace", "basis_uu"):
        difference = (curves["simulated"] - curves["closed_form"]).sel(variant=name)
        assert abs(difference / curves["error"].sel(variant=name)).max() < 5, name


def test_ladder_of_ks_contains_the_chosen_k(model):
    assert nulls.ladder(4, 32) == (2, 4, 8)
    assert nulls.ladder(32, 32) == (16, 32)
    refused(ParameterError, "k is 1", nulls.ladder, 1, 32)
    refused(ParameterError, "at least 2", nulls.measure_nulls, model, IDS, ks=(1, 4))
    single = cl.wrap_model(llama(num_hidden_layers=1), name="single")
    for measure in (nulls.measure_nulls, nulls.measure_decisive):
        refused(ParameterError, "1 block", measure, single, IDS[:1], ks=(4,))
