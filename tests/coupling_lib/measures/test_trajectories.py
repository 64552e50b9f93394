"""Trajectory measurements against their formulas, written out."""

import functools
import types

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from families import named
from refusals import refused
from tiny import save_bert, save_llama, save_vit, tokenizer

import coupling_lib as cl
from coupling_lib.errors import UnsupportedModelError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures import trajectories
from coupling_lib.measures.trajectories import compare_trajectories, logit_lens_entropies
from coupling_lib.metrics import trajectory
from coupling_lib.metrics.trajectory import principal_paths

BEST = "It was the best of times"


@pytest.fixture(scope="module")
def model():
    return cl.load_model("nano-llama")


@pytest.fixture(scope="module")
def measured(model):
    return cl.measure_trajectories(model, [PARIS, BEST])


def test_trajectory_scores_and_windows_equal_their_formulas(measured, model):
    trace, one = cl.trace(model, PARIS), measured.isel(prompt=0)
    x = trace.hidden[:, -1].double()
    windows = trajectory.block_windows(x, 5)
    assert measured.attrs["window"] == 5 and measured.centre.values.tolist() == list(range(2, 10))
    np.testing.assert_allclose(one.norm, trajectory.norms(x), rtol=1e-5)
    np.testing.assert_allclose(one.step_length, trajectory.step_lengths(x), rtol=1e-5)
    for score, rtol in ((cl.line_shape_score, 1e-5), (cl.expodistance, 1e-4), (cl.equidistance, 1e-4)):
        name = score.__name__
        np.testing.assert_allclose(one[name], score(x), rtol=rtol)
        np.testing.assert_allclose(one[f"window_{name}"], [score(part) for part in windows], rtol=10 * rtol)
    with torch.no_grad():
        normed = model.hf(**trace.inputs, output_hidden_states=True).hidden_states[-1][0, -1].double()
    np.testing.assert_allclose(one.readings, trajectory.score_all(x, normed), rtol=1e-4)


def test_paths_leave_out_outgrown_and_special_tokens(model, measured, tmp_path):
    trace = cl.trace(model, PARIS)
    assert measured.path_token.values.tolist() == trace.tokens
    np.testing.assert_allclose(measured.path, principal_paths(trace.hidden).coordinates, rtol=1e-6)
    traced = cl.trace(model, BEST)
    grown = traced.hidden.clone()
    grown[:, 0] *= 1000
    ids, of_trace = traced.inputs["input_ids"], functools.partial(types.SimpleNamespace, model=traced.model)
    long = of_trace(inputs=traced.inputs, n_tokens=traced.n_tokens, hidden=grown, tokens=traced.tokens)
    path = trajectories._paths(long)["path"][1]
    assert bool(path[:, 0].isnan().all()) and bool(path[:, 1:].isfinite().all())
    wanted = principal_paths(traced.hidden[:, 1:], trajectories.COMPONENTS).coordinates
    torch.testing.assert_close(path[:, 1:], wanted)
    few = of_trace(inputs={"input_ids": ids[:, :3]}, n_tokens=3, hidden=grown[:, :3], tokens=traced.tokens[:3])
    assert bool(trajectories._paths(few)["path"][1].isfinite().all())  # too few without the outgrown one
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
    save_vit(tmp_path / "vit")
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64)
    narrow = transformers.OPTForCausalLM(transformers.OPTConfig(**sizes, word_embed_proj_dim=16))
    for model, given, message in (
        (cl.load_model(tmp_path / "vit"), image, "ViTForImageClassification has no unembedding"),
        (cl.load_model(tmp_path), PARIS, "BertForMaskedLM does not predict by its unembedding alone"),
        (cl.wrap_model(narrow), torch.arange(8)[None], r"shape \(64, 16\) and does not read a stream of width 32"),
    ):
        refused(UnsupportedModelError, message, logit_lens_entropies, cl.trace(model, given))


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


@pytest.mark.parametrize(("name", "token"), [("nano-neox", -1), ("nano-llama", 3)])
def test_entropies_are_those_of_the_unembedded_states(name, token):
    model = cl.load_model(name)
    trace = cl.trace(model, PARIS)
    found = logit_lens_entropies(trace, token)
    W, x = model.hf.get_output_embeddings().weight.double(), trace.hidden[:, token]
    norm = model.hf.gpt_neox.final_layer_norm if name == "nano-neox" else model.hf.model.norm
    plain, normed, own = x.double() @ W.T, norm(x).double() @ W.T, model.hf(**trace.inputs).logits[:, token].double()
    for name, logits in (("entropy", plain), ("entropy_normed", normed), ("entropy_normed", own)):
        wanted = scipy.stats.entropy(logits.softmax(-1).numpy(), axis=-1)
        np.testing.assert_allclose(found[name][-len(wanted) :], wanted, rtol=1e-4)


@pytest.mark.parametrize("name", ["phi", "opt", "mpt-alibi", "cohere", "gemma2-window", "gpt2"])
def test_entropies_exist_for_every_kind_of_decoder(name):
    model = cl.wrap_model(named(name).build())
    found = logit_lens_entropies(cl.trace(model, torch.arange(8)[None]))
    for values in found.values():
        assert values.shape == (4,) and ((values >= 0) & (values <= np.log(64) + 1e-6)).all()
