"""Rival readings against loops written out, on made-up values and on an embedded model."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import xarray as xr

import coupling_lib as cl
from companion.tables import readings
from companion.tables.arrays import side_by_side
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.metrics.variants import VARIANTS

L, KS = 4, (3, 5)
OFF = [(i, j) for i in range(L) for j in range(L) if i != j]


def made_up(seed: int, n_prompts: int = 3) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    shape = (n_prompts, len(KS), L, L)
    dims = ("prompt", "k", "block_1", "block_2")
    values = {name: (dims, rng.uniform(0.2, 1.2, shape) * ~np.eye(L, dtype=bool)) for name in VARIANTS}
    apart = abs(np.subtract.outer(range(L), range(L)))
    means = [[one[..., apart == distance].mean(axis=-1) for distance in range(L)] for _, one in values.values()]
    values["by_distance"] = (("variant", "distance", "prompt", "k"), np.array(means))
    coords = {"k": list(KS), "block_1": range(L), "block_2": range(L), "variant": list(VARIANTS), "distance": range(L)}
    return xr.Dataset(values, coords)


def made_up_null(seed: int) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.8, 1, (len(VARIANTS), len(KS), L))
    parts = {"value": values, "error": values / 1000, "mean_square": values**2 + 0.001}
    dims = ("variant", "k", "block_1")
    coords = {"variant": list(VARIANTS), "k": list(KS), "block_1": range(L)}
    return xr.Dataset({name: (dims, part) for name, part in parts.items()}, coords)


@pytest.fixture(scope="module")
def measured():
    return {
        at: side_by_side(untrained=made_up(seed), trained=made_up(seed + 1))
        for at, seed in (("block", 0), ("hidden_states", 5))
    }


@pytest.fixture(scope="module")
def nulls():
    return side_by_side(untrained=made_up_null(10), trained=made_up_null(11))


def test_mean_readings_equal_explicit_loops(measured, nulls):
    means = readings.mean_readings(measured["block"], nulls)
    assert dict(means.sizes) == {"network": 2, "variant": 17, "k": 2}
    for name in ("miscoupling", "released_trace", "basis_uu"):
        values = measured["block"].sel(network="trained")[name].values[:, 1]
        wanted = np.mean([values[:, i, j].mean() for i, j in OFF])
        chance = nulls.sel(network="trained", variant=name, k=5)["value"].mean().item()
        chosen = means.sel(network="trained", variant=name, k=5)
        assert float(chosen["mean"]) == pytest.approx(wanted) and float(chosen["null"]) == pytest.approx(chance)
        assert float(chosen.null_error) == pytest.approx(chance / 1000)
        assert float(chosen.share) == pytest.approx((wanted - chance) / (0 - chance))
        assert chosen.low < chosen["mean"] < chosen.high and chosen.share_low < chosen.share < chosen.share_high
    means = readings.mean_readings(measured["block"].isel(prompt=[0]), nulls)
    assert bool(means["mean"].notnull().all()) and bool(means.low.isnull().all() and means.share_high.isnull().all())


def test_rank_agreement_is_mean_spearman_correlation(measured):
    ds = measured["block"].sel(network="trained")
    agreement = readings.rank_agreement(ds, k=3)
    rho = []
    for prompt in range(3):
        pairs = [[ds[name].values[prompt, 0, i, j] for i, j in OFF] for name in ("mismatch", "basis_vu")]
        ranks = [np.argsort(np.argsort(values)) for values in pairs]
        rho.append(np.corrcoef(*ranks)[0, 1])
    found = agreement.sel(variant="mismatch", other="basis_vu")
    assert float(found["mean"]) == pytest.approx(np.mean(rho))
    expected = scipy.stats.t.interval(0.95, 2, np.mean(rho), scipy.stats.sem(rho))
    assert (float(found.low), float(found.high)) == pytest.approx(expected)
    assert np.allclose(np.diag(agreement["mean"]), 1) and np.allclose(agreement["mean"], agreement["mean"].T)
    with pytest.raises(ParameterError, match="the model has 2 blocks"):
        readings.rank_agreement(ds.isel(block_1=[0, 1], block_2=[0, 1]), k=3)
    with pytest.raises(ParameterError, match="k is 4; measured were 3, 5"):
        readings.rank_agreement(ds, k=4)


def test_every_choice_equals_its_explicit_loop(measured, nulls):
    table = readings.compare_choices(measured, nulls, k=3).set_index(["point", "reading", "network"])
    trained = {at: both.sel(network="trained") for at, both in measured.items()}

    def mean(values: np.ndarray) -> float:
        return np.mean([values[:, i, j].mean() for i, j in OFF])

    m = trained["block"].released_norm.values[:, 0]
    tilde = trained["block"].normalized_miscoupling.values[:, 0]
    after = trained["hidden_states"].normalized_miscoupling.values[:, 0]
    wanted = {
        ("coupling", "−m"): mean(-m),
        ("coupling", "1 − m"): mean(1 - m),
        ("coupling", "1 − m²"): mean(1 - m**2),
        ("normaliser", "1-norm of s (trace)"): mean(1 - trained["block"].released_trace.values[:, 0]),
        ("entries of A", "signed"): mean(1 - trained["block"].mismatch.values[:, 0]),
        ("Jacobian", "its rank-K part"): mean(1 - trained["block"].released_norm_k.values[:, 0]),
        ("block with itself", "left out"): mean(1 - tilde),
        ("block with itself", "in the mean"): (1 - tilde).mean(),
        ("last block", "includes final norm"): mean(1 - after),
    }
    for key, value in wanted.items():
        assert table.loc[(*key, "trained"), "coupling"] == pytest.approx(value), key
    assert len(table) == 2 * len(readings.CHOICES)
    assert (table.low <= table.coupling).all() and (table.coupling <= table.high).all()


def test_chance_is_transformed_like_the_values(measured, nulls):
    table = readings.compare_choices(measured, nulls, k=3).set_index(["point", "reading", "network"])
    null = nulls.sel(network="untrained", k=3).mean("block_1")
    square = table.loc["coupling", "1 − m²", "untrained"]
    assert square.null == pytest.approx(1 - null.mean_square.sel(variant="released_norm").item())
    assert square.null_error == 0
    left_out = 1 - null["value"].sel(variant="normalized_miscoupling").item()
    error = null.error.sel(variant="normalized_miscoupling").item()
    for reading, value, its_error in (
        ("left out", left_out, error),
        ("in the mean", (left_out * (L - 1) + 1) / L, error * (L - 1) / L),
    ):
        row = table.loc["block with itself", reading, "untrained"]
        assert row.null == pytest.approx(value) and row.null_error == pytest.approx(its_error)


def test_coupling_by_block_averages_both_roles(measured):
    by_block = readings.coupling_by_block(measured, "mismatch", k=5)
    values = measured["hidden_states"].sel(network="trained").mismatch.values[:, 1]
    roles = [values[:, 2, j] for j in range(L) if j != 2] + [values[:, j, 2] for j in range(L) if j != 2]
    found = by_block.sel(boundary="hidden_states", network="trained", block=2)
    assert float(found["mean"]) == pytest.approx(1 - np.mean(roles))
    assert found.low <= found["mean"] <= found.high


@pytest.fixture(scope="module")
def real():
    model = cl.load_model("nano-llama")
    return {at: cl.measure_depth(model, [PARIS], ks=(5, 10), boundary=at) for at in ("block", "hidden_states")}


def test_joint_null_equals_null_of_each_reading(real):
    found = cl.null_of(real["block"], n_samples=200, seed=3)
    assert found.variant.values.tolist() == list(VARIANTS)
    for name in ("mismatch", "released_norm_k", "basis_vv"):
        alone = cl.null_of(real["block"], name, n_samples=200, seed=4)
        distance = (found.sel(variant=name)["value"] - alone["value"]) / np.hypot(found.error.max(), alone.error)
        assert abs(distance).max() < 5


def test_boundaries_differ_only_with_the_last_block(real):
    for name in VARIANTS:
        ours, theirs = (real[at][name].values for at in ("block", "hidden_states"))
        np.testing.assert_allclose(ours[..., :-1, :-1], theirs[..., :-1, :-1], rtol=1e-4, atol=1e-5)
    last = real["block"].mismatch.values[..., -1, :-1] - real["hidden_states"].mismatch.values[..., -1, :-1]
    assert np.abs(last).max() > 1e-3


def test_several_ks_include_k_within_the_width():
    assert readings.several_ks(10, 96) == (5, 10, 30, 50)
    assert readings.several_ks(2, 8) == (2, 5)


@pytest.mark.parametrize("k", [1, 97])
def test_k_out_of_range_is_refused(k):
    with pytest.raises(ParameterError, match=f"k is {k}; readings are compared at k from 2 to 96"):
        readings.several_ks(k, 96)
