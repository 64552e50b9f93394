"""Sweeps: the same numbers as one call, each prompt kept, nothing repeated, whatever stops them."""

import os

import pytest
import tiny
import torch
import xarray as xr
from counted import Counted
from refusals import refused

import coupling_lib as cl
from coupling_lib import paths, store
from coupling_lib.blocks import placing
from coupling_lib.errors import ParameterError
from coupling_lib.inputs.prompt_arguments import prompt_inputs
from coupling_lib.store.sweep import stream

TEXTS = ["It was the best of times", "it was the worst of times, it was", "What is the capital of France?"]


def assert_same(swept: xr.Dataset, direct: xr.Dataset) -> None:
    assert swept.attrs.pop("command") is not None and direct.attrs.pop("command") is not None
    xr.testing.assert_identical(swept, direct)
    assert list(swept.data_vars) == list(direct.data_vars) and list(swept.dims) == list(direct.dims)
    assert {n: v.dtype for n, v in swept.variables.items()} == {n: v.dtype for n, v in direct.variables.items()}
    assert list(swept.attrs) == list(direct.attrs)


SWEPT = {cl.measure_depth: {"ks": (2, 5)}, cl.measure_spectra: {"k": 4, "token": 1}, cl.measure_trajectories: {}}


@pytest.mark.parametrize(("measure", "settings"), SWEPT.items())
def test_a_sweep_first_and_again_equals_one_call(model, tmp_path, measure, settings):
    prompts = [cl.Prompt("a", "b", TEXTS[0]), TEXTS[1], torch.tensor([[5, 6, 7, 8]])]
    for given in (prompts, prompts, TEXTS[0]):
        assert_same(cl.sweep(measure, model, given, store=tmp_path, **settings), measure(model, given, **settings))
        assert len(store.listing(root=tmp_path)) == 3


