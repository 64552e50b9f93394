"""Rival readings against loops written out, on made-up values."""

import numpy as np
import pytest
import scipy.stats
import xarray as xr
from refusals import refused

from companion.tables import readings
from companion.tables.arrays import side_by_side
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.variants import VARIANTS

L, KS = 4, (3, 5)
OFF = [(i, j) for i in range(L) for j in range(L) if i != j]
COORDS = {"variant": list(VARIANTS), "k": list(KS), "block_1": range(L)}


def mean(values: np.ndarray) -> float:
    """Average over prompts and pairs of different blocks, one by one."""
    return np.mean([values[:, i, j].mean() for i, j in OFF])


def made_up(seed: int, n_prompts: int = 3) -> xr.Dataset:
    rng, dims = np.random.default_rng(seed), ("prompt", "k", "block_1", "block_2")
    off = ~np.eye(L, dtype=bool)
    values = {name: (dims, rng.uniform(0.2, 1.2, (n_prompts, len(KS), L, L)) * off) for name in VARIANTS}
    apart = abs(np.subtract.outer(range(L), range(L)))
    means = [[one[..., apart == distance].mean(axis=-1) for distance in range(L)] for _, one in values.values()]
    values["by_distance"] = (("variant", "distance", "prompt", "k"), np.array(means))
    return xr.Dataset(values, COORDS | {"block_2": range(L), "distance": range(L)})


def made_up_null(seed: int) -> xr.Dataset:
    values = np.random.default_rng(seed).uniform(0.8, 1, (len(VARIANTS), len(KS), L))
    parts = {"value": values, "error": values / 1000, "mean_square": values**2 + 0.001}
    return xr.Dataset({name: (tuple(COORDS), part) for name, part in parts.items()}, COORDS)


MEASURED = {
    at: side_by_side(untrained=made_up(seed), trained=made_up(seed + 1))
    for at, seed in (("block", 0), ("hidden_states", 5))
}
TRAINED = {at: both.sel(network="trained") for at, both in MEASURED.items()}
NULLS = side_by_side(untrained=made_up_null(10), trained=made_up_null(11))


def test_mean_readings_equal_explicit_loops():
    means = readings.mean_readings(MEASURED["block"], NULLS)
    assert dict(means.sizes) == {"network": 2, "variant": 17, "k": 2}
    for name in ("miscoupling", "released_trace", "basis_uu"):
        wanted = mean(TRAINED["block"][name].values[:, 1])
        chance = NULLS.sel(network="trained", variant=name, k=5)["value"].mean().item()
        chosen = means.sel(network="trained", variant=name, k=5)
        found = [chosen[part].item() for part in ("mean", "null", "null_error", "share")]
        assert found == pytest.approx([wanted, chance, chance / 1000, (wanted - chance) / (0 - chance)])
        assert chosen.low < chosen["mean"] < chosen.high and chosen.share_low < chosen.share < chosen.share_high
    means = readings.mean_readings(MEASURED["block"].isel(prompt=[0]), NULLS)
    assert bool(means["mean"].notnull().all()) and bool(means.low.isnull().all() and means.share_high.isnull().all())


def test_rank_agreement_is_mean_spearman_correlation():
    ds = TRAINED["block"]
    agreement = readings.rank_agreement(ds, k=3)
    rho = []
    for prompt in range(3):
        pairs = [[ds[name].values[prompt, 0, i, j] for i, j in OFF] for name in ("mismatch", "basis_vu")]
        rho.append(np.corrcoef(*(np.argsort(np.argsort(values)) for values in pairs))[0, 1])
    found = agreement.sel(variant="mismatch", other="basis_vu")
    expected = (np.mean(rho), *scipy.stats.t.interval(0.95, 2, np.mean(rho), scipy.stats.sem(rho)))
    assert (float(found["mean"]), float(found.low), float(found.high)) == pytest.approx(expected)
    assert np.allclose(np.diag(agreement["mean"]), 1) and np.allclose(agreement["mean"], agreement["mean"].T)
    two = ds.isel(block_1=[0, 1], block_2=[0, 1])
    refused(ParameterError, "the model has 2 blocks", readings.rank_agreement, two, k=3)
    refused(ParameterError, "k is 4; measured were 3, 5", readings.rank_agreement, ds, k=4)


def test_every_choice_equals_its_explicit_loop():
    table = readings.compare_choices(MEASURED, NULLS, k=3).set_index(["point", "reading", "network"])
    at = {name: TRAINED["block"][name].values[:, 0] for name in VARIANTS}
    m, tilde = at["released_norm"], at["normalized_miscoupling"]
    wanted = {
        ("coupling", "−m"): mean(-m),
        ("coupling", "1 − m"): mean(1 - m),
        ("coupling", "1 − m²"): mean(1 - m**2),
        ("normaliser", "1-norm of s (trace)"): mean(1 - at["released_trace"]),
        ("entries of A", "signed"): mean(1 - at["mismatch"]),
        ("Jacobian", "its rank-K part"): mean(1 - at["released_norm_k"]),
        ("block with itself", "left out"): mean(1 - tilde),
        ("block with itself", "in the mean"): (1 - tilde).mean(),
        ("last block", "includes final norm"): mean(1 - TRAINED["hidden_states"].normalized_miscoupling.values[:, 0]),
    }
    assert {key: table.loc[(*key, "trained"), "coupling"] for key in wanted} == pytest.approx(wanted)
    assert len(table) == 2 * len(readings.CHOICES)
    assert (table.low <= table.coupling).all() and (table.coupling <= table.high).all()
    # Chance is transformed like the values.
    null = NULLS.sel(network="untrained", k=3).mean("block_1")
    tilde = null.sel(variant="normalized_miscoupling")
    left_out, error = 1 - tilde["value"].item(), tilde.error.item()
    chance = {
        ("coupling", "1 − m²"): (1 - null.mean_square.sel(variant="released_norm").item(), 0),
        ("block with itself", "left out"): (left_out, error),
        ("block with itself", "in the mean"): ((left_out * (L - 1) + 1) / L, error * (L - 1) / L),
    }
    for key, expected in chance.items():
        assert table.loc[(*key, "untrained"), ["null", "null_error"]].tolist() == pytest.approx(expected), key


def test_coupling_by_block_averages_both_roles():
    values = TRAINED["hidden_states"].mismatch.values[:, 1]
    roles = [values[:, i, j] for i, j in OFF if 2 in (i, j)]
    by_block = readings.coupling_by_block(MEASURED, "mismatch", k=5)
    found = by_block.sel(boundary="hidden_states", network="trained", block=2)
    assert float(found["mean"]) == pytest.approx(1 - np.mean(roles)) and found.low <= found["mean"] <= found.high


def test_several_ks_include_k_within_the_width():
    assert (readings.several_ks(10, 96), readings.several_ks(2, 8)) == ((5, 10, 30, 50), (2, 5))
    for k in (1, 97):
        refused(ParameterError, f"k is {k}; readings are compared at k from 2 to 96", readings.several_ks, k, 96)
