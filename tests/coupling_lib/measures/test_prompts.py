"""Coupling prompt by prompt: what is noted beside a prompt, the versions of a question, models without a tokenizer."""

import numpy as np
import pytest
import torch
from families import named
from refusals import refused

import coupling_lib as cl
from coupling_lib import paths
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompts import CHAIN_OF_THOUGHT, Prompt, add_chain_of_thought
from coupling_lib.measures.prompts import added_tokens, control_sentence, measure_prompts, prompt_versions, readable

EGGS = Prompt("q1", "mine", "Tom has six eggs and eats two. How many eggs are left?", steps=1)
RIVER = Prompt("r1", "stories", "The river was wide and", rating=0.5)


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "RESULTS", tmp_path)


def test_prompts_are_measured_as_by_measure_depth(model):
    asked = [RIVER, *prompt_versions(model, [EGGS]), EGGS]
    ds = measure_prompts(model, asked, ks=(5,))
    wanted = {
        "id": ["r1", "q1", "q1+cot", "q1+control"],
        "question": ["r1", "q1", "q1", "q1"],
        "version": ["alone", "alone", "step by step", "control sentence"],
        "dataset": ["stories", "mine", "mine", "mine"],
        "steps": [np.nan, 1, 1, 1],
        "rating": [0.5, np.nan, np.nan, np.nan],
        "n_tokens": [cl.trace(model, prompt.text).n_tokens for prompt in asked[:4]],
    }
    for name, values in wanted.items():
        np.testing.assert_array_equal(ds[name], values, err_msg=name)
    wanted = cl.measure_depth(model, [prompt.text for prompt in asked[:4]], ks=(5,))
    np.testing.assert_allclose(ds.normalized_miscoupling, wanted.normalized_miscoupling, rtol=1e-5, atol=1e-6)
    ids = torch.tensor([model.tokenizer(EGGS.text)["input_ids"]])
    for given in ([RIVER.text, ids, RIVER, ids.clone(), RIVER.text], iter([RIVER.text, ids, RIVER])):
        ds = measure_prompts(model, given, ks=(5,))
        assert ds.id.values.tolist() == ds.question.values.tolist() == [RIVER.text, f"ids {ids[0].tolist()}", "r1"]
        assert ds.version.values.tolist() == ["alone"] * 3 and ds["dataset"].values.tolist() == ["", "", "stories"]
        assert np.isnan(ds.steps).all() and ds.n_tokens.values.tolist() == [7, ids.shape[1], 7]
    wanted = cl.measure_depth(model, [RIVER.text, ids, RIVER.text], ks=(5,))
    np.testing.assert_allclose(ds.normalized_miscoupling, wanted.normalized_miscoupling, rtol=1e-5, atol=1e-6)
    for alone, length in ((RIVER.text, 7), (ids, ids.shape[1])):
        assert measure_prompts(model, alone, ks=(5,)).n_tokens.values.tolist() == [length]


@pytest.mark.parametrize("name", ["nano-neox", "nano-llama"])
def test_control_sentence_is_as_long_as_the_instruction(name):
    model = cl.load_model(name)
    alone, instructed, control = (prompt.text for prompt in prompt_versions(model, [EGGS]))
    assert instructed == f"{alone} {CHAIN_OF_THOUGHT}" and control == f"{alone} {control_sentence(model)}"
    lengths = [cl.trace(model, text).n_tokens for text in (alone, instructed, control)]
    assert lengths[1] == lengths[2] == lengths[0] + added_tokens(model, CHAIN_OF_THOUGHT)
    assert cl.trace(model, instructed).tokens[-1] == cl.trace(model, control).tokens[-1] == "."


def test_model_without_tokenizer_reads_words_as_tokens():
    falcon = cl.wrap_model(named("falcon-7b").build().to(torch.float32), name="falcon")
    twice, control = readable(falcon, [Prompt("a", "mine", "one two, one"), Prompt("b", "mine", "one")])
    assert twice.shape == (1, 4) and control.shape == (1, 1)
    assert twice[0, 0] == twice[0, 3] == control[0, 0] and len(set(twice[0].tolist())) == 3
    assert int(twice.max()) < 64
    ds = measure_prompts(falcon, prompt_versions(falcon, [EGGS]), ks=(4,))
    assert np.diff(ds.n_tokens.values).tolist() == [8, 0]  # Let ' s think step by step .
    assert ds.attrs["words_as_tokens"] == 1
    ds = measure_prompts(falcon, [torch.tensor([[5, 9, 2]]), "one two"], ks=(4,))
    assert ds.id.values.tolist() == ["ids [5, 9, 2]", "one two"] and ds.n_tokens.values.tolist() == [3, 2]


def test_repeated_ids_cut_sentences_and_images_are_refused(model):
    message = "the id 'q1' belongs to different prompts; give each an id of its own"
    refused(ParameterError, message, measure_prompts, model, [EGGS, RIVER, Prompt("q1", "yours", "How many?")], ks=(5,))
    vit = cl.wrap_model(named("vit").build(), name="vit")
    refused(ParameterError, "vit reads pixel_values; prompts are texts, take a language model", readable, vit, [RIVER])
    long = Prompt("q", "mine", "The river. " * 300)
    with pytest.warns(UserWarning, match="cut after"):
        assert measure_prompts(model, [long], ks=(5,)).n_tokens.item() == 512
        message = r"the prompt 'q\+cot' is longer than nano-neox reads, and its added sentence would be cut off"
        refused(ParameterError, message, measure_prompts, model, [long, add_chain_of_thought(long)], ks=(5,))


def test_measured_prompts_are_read_from_the_store(model):
    first = measure_prompts(model, [RIVER, EGGS], ks=(5,))
    again = measure_prompts(model, [EGGS, RIVER], ks=(5,))
    np.testing.assert_array_equal(first.mismatch[0], again.mismatch[1])
    # The first of a sweep brings what is kept of the first alone, so that it is measured once more, by itself.
    np.testing.assert_allclose(first.mismatch[1], again.mismatch[0], rtol=1e-5, atol=1e-6)
    assert again.id.values.tolist() == ["q1", "r1"]