def test_images_and_offloaded_models_are_swept(folder, model, tmp_path):
    tiny.save_vit(tmp_path / "vit")
    vit = cl.load_model(tmp_path / "vit")
    images = list(torch.randn(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    least = placing.plan(model.hf).bytes(torch.float32)
    for network, prompts in ((vit, images), (cl.load_model(folder, memory=least), TEXTS)):
        assert network.offloaded == (network is not vit)
        for _ in range(2):
            swept = cl.sweep(cl.measure_spectra, network, prompts, store=tmp_path, k=3)
            assert_same(swept, cl.measure_spectra(network, prompts, k=3))
    assert store.listing(root=tmp_path).groupby("model").size().tolist() == [3, 2]


def test_finished_prompts_are_not_measured_again(model, tmp_path):
    counted, (one, two, three) = Counted(), TEXTS
    cl.sweep(counted, model, TEXTS[:2], store=tmp_path)
    ds = cl.sweep(counted, model, [three, two, one, three], store=tmp_path)
    assert counted.seen == TEXTS and ds.prompt.values.tolist() == [three, two, one, three]
    assert ds.length.values.tolist() == [len(name) for name in ds.prompt.values.tolist()]
    counted, root = Counted(), tmp_path / "shared"
    cl.sweep(counted, model, TEXTS, store=root)
    ds = cl.sweep(counted, model, TEXTS[1:], store=root)
    assert ds.shared.values.tolist() == [1, 2] and counted.seen == [*TEXTS, two]
    found = [sorted(part.data_vars) for part in stream(counted, model, TEXTS, store=root)]
    assert found == [["gap", "length", "shared"], ["gap", "length"], ["gap", "length"]] and len(counted.seen) == 4


@pytest.fixture
def times(tmp_path):
    """How often a sweep of one prompt measures it."""

    def measured(counted: Counted, network: cl.Model, prompts=TEXTS[:1], **settings) -> int:
        before = len(counted.seen)
        cl.sweep(counted, network, prompts, store=tmp_path / "store", **settings)
        return len(counted.seen) - before

    return measured


def test_other_settings_versions_and_weights_are_measured_anew(folder, model, times):
    counted = Counted()
    # A scale of 1 is the default, named.
    assert [times(counted, model, **more) for more in ({}, {"scale": 1.0}, {"scale": 2.0})] == [1, 0, 1]
    counted.version = 2
    assert times(counted, model) == 1 and times(counted, model) == times(counted, cl.load_model(folder)) == 0
    for changes in ({"precision": "bfloat16"}, {"untrained": True}, {"untrained": True, "seed": 1}):
        assert times(counted, cl.load_model(folder, **changes)) == 1


def test_changed_weights_and_tokenizers_give_no_old_numbers(tmp_path, times):
    counted = Counted()
    hf = tiny.save_llama(tmp_path / "m")
    assert times(counted, cl.load_model(tmp_path / "m")) == 1
    with torch.no_grad():
        hf.model.layers[1].mlp.up_proj.weight[3, 4] += 1e-3
    hf.save_pretrained(tmp_path / "m")
    network = cl.load_model(tmp_path / "m")
    assert times(counted, network) == 1
    network.tokenizer.add_tokens(["best"])
    assert times(counted, network) == 1
    ids = torch.tensor([[1, 2, 3]])
    for seed, expected in ((0, 1), (0, 0), (1, 1)):
        network = cl.wrap_model(tiny.llama(seed))
        assert times(counted, network, ids) == expected
    network.hf.model.norm.weight.data.mul_(2)  # changed after it was loaded
    assert times(counted, network, ids) == 1


def test_damaged_files_are_measured_again(model, tmp_path):
    counted = Counted()
    wanted = cl.sweep(counted, model, TEXTS, store=tmp_path)
    spoilt = store.listing(root=tmp_path).set_index("prompt").path[TEXTS[1]]
    os.truncate(spoilt, os.path.getsize(spoilt) // 2)
    with pytest.warns(store.StoreWarning, match="is damaged"):
        assert_same(cl.sweep(counted, model, TEXTS, store=tmp_path), wanted)
    assert counted.seen == [*TEXTS, TEXTS[1]] and os.path.exists(spoilt + ".damaged") and os.path.exists(spoilt)
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(store.StoreWarning, match="File exists|Not a directory.*; measuring goes on") as caught:
        assert_same(cl.sweep(Counted(), model, TEXTS, store=tmp_path / "file" / "below"), Counted()(model, TEXTS))
    assert len(caught) == 1

    def measure_by(network, prompts, how=len):
        return xr.Dataset({"x": ("prompt", [how(prompt_inputs(prompts))])})

    def measure_listed(network, prompts):
        return measure_by(network, prompts).assign_attrs(listed=[1])

    for measure, reason in ((measure_by, "the setting 'how' is a builtin"), (measure_listed, "'listed' is a list")):
        with pytest.warns(store.StoreWarning, match=reason) as caught:
            assert cl.sweep(measure, model, TEXTS, store=tmp_path).x.values.tolist() == [1, 1, 1]
        assert len(caught) == 1


def test_shipped_measurements_are_read_by_default(model, tmp_path, monkeypatch):
    measure = Counted()
    for name in ("RESULTS", "SHIPPED"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    wanted = cl.sweep(measure, model, TEXTS[:2], store=paths.SHIPPED)
    found = cl.sweep(measure, model, TEXTS)
    assert measure.seen == TEXTS and store.listing().prompt.tolist() == TEXTS[2:]
    xr.testing.assert_equal(found.isel(prompt=[0, 1]), wanted)
    cl.sweep(measure, model, TEXTS[:1], store=tmp_path / "own")
    assert measure.seen == [*TEXTS, TEXTS[0]]


def test_refused_prompt_keeps_measurements_before_it(model, tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        cl.sweep(cl.measure_depth, model, TEXTS, store=tmp_path, depth=3)
    assert store.listing(root=tmp_path).empty
    message = r"variables is \['norms'\]; this measurement has readings, norm, "
    refused(ParameterError, message, cl.sweep, cl.measure_trajectories, model, TEXTS[:1], variables=["norms"])
    texts = ["one", "two", torch.zeros(1, 0, dtype=torch.long), "four"]
    refused(ParameterError, "the input has shape", cl.sweep, cl.measure_depth, model, texts, store=tmp_path, ks=(2,))
    assert store.listing(root=tmp_path).prompt.tolist() == ["one", "two"]
