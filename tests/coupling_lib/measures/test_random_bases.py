"""The null beside a measurement: its value, its standard error, and that it depends on no seed."""

import numpy as np
import pytest
import torch
import xarray as xr
from refusals import refused

import coupling_lib as cl
from coupling_lib.datasets.summaries import Chance, chance
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
    found = chance(cl.null_of(depth, NAME, n_samples=300))
    assert isinstance(found, Chance) and 0 < found.error < 1e-3
    assert 1 - found == pytest.approx(1 - float(found)) and f"{found:.2f}" == f"{float(found):.2f}"
    refused(ParameterError, "has no singular_values and frobenius_norm", cl.null_of, depth[[NAME]], NAME)
    refused(ParameterError, "variant 'coupling' is unknown", cl.null_of, depth, "coupling")


def test_null_of_each_network_is_that_alone(depth):
    each = [depth.isel(prompt=[0]), depth.isel(prompt=[1])]
    both = cl.null_of(xr.concat(each, xr.Variable("network", ["a", "b"]), join="override"), n_samples=300)
    for name, one in zip(both.network.values, each, strict=True):
        xr.testing.assert_identical(both.sel(network=name, drop=True), cl.null_of(one, n_samples=300))


def test_null_equals_expected_null_of_each_block(depth):
    null = cl.null_of(depth, "mismatch", n_samples=500, seed=2)
    assert dict(null.sizes) == {"k": 2, "block_1": 12} and null.k.values.tolist() == [5, 10]
    S, norm = (
        torch.tensor(depth[name].values, dtype=torch.float64).square().mean(0).sqrt()
        for name in ("singular_values", "frobenius_norm")
    )
    wanted = expected_null(filled_spectrum(S, 96, norm), 96, [5, 10], ["mismatch"], 500, seed=2)["mismatch"]
    for part in ("value", "error", "mean_square"):
        np.testing.assert_allclose(null[part], getattr(wanted, part), rtol=1e-12)
    note = "closed form of the mean square, where there is one, and up to 500 draws"
    assert null.attrs["draws"] == 500 and null.attrs["note"] == note
    some = cl.null_of(depth, [NAME, "basis_uu"], n_samples=50)
    assert some["value"].dims == ("variant", "k", "block_1") and some.variant.values.tolist() == [NAME, "basis_uu"]
    assert cl.null_of(depth, n_samples=50).variant.values.tolist() == list(cl.VARIANTS)
    both, one = cl.null_of(depth, NAME), cl.null_of(depth.sel(k=[10]), NAME)
    xr.testing.assert_allclose(both.sel(k=[10]), one)
    of_one = both.sel(k=10, drop=True).isel(block_1=3, drop=True)
    xr.testing.assert_allclose(cl.null_of(depth.sel(k=10), NAME).isel(block_1=3, drop=True), of_one)
    xr.testing.assert_allclose(
        cl.null_of(depth.sel(k=10).isel(block_1=3), NAME).drop_vars("block_1", errors="ignore"), of_one
    )
    refused(ParameterError, r"no dimension 'prompt'; choose one by a list", cl.null_of, depth.isel(prompt=0), NAME)
    draws = drawn_null(depth, NAME, n_samples=2000)
    assert draws.dims == ("sample", "k", "block_1")
    null = cl.null_of(depth, NAME)
    distance = draws.mean("sample") - null["value"]
    assert (abs(distance) < 4.5 * draws.std("sample") / 2000**0.5).all()


def test_null_spreads_have_known_values():
    all_pairs = null_spreads(10, 12)["all pairs"]
    assert all_pairs == pytest.approx(0.0022, abs=0.0003)
    assert pair_spread(10) == pytest.approx(0.0221, abs=0.0001)
    # Independent pairs would have this; pairs that share blocks and a decaying spectrum add some of it.
    assert 1 < all_pairs / (pair_spread(10) / 132**0.5) < 1.4
    assert null_spreads(1, 12) == null_spreads(10, 1) == {"all pairs": 0.0, "neighbours": 0.0}
    assert pair_spread(1) == 0.0


@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("near", [False, True])
def test_random_networks_scatter_by_the_null_spread(decay, near):
    d, k, blocks, draws = 48, 5, 4, 120
    generator = torch.Generator().manual_seed(1)
    S = torch.arange(1, d + 1, dtype=torch.float64) ** -decay
    means = []
    for _ in range(draws):
        U, V = (torch.stack([random_frame(d, d, generator, torch.float64) for _ in range(blocks)]) for _ in range(2))
        J = U * S @ V.mT
        svds = [torch.return_types.linalg_svd((u, S, v.mT)) for u, v in zip(U, V, strict=True)]
        pairs = [(a, b) for a in range(blocks) for b in range(blocks) if a != b and (not near or abs(a - b) == 1)]
        values = [cl.miscoupling(cl.coupling_matrix(J[a], svds[b], k), normalized=True) for a, b in pairs]
        means.append(float(torch.stack(values).mean()))
    spread = np.std(means, ddof=1)
    # Both are standard deviations of a hundred draws and more; a flat spectrum scatters by a little less.
    assert spread == pytest.approx(null_spreads(k, blocks)["neighbours" if near else "all pairs"], rel=0.3)
