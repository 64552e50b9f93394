"""Precision: triplets against full decompositions, errors against two measurements made by hand."""

import functools

import numpy as np
import pytest
import scipy.linalg
import torch
import xarray as xr
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ModelUnavailableError, ParameterError, UntrustworthyResultError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures import precision
from coupling_lib.measures.precision import chosen_precisions, measure_precision, measure_triplets

PROMPTS = [PARIS, "It was the best of times, it was the worst of"]
K = 6


@pytest.fixture(scope="module", autouse=True)
def _own_store(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUPLING_RESULTS", str(tmp_path_factory.mktemp("results")))
        yield


loaded = functools.cache(cl.load_model)


def decomposed(name: str, prompt: str, block: int):
    J = cl.trace(loaded("nano-neox", precision=name), prompt).jacobian(block).dense().double().numpy()
    return np.linalg.svd(J)


def test_measured_triplets_equal_full_decompositions():
    ds = measure_triplets(loaded("nano-neox"), PROMPTS, k=K)
    for prompt, block in ((0, 3), (1, 11)):
        U, S, Vt = decomposed("float32", PROMPTS[prompt], block)
        np.testing.assert_allclose(ds.singular_values[prompt, block], S[:K], rtol=1e-4)
        for found, wanted in ((ds.U, U[:, :K]), (ds.V, Vt[:K].T)):
            assert np.rad2deg(scipy.linalg.subspace_angles(found[prompt, block].values, wanted)).max() < 0.05
    depth = cl.measure_depth(loaded("nano-neox"), PROMPTS, ks=(K,))
    np.testing.assert_allclose(ds.normalized_miscoupling, depth.normalized_miscoupling.sel(k=K), rtol=1e-5, atol=1e-6)
    # Against the block's own forward pass in bfloat16 over the whole sequence, row by row.
    model = loaded("nano-neox", precision="bfloat16")
    call = cl.trace(model, PARIS).calls[4]
    leaf = call.input.clone().requires_grad_(True)
    out = call.replay(model.blocks.modules[4], leaf)[0, -1]
    rows = [torch.autograd.grad(value, leaf, retain_graph=True)[0][0, -1] for value in out]
    wanted = np.linalg.svd(torch.stack(rows).double().numpy() - np.eye(96))[1][:K]
    found = measure_triplets(model, [PARIS], k=K, arithmetic="bfloat16").singular_values[0, 4].values
    np.testing.assert_allclose(found, wanted, rtol=2 * 2.0**-8)


@pytest.mark.parametrize(("arithmetic", "epsilon"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_narrow_arithmetic_errs_by_its_own_rounding(arithmetic, epsilon):
    model = loaded("nano-neox", precision=arithmetic)
    wide, narrow = (measure_triplets(model, [PARIS], k=K, arithmetic=kind) for kind in ("float32", arithmetic))
    error = np.abs(narrow.singular_values / wide.singular_values - 1)
    assert narrow.singular_values.dtype == np.float32
    assert 0.02 * epsilon < float(error.median()) < 2 * epsilon


def test_errors_equal_differences_of_separate_models(tmp_path):
    measured = measure_precision("nano-neox", PROMPTS, ["nf4", "bfloat16"], k=K, n_vectors=1)
    for block in (0, 7):
        U, S, Vt = decomposed("float32", PARIS, block)
        narrow_U, narrow_S, narrow_Vt = decomposed("nf4", PARIS, block)
        chosen = measured.sel(precision="nf4", source="weights").isel(example=0, block=block)
        np.testing.assert_allclose(chosen.value_error, np.abs(narrow_S / S - 1)[:K], atol=2e-4)
        for side, pair in {"U": (U[:, :K], narrow_U[:, :K]), "V": (Vt[:K].T, narrow_Vt[:K].T)}.items():
            wanted = np.sort(np.rad2deg(scipy.linalg.subspace_angles(*pair)))
            np.testing.assert_allclose(chosen.angle.sel(side=side), wanted, atol=0.1)
    assert measured.precision.values.tolist() == ["float32", "nf4", "bfloat16"]
    itself = measured.sel(precision="float32", source="weights")
    assert float(itself.value_error.max()) == 0 and float(itself.coupling_error.max()) == 0
    assert float(itself.angle.max()) < 1e-3
    values = measured.normalized_miscoupling.isel(prompt=0)
    difference = np.abs(values.sel(precision="nf4") - values.sel(precision="float32"))
    error = measured.coupling_error.sel(precision="nf4", source="weights").isel(example=0)
    np.testing.assert_allclose(error, difference, atol=1e-5)
    errors = measured.angle.sel(source="weights").median(("side", "example", "block"))
    assert bool((errors.sel(precision="bfloat16") < 0.3 * errors.sel(precision="nf4")).all())
    assert bool((errors.sel(precision="nf4").isel(order=slice(-1)) < measured.random_angle[:-1]).all())
    assert measured.null.sel(precision="float32") == pytest.approx(np.sqrt(1 - 1 / K), abs=0.02)
    assert measured.attrs["precision"] == "float32, nf4, bfloat16" and measured.attrs["left_out"] == ""
    measured.to_netcdf(tmp_path / "precision.nc")
    with xr.open_dataset(tmp_path / "precision.nc") as back:
        xr.testing.assert_allclose(back, measured)


def test_failing_arithmetic_leaves_gaps(monkeypatch):
    honest = precision.measure_triplets

    def measure_triplets(model, prompts, k, token, arithmetic):
        if arithmetic == "float16":
            raise UntrustworthyResultError("overflow")
        return honest(model, prompts, k, token, arithmetic)

    monkeypatch.setattr(precision, "measure_triplets", measure_triplets)
    ds = measure_precision("nano-neox", PROMPTS[:1], ["nf4"], k=K)
    assert bool(ds.value_error.sel(source="float16 arithmetic").isnull().all())
    assert bool(ds.value_error.sel(source="bfloat16 arithmetic").notnull().all())

    def load(name, precision, **options):
        if precision == "int8":
            raise ModelUnavailableError("no memory")
        return cl.load_model(name, precision=precision, **options)

    monkeypatch.setattr(precision, "load_model", load)
    ds = measure_precision("nano-neox", PROMPTS, ["int8", "nf4"], k=K, n_vectors=1)
    assert ds.precision.values.tolist() == ["float32", "nf4"]
    assert ds.attrs["left_out"] == "int8 is left out: no memory"
    with monkeypatch.context() as patch:  # a later run, with that memory
        patch.setattr(precision, "load_model", cl.load_model)
        again = measure_precision("nano-neox", PROMPTS, ["int8", "nf4"], k=K, n_vectors=1)
    assert again.precision.values.tolist() == ["float32", "int8", "nf4"] and again.attrs["left_out"] == ""
    monkeypatch.setattr(precision, "in_few_bits", lambda module: False)
    ds = measure_precision("nano-neox", PROMPTS, ["nf4"], k=K, n_vectors=1)
    assert ds.precision.values.tolist() == ["float32"]
    assert ds.attrs["left_out"].startswith("nf4 is left out: bitsandbytes finds no linear layer to quantise")


def test_lists_of_precisions_are_read_or_refused():
    assert chosen_precisions(" nf4, float32 ,int8,nf4") == ["nf4", "int8"]
    message = "precisions is .*; give some of bfloat16, float16, nf4, fp4, int8"
    for text in ("", "float32", "nf4,int4"):
        refused(ParameterError, message, chosen_precisions, text)
    message, model = "arithmetic is 'float8'; it must be one of float32, bfloat16, float16", loaded("nano-neox")
    refused(ParameterError, message, measure_triplets, model, [PARIS], k=K, arithmetic="float8")


def test_precision_measurement_is_stored_and_read_again(monkeypatch, tmp_path):
    monkeypatch.setattr("coupling_lib.paths.RESULTS", tmp_path)
    measure = functools.partial(measure_precision, "nano-neox", precisions=["bfloat16"], n_vectors=1)
    first = measure([PARIS], k=4)

    def refuse(*arguments):
        raise AssertionError("measured again")

    monkeypatch.setattr(precision, "_measured", refuse)
    xr.testing.assert_identical(measure([PARIS], k=4), first)
    for prompts, k in (([PARIS], 5), (PROMPTS[1:], 4)):
        refused(AssertionError, "measured again", measure, prompts, k=k)
