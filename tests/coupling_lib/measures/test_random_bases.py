"""The null beside a measurement: its value, its standard error, and that it depends on no seed."""

import itertools

import numpy as np
import pytest
import torch
import xarray as xr
from random_numbers import seeded
from refusals import refused

import coupling_lib as cl
from coupling_lib.datasets.summaries import chance
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures.random_bases import drawn_null, null_spreads, pair_spread
from coupling_lib.metrics.expected_null import expected_null
from coupling_lib.metrics.nulls import filled_spectrum, gaussian_miscoupling
from coupling_lib.metrics.subspaces import random_frame

NAME = "normalized_miscoupling"


@pytest.fixture(scope="module")
def depth():
    return cl.measure_depth(cl.load_model("nano-neox"), [PARIS, "It was the best of times"], ks=(5, 10))


def test_null_varies_with_seed_within_its_error(depth):
    found = [chance(cl.null_of(depth.sel(k=[10]), NAME, seed=seed)) for seed in range(12)]
    values = np.array([1 - one for one in found])
    assert 0.0508 < values.min() and values.max() < 0.0530
    # Of 50 draws twelve seeds have a standard deviation of 0.003; of the expectation it is the error that is stated.
    assert values.std(ddof=1) < 2 * np.mean([one.error for one in found]) < 1e-4
    assert values.mean() == pytest.approx(1 - gaussian_miscoupling(10), abs=2e-4)
    refused(ParameterError, "has no singular_values and frobenius_norm", cl.null_of, depth[[NAME]], NAME)
    refused(ParameterError, "variant 'coupling' is unknown", cl.null_of, depth, "coupling")


def test_null_of_each_network_is_that_alone(depth):
    each = [depth.isel(prompt=[0]), depth.isel(prompt=[1])]
    both = cl.null_of(xr.concat(each, xr.Variable("network", ["a", "b"]), join="override"), n_samples=300)
    for name, one in zip(both.network.values, each, strict=True):
        xr.testing.assert_identical(both.sel(network=name, drop=True), cl.null_of(one, n_samples=300))


def test_null_equals_expected_null_of_each_block(depth):
    null = cl.null_of(depth, "mismatch", n_samples=500, seed=2)
    assert null.k.values.tolist() == [5, 10]
    parts = (torch.tensor(depth[name].values).double() for name in ("singular_values", "frobenius_norm"))
    S, norm = (part.square().mean(0).sqrt() for part in parts)
    wanted = expected_null(filled_spectrum(S, 96, norm), 96, [5, 10], ["mismatch"], 500, seed=2)["mismatch"]
    for part in ("value", "error", "mean_square"):
        np.testing.assert_allclose(null[part], getattr(wanted, part), rtol=1e-12)
    assert null.attrs["draws"] == 500
    assert null.attrs["note"] == "closed form of the mean square, where there is one, and up to 500 draws"


def test_null_of_selected_parts_is_that_of_all(depth):
    some = cl.null_of(depth, [NAME, "basis_uu"], n_samples=50)
    assert some["value"].dims == ("variant", "k", "block_1") and some.variant.values.tolist() == [NAME, "basis_uu"]
    assert cl.null_of(depth, n_samples=50).variant.values.tolist() == list(cl.VARIANTS)
    chosen, alone = some.sel(variant="basis_uu"), cl.null_of(depth, "basis_uu", n_samples=50, seed=4)
    assert (abs(chosen["value"] - alone["value"]) < 5 * np.hypot(chosen.error, alone.error)).all()
    both, at_ten = cl.null_of(depth, NAME), depth.sel(k=10)
    xr.testing.assert_allclose(both.sel(k=[10]), cl.null_of(depth.sel(k=[10]), NAME))
    of_one = both.sel(k=10, drop=True).isel(block_1=3, drop=True)
    xr.testing.assert_allclose(cl.null_of(at_ten, NAME).isel(block_1=3, drop=True), of_one)
    xr.testing.assert_allclose(cl.null_of(at_ten.isel(block_1=3), NAME).drop_vars("block_1", errors="ignore"), of_one)
    refused(ParameterError, r"no dimension 'prompt'; choose one by a list", cl.null_of, depth.isel(prompt=0), NAME)
    draws = drawn_null(depth, NAME, n_samples=2000)
    assert draws.dims == ("sample", "k", "block_1")
    assert (abs(draws.mean("sample") - both["value"]) < 4.5 * draws.std("sample") / 2000**0.5).all()


def test_null_spreads_have_known_values():
    all_pairs = null_spreads(10, 12)["all pairs"]
    assert all_pairs == pytest.approx(0.0022, abs=0.0003)
    assert pair_spread(10) == pytest.approx(0.0221, abs=0.0001)
    # Independent pairs would have this; pairs that share blocks and a decaying spectrum add some of it.
    assert 1 < all_pairs / (pair_spread(10) / 132**0.5) < 1.4
    assert null_spreads(1, 12) == null_spreads(10, 1) == {"all pairs": 0.0, "neighbours": 0.0}
    assert pair_spread(1) == 0.0


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_random_networks_scatter_by_the_null_spread(decay):
    d, k, blocks, generator, values = 48, 5, 4, seeded(1), []
    S, pairs = torch.arange(1, d + 1, dtype=torch.float64) ** -decay, list(itertools.permutations(range(blocks), 2))
    for _ in range(120):
        U, V = (torch.stack([random_frame(d, d, generator, torch.float64) for _ in range(blocks)]) for _ in range(2))
        A = torch.stack([U[b, :, :k].T @ (U[a] * S) @ V[a].T @ V[b, :, :k] for a, b in pairs])
        values.append(cl.miscoupling(A, normalized=True))
    all_pairs = torch.stack(values)
    near = all_pairs[:, [abs(a - b) == 1 for a, b in pairs]]
    found = {"all pairs": float(all_pairs.mean(1).std()), "neighbours": float(near.mean(1).std())}
    # Both are standard deviations of a hundred draws and more; a flat spectrum scatters by a little less.
    assert found == pytest.approx(null_spreads(k, blocks), rel=0.3)
