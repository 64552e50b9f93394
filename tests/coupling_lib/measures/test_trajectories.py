"""Trajectory measurements against their formulas, written out."""

import types

import numpy as np
import pytest
import torch
import transformers
from families import named
from tiny import save_bert, save_llama, save_vit, tokenizer

import coupling_lib as cl
from coupling_lib.errors import UnsupportedModelError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures import trajectories
from coupling_lib.measures.trajectories import compare_trajectories, logit_lens_entropies
from coupling_lib.metrics.trajectory import principal_paths

BEST = "It was the best of times"


@pytest.fixture(scope="module")
def model():
    return cl.load_model("nano-llama")


@pytest.fixture(scope="module")
def measured(model):
    return cl.measure_trajectories(model, [PARIS, BEST])


@pytest.fixture(scope="module")
def x(model):
    return cl.trace(model, PARIS).hidden[:, -1].double().numpy()


def line_shape(states: np.ndarray) -> float:
    steps = np.diff(states, axis=0)
    return len(steps) / np.linalg.norm((steps / np.linalg.norm(steps, axis=1)[:, None]).sum(0))


def expo(states: np.ndarray) -> float:
    alpha = np.diff(np.log(np.linalg.norm(states, axis=1)))
    return alpha.var() / alpha.mean() ** 2


def test_trajectory_scores_and_windows_equal_their_formulas(measured, x, model):
    lengths = np.linalg.norm(np.diff(x, axis=0), axis=1)
    np.testing.assert_allclose(measured.line_shape_score[0], line_shape(x), rtol=1e-5)
    np.testing.assert_allclose(measured.expodistance[0], expo(x), rtol=1e-4)
    np.testing.assert_allclose(measured.equidistance[0], lengths.std() / lengths.mean(), rtol=1e-4)
    np.testing.assert_allclose(measured.norm[0], np.linalg.norm(x, axis=1), rtol=1e-5)
    np.testing.assert_allclose(measured.step_length[0], lengths, rtol=1e-5)
    assert dict(measured.norm.sizes) == {"prompt": 2, "level": 13}
    assert measured.attrs["window"] == 5 and measured.centre.values.tolist() == list(range(2, 10))
    for centre in (2, 6, 9):
        states = x[centre - 2 : centre + 4]
        assert len(states) == 6
        at = dict(prompt=measured.prompt[0], centre=centre)
        np.testing.assert_allclose(measured.window_line_shape_score.sel(at), line_shape(states), rtol=1e-4)
        np.testing.assert_allclose(measured.window_expodistance.sel(at), expo(states), rtol=1e-3)
    readings = measured.readings.isel(prompt=0)
    for name in ("line_shape_score", "expodistance", "equidistance"):
        assert float(readings.sel(states="default", reading=name)) == pytest.approx(float(measured[name][0]))
    with torch.no_grad():
        hidden = model.hf(**cl.trace(model, PARIS).inputs, output_hidden_states=True).hidden_states
    as_released = torch.stack(hidden)[:, 0, -1].double().numpy()
    found = readings.sel(states="normed end", reading="line_shape_score")
    np.testing.assert_allclose(found, line_shape(as_released), rtol=1e-4)
    np.testing.assert_allclose(readings.sel(states="without embedding", reading="expodistance"), expo(x[1:]), rtol=1e-4)


def test_paths_leave_out_outgrown_and_special_tokens(model, measured, tmp_path):
    trace = cl.trace(model, PARIS)
    assert measured.path_token.values.tolist() == trace.tokens
    np.testing.assert_allclose(measured.path, principal_paths(trace.hidden).coordinates, rtol=1e-6)
    traced = cl.trace(model, BEST)
    grown = traced.hidden.clone()
    grown[:, 0] *= 1000
    long = types.SimpleNamespace(model=traced.model, inputs=traced.inputs, n_tokens=traced.n_tokens, hidden=grown)
    long.tokens = traced.tokens
    path = trajectories._paths(long)["path"][1]
    assert bool(path[:, 0].isnan().all()) and bool(path[:, 1:].isfinite().all())
    wanted = principal_paths(traced.hidden[:, 1:], trajectories.COMPONENTS).coordinates
    torch.testing.assert_close(path[:, 1:], wanted)
    long.hidden, long.tokens, long.inputs = (
        grown[:, :3],
        traced.tokens[:3],
        {"input_ids": traced.inputs["input_ids"][:, :3]},
    )
    long.n_tokens = 3
    assert bool(trajectories._paths(long)["path"][1].isfinite().all())  # too few without the outgrown one
    save_llama(tmp_path)
    marked = tokenizer()
    marked.add_special_tokens({"bos_token": "I"})
    marked.save_pretrained(tmp_path)
    ds = cl.measure_trajectories(cl.load_model(tmp_path), ["It was the best"])
    assert "I" not in ds.path_token.values and "".join(ds.path_token.values) == "t was the best"
    save_llama(tmp_path / "two", with_tokenizer=False)
    ds = cl.measure_trajectories(cl.load_model(tmp_path / "two"), [torch.tensor([[3, 4]])])
    assert "path" not in ds and np.isfinite(ds.line_shape_score).all()


