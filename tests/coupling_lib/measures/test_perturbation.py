"""Perturbations against the model run on changed embeddings, and against a derivative taken by differences."""

import functools

import numpy as np
import pytest
import torch
from random_numbers import seeded
from refusals import refused
from tiny import save_bert, save_llama, save_vit

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures import common
from coupling_lib.measures.perturbation import perturbed_states

PROMPTS = [PARIS, "It was the best of times"]
close = torch.testing.assert_close


@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
@pytest.mark.parametrize("position", [3, 17])
def test_perturbed_states_equal_model_on_changed_embeddings(monkeypatch, name, position):
    model = cl.load_model(name)
    trace = cl.trace(model, PARIS)
    added = torch.randn(5, trace.d_model, generator=seeded(0))
    states, moved = perturbed_states(trace, position, added)
    embedded = model.hf.get_input_embeddings()(trace.inputs["input_ids"]).repeat(5, 1, 1)
    embedded[:, position] += added
    hidden = model.hf(inputs_embeds=embedded, output_hidden_states=True).hidden_states
    *inner, normed = (level[:, position] for level in hidden)  # the last entry is behind the final norm
    close(states[:, :-1], torch.stack(inner, dim=1), rtol=1e-4, atol=1e-4)
    close(trace.final_norm(states[:, -1]), normed, rtol=1e-3, atol=1e-3)
    assert moved < 1e-5
    unmoved, _ = perturbed_states(trace, position, torch.zeros(2, trace.d_model))
    close(unmoved, trace.hidden[:, position].expand(2, -1, -1), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr("coupling_lib.measures.perturbation._BATCH_BYTES", 1)
    close(perturbed_states(trace, position, added)[0], states, rtol=1e-4, atol=1e-4)  # one by one


def test_noise_of_each_kind_has_its_length(model):
    trace = cl.trace(model, PARIS)
    x, normal = trace.hidden[0, -1], torch.randn(4, 96, generator=common.generator_for(PARIS, 0))
    sizes = {None: x.norm() / normal.norm(dim=-1, keepdim=True), "gaussian": x.norm() / 96**0.5, "absolute": 1.0}
    for kind, size in sizes.items():
        one = cl.measure_perturbation(model, [PARIS], noise=(0.5,), draws=4, kind=kind)
        wanted = torch.cosine_similarity(x + 0.5 * size * normal, x.expand(4, -1), dim=-1)
        np.testing.assert_allclose(one.cosine.sel(carrier="network", level=0).squeeze(), wanted, rtol=1e-4)
        assert one.attrs.get("kind") == kind
    message = "kind is 'uniform'; it must be None, 'gaussian' or 'absolute'"
    refused(ParameterError, message, cl.measure_perturbation, model, [PARIS], kind="uniform")


def test_small_noise_is_carried_linearly(model):
    measure = functools.partial(cl.measure_perturbation, model, noise=(1e-3, 0.1, 1.0), draws=3)
    ds = measure(PROMPTS)
    small = ds.sel(noise=1e-3)
    assert float(small.linear_error.max()) < 0.01
    network, linear = small.amplification.sel(carrier="network"), small.amplification.sel(carrier="linear")
    np.testing.assert_allclose(network, linear, rtol=0.01)
    growing = ds.linear_error.isel(level=-1).mean(("prompt", "draw"))
    assert (growing.diff("noise") > 0).all() and float(growing[-1]) > 0.3
    start = ds.cosine.isel(level=0)
    assert (abs(start - start.sel(carrier="network")) < 1e-5).all()
    np.testing.assert_allclose(ds.amplification.isel(level=0), 1, rtol=1e-4)
    assert float(ds.earlier_moved.max()) < 1e-5
    with pytest.warns(UserWarning, match=r"noise \[1e-07\] of the embedding is rounded by more than 1%"):
        rounded = cl.measure_perturbation(model, PROMPTS[:1], noise=(1e-7, 0.1), draws=1)
    assert rounded.amplification.sel(carrier="network").isel(noise=0, level=-1).min() > 2 * float(linear.max())
    refused(UntrustworthyResultError, "length of what .* NaN or inf", cl.measure_perturbation, model, PARIS, noise=1e30)
    assert not np.allclose(measure(PROMPTS[1:], seed=1).cosine[0], ds.cosine[1])


def test_linear_changes_are_products_of_the_jacobians(model):
    many = cl.measure_perturbation(model, PROMPTS[:1], noise=(0.5,), draws=400)
    lengths, trace, P = many.amplification.sel(carrier="linear")[0, 0], cl.trace(model, PROMPTS[0]), np.eye(96)
    for level in range(1, 4):
        P = P + trace.jacobian(level - 1).dense().double().numpy() @ P
        largest, smallest = np.linalg.svd(P)[1][[0, -1]]
        assert (lengths[:, level] <= largest).all() and (lengths[:, level] >= smallest).all()
    # A random direction of length 1 comes out with mean square norm_F(P)^2 / d.
    squares = lengths[:, 3].values ** 2
    assert squares.mean() == pytest.approx((P**2).sum() / 96, abs=4 * float(squares.std()) / 20)


@pytest.mark.parametrize(("save", "causal"), [(save_llama, True), (save_bert, False), (save_vit, False)])
def test_other_tokens_move_where_attention_looks_both_ways(save, causal, tmp_path):
    save(tmp_path / "model")
    model = cl.load_model(tmp_path / "model")
    found = cl.measure_perturbation(model, cl.inputs_for(model, ["It was"]), noise=(0.5,), draws=1)
    assert (float(found.earlier_moved[0]) < 1e-5) == causal
