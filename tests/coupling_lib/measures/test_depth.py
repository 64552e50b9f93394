"""Depth measurements against a straightforward re-implementation of the released method, on the embedded models."""

import itertools

import numpy as np
import pytest
import scipy.stats
import tiny
import torch
from reference import miscoupling
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures.depth import measure_models, other_models

KS = (10, 30, 50)
TEXTS = [PARIS, "It was the best of times", "The old man walked"]
# Every pair of blocks, by how far they lie apart.
APART = np.abs(np.subtract.outer(range(12), range(12)))


def released_method(hf, ids: torch.Tensor, ks: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The released method in a few slow lines: gradients of `hidden_states`, full SVDs, loops over pairs.

    Its last Jacobian includes the final norm; index [k, l, l'] is the Jacobian of l with the vectors of l'.
    """
    with torch.enable_grad():
        embedded = hf.get_input_embeddings()(ids).detach().requires_grad_(True)
        states = hf(inputs_embeds=embedded, use_cache=False, output_hidden_states=True).hidden_states
        jacobians = []
        for before, after in itertools.pairwise(states):
            rows = [torch.autograd.grad(value, before, retain_graph=True)[0][0, -1] for value in after[0, -1]]
            jacobians.append((torch.stack(rows) - torch.eye(len(rows))).double().numpy())
    L, decomposed = len(jacobians), [np.linalg.svd(J) for J in jacobians]
    out = {name: np.zeros((len(ks), L, L)) for name in ("released_norm", "released_trace", "normalized_miscoupling")}
    for (i, k), a, b in itertools.product(enumerate(ks), range(L), range(L)):
        s, (U, _, Vt) = decomposed[a][1][:k], decomposed[b]
        M = U[:, :k].T @ jacobians[a] @ Vt[:k].T
        distance = np.linalg.norm(np.abs(M) - np.diag(s))
        out["released_norm"][i, a, b] = distance / np.linalg.norm(s)
        out["released_trace"][i, a, b] = distance / s.sum()
        out["normalized_miscoupling"][i, a, b] = miscoupling(M)
    return out


@pytest.fixture(scope="module", params=["nano-neox", "nano-llama"])
def model(request):
    return cl.load_model(request.param)


@pytest.fixture(scope="module")
def ds(model):
    return cl.measure_depth(model, TEXTS, ks=(50, 30, 10, 5))


def test_depth_values_equal_the_released_method(model, ds, recwarn):
    ids = torch.tensor([model.tokenizer(PARIS)["input_ids"]])
    theirs = cl.measure_depth(model, [PARIS], ks=KS, boundary="hidden_states")
    for name, values in released_method(model.hf, ids, KS).items():
        found = ds[name].isel(prompt=0).sel(k=list(KS)).values
        np.testing.assert_allclose(found[:, :-1, :-1], values[:, :-1, :-1], rtol=2e-4, atol=1e-5)
        assert np.abs(found[:, -1] / values[:, -1] - 1).max() > 1e-2  # their last block includes the final norm
        np.testing.assert_allclose(theirs[name].isel(prompt=0), values, rtol=2e-4, atol=1e-5)
    assert cl.measure_depth(model, ["It was"]).k.values.tolist() == [10, 30, 50]
    assert not [one for one in recwarn if "left out" in str(one.message)]


def test_narrow_model_leaves_out_larger_default_ks(tmp_path):
    narrow, ids = cl.wrap_model(tiny.llama(), name="narrow"), [torch.tensor([[4, 9, 2, 40]])]
    message = r"narrow has width 32: of the default ks \(10, 30, 50\), 50 is left out"
    with pytest.warns(UserWarning, match=message) as caught:
        ds = cl.measure_depth(narrow, ids)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert ds.k.values.tolist() == [10, 30]
    explicit = cl.measure_depth(narrow, ids, ks=(10, 30))
    np.testing.assert_array_equal(ds.normalized_miscoupling, explicit.normalized_miscoupling)
    # Kept as what it is, so that the same numbers asked for are read again, and those that are too many are refused.
    with pytest.warns(UserWarning, match="50 is left out"):
        kept = cl.sweep(cl.measure_depth, narrow, ids, store=tmp_path)
    again = cl.sweep(cl.measure_depth, narrow, ids, store=tmp_path, ks=(10, 30))
    np.testing.assert_array_equal(kept.normalized_miscoupling, again.normalized_miscoupling)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    message = "k is 50; narrow has width 32, so it must be a whole number from 1 to"
    refused(ParameterError, message, cl.sweep, cl.measure_depth, narrow, ids, store=tmp_path, ks=(10, 30, 50))


def test_depth_dataset_has_matrix_and_distance_means(model, ds):
    assert ds.k.values.tolist() == [5, 10, 30, 50] and ds.prompt.values.tolist() == TEXTS
    assert float(ds.residual.max()) < 1e-5
    assert (ds.singular_values.diff("rank") <= 0).all()
    trace = cl.trace(model, PARIS)
    A = cl.coupling_matrix(trace.jacobian(7), trace.jacobian(3).svd(10), 10)
    found = ds.matrix.sel(block_1=7, block_2=3).values[:10, :10]
    np.testing.assert_allclose(found, A.numpy(), atol=1e-4 * float(A.abs().max()))
    values = ds.mismatch.sel(k=10).values[0]
    means = [values[apart == APART].mean() for apart in range(12)]
    np.testing.assert_allclose(ds.by_distance.sel(variant="mismatch", k=10)[0], means, atol=1e-6)


def test_summaries_are_means_with_intervals_over_prompts(ds):
    summary = cl.depth_summary(ds, "released_norm")
    assert dict(summary.sizes) == {"pairs": 2, "k": 4}
    values = 1 - ds.released_norm.sel(k=10).values
    means = values[:, APART > 0].mean(axis=1)
    chosen = summary.sel(pairs="all pairs", k=10)
    assert float(chosen["mean"]) == pytest.approx(np.mean(means), abs=1e-6)
    # Three prompts: Student's t.
    expected = scipy.stats.t.interval(0.95, 2, np.mean(means), scipy.stats.sem(means))
    assert (float(chosen.low), float(chosen.high)) == pytest.approx(expected, rel=1e-4)
    near = summary["mean"].sel(pairs="neighbours", k=10)
    assert float(near) == pytest.approx(values[:, APART == 1].mean(), abs=1e-6)
    alone = ds.isel(prompt=[0])
    summary = cl.depth_summary(alone, "mismatch")
    assert np.isfinite(summary["mean"]).all() and np.isnan(summary.low).all() and np.isnan(summary.high).all()
    refused(ParameterError, "the model has 1 block", cl.depth_summary, alone.isel(block_1=[0], block_2=[0]), "mismatch")


def test_other_models_are_measured_alike(monkeypatch, tmp_path):
    monkeypatch.setenv("COUPLING_RESULTS", str(tmp_path))
    found = measure_models(["nano-llama"], [PARIS], ks=(4,), seed=2)
    assert list(found) == ["nano-llama"] and list(found["nano-llama"]) == ["untrained", "trained"]
    for state, ds in found["nano-llama"].items():
        alone = cl.measure_depth(cl.load_model("nano-llama", untrained=state == "untrained", seed=2), [PARIS], ks=(4,))
        np.testing.assert_allclose(ds.mismatch, alone.mismatch, rtol=1e-5, atol=1e-6)
    assert other_models(" nano-llama,nano-neox,, nano-llama", besides="nano-neox") == ["nano-llama"]
    assert other_models("", besides="nano-neox") == []
    here, again = str(tmp_path), f"{tmp_path}/."
    assert other_models(f"{here}/, nano-llama", besides=here) == ["nano-llama"]
    assert other_models(f"{here},{again}", besides="nano-neox") == [here]


def test_models_too_narrow_or_shallow_are_refused(tmp_path):
    hf, ids = tiny.llama(hidden_size=8, num_attention_heads=2, intermediate_size=16), [torch.tensor([[4, 9]])]
    message = "k is 10; narrow has width 8, so it must be a whole number from 1 to 8"
    refused(ParameterError, message, cl.measure_depth, cl.wrap_model(hf, name="narrow"), ids)
    message = "k is 97; nano-llama has width 96.*or leave 'nano-llama', one of the other models, out of 'others'"
    refused(ParameterError, message, measure_models, ["nano-llama"], [PARIS], ks=(97,))
    tiny.llama(num_hidden_layers=1).save_pretrained(tmp_path / "one")
    message = r"/one has 1 block; coupling needs pairs .*; or leave '.*/one', one of the other models, out of 'others'"
    refused(ParameterError, message, measure_models, [str(tmp_path / "one")], ids, ks=(4,))


@pytest.mark.parametrize("boundary", ["block", "hidden_states"])
def test_products_give_the_same_as_formed_jacobians(model, boundary):
    formed, products = (
        cl.measure_depth(model, TEXTS[:2], ks=(5, 10), boundary=boundary, formed=formed) for formed in (True, False)
    )
    left_out = {"frobenius_norm", "isotropic", "released_norm_vju", "released_trace_vju"}
    shared = {name for name in formed.data_vars if name.startswith("shared_")}
    assert set(formed.data_vars) - set(products.data_vars) == left_out | shared and shared
    assert set(products.data_vars) - set(formed.data_vars) == {"frobenius_estimate"}
    for name in set(products.data_vars) & set(cl.VARIANTS) | {"singular_values"}:
        scale = float(np.abs(formed[name]).max())
        np.testing.assert_allclose(products[name], formed[name], rtol=0, atol=1e-4 * scale, err_msg=name)
    assert float(products.residual.max()) < 1e-5
    # A sign of each pair of vectors is free; here it is the same in both.
    assert float(np.abs(np.abs(products.matrix) - np.abs(formed.matrix)).max() / np.abs(formed.matrix).max()) < 1e-4
    # Sixteen probes know what lies outside of ten directions to a few per cent.
    np.testing.assert_allclose(products.frobenius_estimate, formed.frobenius_norm, rtol=0.05)
    chances = [cl.null_of(ds, "normalized_miscoupling") for ds in (formed, products)]
    assert float(abs(chances[0].value - chances[1].value).max()) < 1e-3
