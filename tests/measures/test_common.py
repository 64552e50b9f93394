"""Prompts in the forms that models read."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.measures.common import inputs_for, prompt_inputs, prompt_name
from coupling_lib.prompts import Prompt


def wrapped(name: str):
    return cl.wrap_model(next(family for family in FAMILIES if family.name == name).build(), name=name)


def test_prompts_come_in_every_form():
    ids = torch.tensor([[1, 2]])
    assert prompt_inputs("text") == ["text"]
    assert prompt_inputs([Prompt("a", "b", "its text"), "text"]) == ["its text", "text"]
    assert prompt_inputs(ids)[0] is ids
    assert [prompt_name("text"), prompt_name(ids)] == ["text", "ids [1, 2]"]
    with pytest.raises(ParameterError, match="prompts is empty"):
        prompt_inputs([])


def test_a_model_with_a_tokenizer_reads_the_texts_themselves():
    assert inputs_for(cl.load_model("nano-neox"), ["one", "two"]) == ["one", "two"]


def test_a_model_without_one_gets_as_many_seeded_random_inputs():
    model = wrapped("llama")
    first, again, other = (inputs_for(model, ["one", "two"], seed=seed, n_tokens=9) for seed in (1, 1, 2))
    assert [x.shape for x in first] == [(1, 9), (1, 9)] and not torch.equal(first[0], first[1])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)) and not torch.equal(first[0], other[0])
    images = inputs_for(wrapped("vit"), ["one", "two", "three"])
    assert [x.shape for x in images] == [(1, 3, 16, 16)] * 3


@pytest.mark.parametrize("name", ["vit", "bert", "falcon-alibi"])
def test_depth_is_measured_on_models_without_a_tokenizer(name):
    model = wrapped(name)
    ds = cl.measure_depth(model, inputs_for(model, ["one", "two"]), ks=(4,))
    assert dict(ds.mismatch.sizes) == {"prompt": 2, "k": 1, "block_1": 3, "block_2": 3}
