"""The logit lens against the model's own prediction, and the models it cannot read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from families import named
from tiny import save_bert, save_vit

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.inputs.prompts import PARIS
from coupling_lib.measures.trajectories import logit_lens_entropies


def entropy(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return -(p * np.log(np.maximum(p, 1e-300))).sum(-1)


@pytest.mark.parametrize(("name", "token"), [("nano-neox", -1), ("nano-llama", 3)])
def test_entropies_are_those_of_the_unembedding_with_and_without_the_final_norm(name, token):
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
def test_any_decoder_can_be_read_whatever_it_calls_its_parts_and_does_to_its_logits(name):
    model = cl.wrap_model(named(name).build())
    found = logit_lens_entropies(cl.trace(model, torch.arange(8)[None]))
    for values in found.values():
        assert values.shape == (4,) and ((values >= 0) & (values <= np.log(64) + 1e-6)).all()


def test_models_without_a_next_token_are_refused_with_the_reason(tmp_path):
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    save_vit(tmp_path / "vit")
    with pytest.raises(UnsupportedModelError, match="ViTForImageClassification has no unembedding"):
        logit_lens_entropies(cl.trace(cl.load_model(tmp_path / "vit"), image))
    save_bert(tmp_path / "bert")
    with pytest.raises(UnsupportedModelError, match="BertForMaskedLM does not predict by its unembedding alone"):
        logit_lens_entropies(cl.trace(cl.load_model(tmp_path / "bert"), PARIS))


def test_an_unembedding_behind_a_projection_is_refused():
    torch.manual_seed(0)
    config = transformers.OPTConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=16
    )
    model = cl.wrap_model(transformers.OPTForCausalLM(config))
    with pytest.raises(UnsupportedModelError, match=r"shape \(64, 16\) and does not read a stream of width 32"):
        logit_lens_entropies(cl.trace(model, torch.arange(8)[None]))


def test_a_token_that_does_not_exist_is_refused():
    with pytest.raises(ParameterError, match="token is 40; this input has 18 tokens"):
        logit_lens_entropies(cl.trace(cl.load_model("nano-neox"), PARIS), 40)
