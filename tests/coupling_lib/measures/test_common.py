"""Prompts in the forms that models read."""

import gc
import warnings
import weakref

import pytest
import tiny
import torch
import xarray as xr
from families import named
from refusals import refused

import coupling_lib as cl
from coupling_lib import progress
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import inputs_for, prompt_inputs, prompt_name
from coupling_lib.measures import common
from coupling_lib.measures.nulls import measure_decisive, measure_nulls


def wrapped(name: str):
    return cl.wrap_model(named(name).build(), name=name)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.save_llama(path)
    return cl.load_model(path)


def test_prompts_come_in_every_form_that_models_read(model):
    ids = torch.tensor([[1, 2]])
    assert prompt_inputs("text") == ["text"]
    assert prompt_inputs([cl.Prompt("a", "b", "its text"), "text"]) == ["its text", "text"]
    assert prompt_inputs(ids)[0] is ids
    assert [prompt_name("text"), prompt_name(ids)] == ["text", "ids [1, 2]"]
    refused(ParameterError, "prompts is empty", prompt_inputs, [])
    assert inputs_for(model, ["one", "two"]) == ["one", "two"]
    llama = wrapped("llama")
    first, again, other = (torch.cat(inputs_for(llama, ["one", "two"], seed=seed, n_tokens=9)) for seed in (1, 1, 2))
    assert first.shape == (2, 9) and not torch.equal(first[0], first[1])
    assert torch.equal(first, again) and not torch.equal(first[0], other[0])
    with pytest.warns(UserWarning, match="has no tokenizer and reads 3 random inputs in place of as many texts"):
        images = inputs_for(wrapped("vit"), ["one", "two", "three"])
    assert [x.shape for x in images] == [(1, 3, 16, 16)] * 3


def test_too_long_text_is_cut_with_a_warning(model):
    long = "It was the best of times. " * 100
    with pytest.warns(UserWarning, match="1 of 3 prompts are longer than 256 tokens and cut"):
        short, cut, ids = inputs_for(model, ["short", long, torch.tensor([[1, 2]])])
    assert short == "short" and ids.tolist() == [[1, 2]]
    assert cut.tolist() == [model.tokenizer(long)["input_ids"][:256]]
    with pytest.warns(UserWarning, match="longer than 7 tokens"):
        assert inputs_for(model, [long], longest=7)[0].shape == (1, 7)
    # Nothing is cut that fits exactly.
    exact = model.tokenizer.decode(cut[0])
    assert len(model.tokenizer(exact)["input_ids"]) == 256
    with warnings.catch_warnings(action="error"):
        assert inputs_for(model, [exact]) == [exact]
    assert inputs_for(wrapped("llama"), ["one"], longest=3)[0].shape == (1, 3)
    refused(ParameterError, "longest is 0", inputs_for, model, ["one"], longest=0)


def test_long_sweeps_and_blocks_show_bars_on_stderr(model, tmp_path, monkeypatch, capsys):
    class Bar(progress.tqdm):
        def __init__(self, *arguments, delay, mininterval, **how):
            assert (delay, mininterval) == (20, 5)
            super().__init__(*arguments, delay=1e-9, mininterval=0, **how)  # as if each step took long

    texts = ["one", "two", "three"]
    capsys.readouterr()
    cl.sweep(cl.measure_depth, model, texts[:2], store=tmp_path / "short", ks=(2,))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "tqdm", Bar)
    cl.sweep(cl.measure_depth, model, texts, store=tmp_path, ks=(2,))
    shown = capsys.readouterr().err
    assert f"{model.name}: prompts:  33%" in shown and " 2/3 [" in shown and f"{model.name}: blocks:  67%" in shown
    cl.measure_spectra(model, ["one"], k=2)
    shown = capsys.readouterr().err
    assert "blocks" in shown and "prompts" not in shown
    cl.sweep(cl.measure_depth, cl.load_model("nano-neox"), texts, store=tmp_path, ks=(2,))
    assert capsys.readouterr() == ("", "")


def test_traces_are_freed_while_jacobians_are_formed(model):
    wanted = [J for _, J in common.traced_jacobians(model, ["one", "It was the best of times"], -1)]
    found = list(common.jacobians_by_prompt(model, ["one", "It was the best of times"], -1))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    gc.collect()
    gc.disable()  # memory is to be free at once, not when cycles are next looked for
    try:
        trace = cl.trace(model, "It was the best of times")
        first = trace.calls[0]
        kept = [weakref.ref(part) for part in (first.input, *next(iter(first.keys_values.values())))]
        del first
        assert torch.equal(common.depth_jacobians(trace, -1, forget=True), wanted[1])
        assert [part() for part in kept] == [None] * 3
    finally:
        gc.enable()


MEASURES = {
    cl.measure_spectra: {"k": 4, "whole": (1,)},
    measure_nulls: {"ks": (4,)},
    measure_decisive: {"ks": (4,)},
    cl.measure_dynamics: {"k": 4},
    cl.measure_perturbation: {"noise": (0.1,)},
    cl.measure_tokens: {"block": 1, "k": 4, "tokens": 2},
}


@pytest.mark.parametrize("measure", MEASURES)
def test_several_prompts_are_measured_as_each_alone(model, measure):
    texts = ["It was the best of times", "it was", "What is the capital of France? The capital is"]
    together, *each = (measure(model, given, **MEASURES[measure]) for given in (texts, *([text] for text in texts)))
    shared = [name for name, variable in together.data_vars.items() if "prompt" not in variable.dims]
    xr.testing.assert_equal(together[shared], each[0][shared])
    for number, alone in enumerate(each):
        one, alone = together.isel(prompt=[number]).drop_vars(shared), alone.drop_vars(shared)
        xr.testing.assert_allclose(one, alone, rtol=1e-3, atol=1e-4)