def test_entropies_without_an_unembedding_are_refused(tmp_path):
    save_bert(tmp_path)
    ds = cl.measure_trajectories(cl.load_model(tmp_path), [PARIS])
    assert np.isnan(ds.expodistance).all() and np.isfinite(ds.line_shape_score).all()
    assert "entropy" not in ds and "does not predict by its unembedding alone" in ds.attrs["entropy_missing"]
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    save_vit(tmp_path / "vit")
    with pytest.raises(UnsupportedModelError, match="ViTForImageClassification has no unembedding"):
        logit_lens_entropies(cl.trace(cl.load_model(tmp_path / "vit"), image))
    save_bert(tmp_path / "bert")
    with pytest.raises(UnsupportedModelError, match="BertForMaskedLM does not predict by its unembedding alone"):
        logit_lens_entropies(cl.trace(cl.load_model(tmp_path / "bert"), PARIS))
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64)
    model = cl.wrap_model(transformers.OPTForCausalLM(transformers.OPTConfig(**sizes, word_embed_proj_dim=16)))
    with pytest.raises(UnsupportedModelError, match=r"shape \(64, 16\) and does not read a stream of width 32"):
        logit_lens_entropies(cl.trace(model, torch.arange(8)[None]))


def test_training_straightens_paths():
    """The paper's claim about the line-shape score."""
    models = compare_trajectories(["nano-neox", "nano-llama"], [PARIS, BEST, "The old man walked slowly down the"])
    for networks in models.values():
        assert list(networks) == ["untrained", "trained"]
        assert float(networks["trained"].line_shape_score.max()) < float(networks["untrained"].line_shape_score.min())
    networks = compare_trajectories(["nano-neox"], [PARIS], revision="step316", seed=3)["nano-neox"]
    for role, dataset in networks.items():
        model = cl.load_model("nano-neox", revision="step316", untrained=role == "untrained", seed=3)
        np.testing.assert_allclose(dataset.norm, cl.measure_trajectories(model, [PARIS]).norm, rtol=1e-6)


def entropy(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


@pytest.mark.parametrize(("name", "token"), [("nano-neox", -1), ("nano-llama", 3)])
def test_entropies_are_those_of_the_unembedded_states(name, token):
    model = cl.load_model(name)
    trace = cl.trace(model, PARIS)
    found = logit_lens_entropies(trace, token)
    W = model.hf.get_output_embeddings().weight.double().numpy()
    x = trace.hidden[:, token]
    norm = model.hf.gpt_neox.final_layer_norm if name == "nano-neox" else model.hf.model.norm
    np.testing.assert_allclose(found["entropy"].numpy(), entropy(x.double().numpy() @ W.T), rtol=1e-4)
    np.testing.assert_allclose(found["entropy_normed"].numpy(), entropy(norm(x).double().numpy() @ W.T), rtol=1e-4)
    own = model.hf(**trace.inputs).logits[0, token].double().numpy()
    assert float(found["entropy_normed"][-1]) == pytest.approx(float(entropy(own)), rel=1e-4)


@pytest.mark.parametrize("name", ["phi", "opt", "mpt-alibi", "cohere", "gemma2-window", "gpt2"])
def test_entropies_exist_for_every_kind_of_decoder(name):
    model = cl.wrap_model(named(name).build())
    found = logit_lens_entropies(cl.trace(model, torch.arange(8)[None]))
    for values in found.values():
        assert values.shape == (4,) and ((values >= 0) & (values <= np.log(64) + 1e-6)).all()
