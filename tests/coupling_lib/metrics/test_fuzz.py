"""The mathematics under whatever it is given: properties that hold for all matrices, and an end in one clear line."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import orthogonal
from random_numbers import normal, seeded
from refusals import refused

import coupling_lib as cl
from coupling_lib.datasets.summaries import interval
from coupling_lib.errors import CouplingError
from coupling_lib.metrics.coupling import coupling_matrices
from coupling_lib.metrics.variants import locality
from coupling_lib.svd.triplets import top_triplets_stacked

SCORES = (cl.line_shape_score, cl.expodistance, cl.equidistance)
# The same examples each time, in any order of tests and at any speed of the machine.
fuzz = settings(max_examples=25, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**32)
SCALES = st.floats(1e-6, 1e6)


def close(a: Any, b: Any) -> None:
    wide = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(*wide, rtol=1e-8, atol=1e-8)


@fuzz
@given(seed=SEEDS, k=st.integers(2, 7), scale=SCALES)
def test_miscoupling_is_bounded_and_scales_linearly(seed, k, scale):
    A = normal(seed, k, k)
    share = float(cl.miscoupling(A, normalized=True))
    assert 0 <= share <= 1
    close(cl.miscoupling(scale * A, normalized=True), share)
    close(cl.miscoupling(scale * A) / scale, cl.miscoupling(A))
    close(cl.miscoupling(A.mT), cl.miscoupling(A))


@fuzz
@given(seed=SEEDS, k=st.integers(1, 7), scale=SCALES, norm=st.sampled_from([1, 2, 3.5, math.inf, "trace"]))
def test_mismatch_is_invariant_to_signs_and_scale(seed, k, scale, norm):
    A, s, flip = normal(seed, k, k), normal(seed + 1, k).abs() + 0.1, normal(seed + 2, k).sign()
    for absolute in (False, True):
        value = cl.mismatch(A, s, absolute, norm)
        assert float(value) >= 0
        close(cl.mismatch(flip[:, None] * A * flip, s, absolute, norm), value)
        close(cl.mismatch(scale * A, scale * s, absolute, norm), value)
        close(cl.mismatch(A.mT, s, absolute, norm), value)
    close(cl.miscoupling(flip[:, None] * A * flip), cl.miscoupling(A))
    close(cl.mismatch(torch.diag(s), s, norm=norm), 0.0)


@fuzz
@given(seed=SEEDS, d=st.integers(2, 8), data=st.data())
def test_blocks_with_shared_singular_vectors_couple_perfectly(seed, d, data):
    k = data.draw(st.integers(2, d))
    U, V = orthogonal(d, seed), orthogonal(d, seed + 1)
    spectra = [(normal(seed + n, d).abs() + 0.1).sort(descending=True).values for n in (2, 3)]
    J1, J2 = (U @ torch.diag(s) @ V.mT for s in spectra)
    A = cl.coupling_matrix(J1, SimpleNamespace(U=U, Vh=V.mT), k)
    close(A, torch.diag(spectra[0][:k]))
    assert float(cl.miscoupling(A, normalized=True)) < 1e-8
    close(coupling_matrices(torch.stack([J1, J2]), U[None, :, :k], V.mT[None, :k])[0, 0], A)


@fuzz
@given(seed=SEEDS, blocks=st.integers(2, 4), d=st.integers(3, 6), scale=SCALES)
def test_variants_permute_with_blocks_and_ignore_scale(seed, blocks, d, scale):
    J, order, k = normal(seed, blocks, d, d), torch.randperm(blocks, generator=seeded(seed)), 2
    U, S, Vh = torch.linalg.svd(J)
    values = cl.measure_variants(J, U, S, Vh, (k,))
    turned = cl.measure_variants(*(part[order] for part in (J, U, S, Vh)), (k,))
    scaled = cl.measure_variants(scale * J, U, scale * S, Vh, (k,))
    assert set(values) == set(cl.VARIANTS)
    for name, value in values.items():
        assert bool(value.isfinite().all()) and float(value.min()) >= -1e-12
        close(turned[name], value[:, order][:, :, order])
        close(scaled[name] / (scale if name == "miscoupling" else 1), value)
    close(values["normalized_miscoupling"].diagonal(dim1=1, dim2=2), torch.zeros(1, blocks, dtype=torch.float64))
    by_distance = locality(values["mismatch"])
    weights = torch.tensor([blocks, *(2 * (blocks - n) for n in range(1, blocks))], dtype=torch.float64)
    close((by_distance * weights).sum() / blocks**2, values["mismatch"].mean())


@fuzz
@given(seed=SEEDS, levels=st.integers(3, 9), d=st.integers(2, 6), scale=SCALES)
def test_path_scores_are_invariant_to_scale_and_rotation(seed, levels, d, scale):
    x, turn = normal(seed, levels, d), orthogonal(d, seed + 1)
    for score in SCORES:
        value = score(x)
        assert float(value) >= (1 - 1e-12 if score is cl.line_shape_score else 0)
        close(score(scale * x @ turn) / value, 1.0)
    straight = torch.arange(1, levels + 1)[:, None] * normal(seed + 2, d)
    close(cl.line_shape_score(straight), 1.0)
    close(cl.equidistance(straight), 0.0)


@fuzz
@given(seed=SEEDS, rows=st.integers(1, 9), columns=st.integers(1, 9), scale=SCALES, data=st.data())
def test_triplets_equal_lapack_and_scale_with_matrix(seed, rows, columns, scale, data):
    J = normal(seed, rows, columns)
    k = data.draw(st.integers(1, min(rows, columns)))
    found = cl.top_triplets(J, k)
    close(found.S, torch.linalg.svdvals(J)[:k])
    close(cl.top_triplets(scale * J, k).S / scale, found.S)
    close(cl.top_triplets(J.mT, k).S, found.S)
    close(found.U.mT @ found.U, torch.eye(k, dtype=torch.float64))
    assert float(found.residual.max()) < 1e-10


@fuzz
@given(seed=SEEDS, prompts=st.integers(2, 12), shift=st.floats(-1e3, 1e3))
def test_interval_contains_its_mean_and_shifts_with_values(seed, prompts, shift):
    values = xr.DataArray(normal(seed, prompts, 2).numpy(), dims=("prompt", "k"))
    found, moved = interval(values), interval(values + shift)
    assert bool((found["low"] <= found["mean"]).all()) and bool((found["mean"] <= found["high"]).all())
    for name in ("mean", "low", "high"):
        np.testing.assert_allclose(moved[name], found[name] + shift, rtol=1e-8, atol=1e-8)


ENTRIES = (0.0, 1.0, -1.0, 1e-30, 1e30, 1e-300, 1e300, math.nan, math.inf, -math.inf)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Any tensor of up to four short dimensions, most of them of one size; sometimes something else."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.sampled_from([None, 1.5, "A", [[1.0]], np.eye(2)]))
    side = st.sampled_from([0, 1, 2, 3, 3, 3, 3])
    x = normal(draw(SEEDS), *draw(st.lists(side, max_size=4)))
    if x.numel() and draw(st.booleans()):
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = draw(st.sampled_from(ENTRIES))
    if draw(st.integers(0, 9)) == 0:
        x = torch.full_like(x, draw(st.sampled_from(ENTRIES)))
    return x.nan_to_num(0).to(torch.int64) if (dtype := draw(st.sampled_from(DTYPES))) == torch.int64 else x.to(dtype)


def of_vectors(J: Any, U: Any, Vh: Any, k: Any) -> torch.Tensor:
    return cl.coupling_matrix(J, SimpleNamespace(U=U, Vh=Vh), k)


ANY_K = st.sampled_from([1, 2, 3, 0, -1, 2.0, True, None, "2", np.int64(2)])
ANY_KS = st.sampled_from([(1,), (2, 3), (), 2, (2.5,), None, "2"])
ANY_NAMES = st.sampled_from([None, ["mismatch"], ["nothing"], "mismatch", 3])
ANY_NORM = st.sampled_from([2, 1, "trace", "fro", 0, -1, math.nan, math.inf, None])
CALLS = {
    "miscoupling": (cl.miscoupling, (tensors(), st.booleans())),
    "mismatch": (cl.mismatch, (tensors(), tensors(), st.booleans(), ANY_NORM)),
    "coupling_matrix": (of_vectors, (tensors(), tensors(), tensors(), ANY_K)),
    "coupling_matrices": (coupling_matrices, (tensors(), tensors(), tensors())),
    "measure_variants": (cl.measure_variants, (*(tensors() for _ in range(4)), ANY_KS, ANY_NAMES)),
    "locality": (locality, (tensors(),)),
    "line_shape_score": (cl.line_shape_score, (tensors(),)),
    "expodistance": (cl.expodistance, (tensors(), st.sampled_from([0, 1, 2, "1"]))),
    "equidistance": (cl.equidistance, (tensors(), st.sampled_from([0, 1, -1, None]))),
    "top_triplets": (cl.top_triplets, (tensors(), ANY_K)),
    "top_triplets_stacked": (top_triplets_stacked, (tensors(), ANY_K)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_any_input_gives_finite_numbers_or_refusal(name):
    (function, strategies), refusals = CALLS[name], []

    @settings(fuzz, max_examples=60)
    @given(st.tuples(*strategies))
    def run(arguments: tuple) -> None:
        try:
            result = function(*arguments)
        except CouplingError as error:
            refusals.append(str(error))
        else:
            parts = result.values() if isinstance(result, dict) else [result] if torch.is_tensor(result) else result
            assert all(bool(part.isfinite().all()) for part in parts)

    run()
    assert refusals and [line for line in refusals if len(line.splitlines()) != 1] == []


@pytest.mark.parametrize("values", [xr.DataArray([1.0], dims="k"), xr.DataArray(["a"], dims="prompt")])
def test_values_without_prompts_or_numbers_have_no_interval(values):
    refused(CouplingError, "expected numbers with one or more along 'prompt'", interval, values)
