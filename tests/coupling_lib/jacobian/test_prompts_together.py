"""Several prompts in one batch: the Jacobians and measurements of each alone, whatever the family and the lengths."""

from __future__ import annotations

import gc
import weakref

import pytest
import tiny
import torch
import xarray as xr
from families import FAMILIES, Family, loaded, named
from reference import brute_force_jacobian, relative_error

import coupling_lib as cl
from coupling_lib import store
from coupling_lib.blocks import blockmap
from coupling_lib.errors import ParameterError
from coupling_lib.inputs import given
from coupling_lib.inputs.given import prompts_together
from coupling_lib.jacobian import derivatives
from coupling_lib.measures import frame
from coupling_lib.measures.frame import traced_jacobians
from coupling_lib.measures.nulls import measure_decisive, measure_nulls

LENGTHS = (11, 4, 7)


def traces(family: Family, lengths=LENGTHS) -> list[cl.Trace]:
    model = loaded(family)
    generator = torch.Generator().manual_seed(2)
    if model.hf.main_input_name == "pixel_values":
        images = torch.randn(len(lengths), 1, 3, 16, 16, generator=generator, dtype=torch.float64)
        return [cl.trace(model, image) for image in images]
    return [cl.trace(model, torch.randint(1, 64, (1, n), generator=generator)) for n in lengths]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_jacobians_are_those_of_brute_force_for_every_prompt_alone(family):
    several = traces(family)
    for block, module in enumerate(several[0].model.blocks.modules):
        # Every attention family's prompts are joined; none falls back without a word.
        calls = [trace.calls[block] for trace in several]
        assert blockmap.joinable(calls) or family.route != "attention"
        for pairs in ([(trace.n_tokens - 1,) * 2 for trace in several], [(1, 3), (2, 3), (3, 5)]):
            found = derivatives.prompts_jacobians(several, block, pairs)
            for trace, pair, J in zip(several, pairs, found, strict=True):
                wanted = brute_force_jacobian(trace.model.hf, module, trace.inputs, *pair)
                assert relative_error(J, wanted) < (1e-5 if family.narrow else 1e-10)


@pytest.mark.parametrize("name", ["llama", "gemma2-window", "gpt-oss", "bert"])
def test_no_prompt_enters_anothers(name):
    several = traces(named(name))
    pairs = [(trace.n_tokens - 1,) * 2 for trace in several]
    found = derivatives.prompts_jacobians(several, 1, pairs)
    for change in (several[:2], several[::2]):
        fewer = derivatives.prompts_jacobians(change, 1, [(trace.n_tokens - 1,) * 2 for trace in change])
        torch.testing.assert_close(fewer[0], found[0], rtol=0, atol=1e-6)


def test_the_boundary_of_the_released_code_holds_for_every_prompt():
    several = traces(named("llama"))
    pairs = [(trace.n_tokens - 1,) * 2 for trace in several]
    found = derivatives.prompts_jacobians(several, 2, pairs, "hidden_states")
    for trace, pair, J in zip(several, pairs, found, strict=True):
        assert relative_error(J, cl.block_jacobians(trace, 2, [pair], "hidden_states")[0]) < 1e-6
        assert relative_error(J, cl.block_jacobians(trace, 2, [pair])[0]) > 1e-2


def test_prompts_whose_calls_differ_in_something_else_are_taken_one_by_one():
    several = traces(named("gpt2"))
    pairs = [(trace.n_tokens - 1,) * 2 for trace in several]
    wanted = derivatives.prompts_jacobians(several, 1, pairs)
    for number, trace in enumerate(several):
        trace.calls[1] = trace.calls[1].with_argument("output_attentions", number > 0)
    assert not blockmap.joinable([trace.calls[1] for trace in several])
    torch.testing.assert_close(derivatives.prompts_jacobians(several, 1, pairs), wanted, rtol=0, atol=1e-12)


def test_tensors_in_a_dictionary_are_not_joined():
    calls = [trace.calls[1] for trace in traces(named("gpt2"))]
    same = {"scale": torch.ones(2)}
    assert blockmap.joinable([call.with_argument("extra", same) for call in calls])
    assert not blockmap.joinable([call.with_argument("extra", {"scale": torch.ones(2)}) for call in calls])


def test_there_is_a_pair_for_every_prompt():
    several = traces(named("llama"))
    with pytest.raises(ParameterError, match="names 1 pairs for 3 prompts"):
        derivatives.prompts_jacobians(several, 0, [(3, 3)])
    with pytest.raises(ParameterError, match="mixes t1 = t2 with t1 != t2"):
        derivatives.prompts_jacobians(several, 0, [(3, 3), (1, 2), (3, 3)])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.save_llama(path)
    return cl.load_model(path)


def sizes(monkeypatch, model: cl.Model, given: list) -> list[int]:
    """Numbers of prompts that are formed together."""
    seen: list[int] = []
    form = frame.prompts_jacobians
    with monkeypatch.context() as patch:
        patch.setattr(
            frame, "prompts_jacobians", lambda group, *rest, out: seen.append(len(group)) or form(group, *rest, out=out)
        )
        assert len(list(traced_jacobians(model, given, -1))) == len(given)
    return seen[:: model.n_blocks]


def test_groups_are_bounded_by_number_tokens_and_bytes(model, monkeypatch):
    ids = torch.arange(1, 11)[None]
    assert sizes(monkeypatch, model, [ids] * 19) == [16, 3]
    # The longest prompt counts as often as there are prompts, because the others are filled up to it.
    monkeypatch.setattr(frame, "_TOKENS_TOGETHER", 35)
    assert sizes(monkeypatch, model, [ids] * 4) == [3, 1]
    assert sizes(monkeypatch, model, [ids[:, :2], ids[:, :2], ids, ids[:, :1], ids[:, :1]]) == [3, 2]
    assert sizes(monkeypatch, model, [torch.arange(1, 51)[None]] * 2) == [1, 1]
    monkeypatch.setattr(given, "_BYTES_TOGETHER", 2 * 4 * model.n_blocks * model.d_model**2)
    assert prompts_together(model) == 2
    monkeypatch.setattr(given, "_BYTES_TOGETHER", 1)
    assert prompts_together(model) == 1


def test_jacobians_of_spent_traces_are_the_same_and_their_memory_is_free(model):
    wanted = [J for _, J in traced_jacobians(model, ["one", "It was the best of times"], -1)]
    found = frame.jacobians_by_prompt(model, ["one", "It was the best of times"], -1)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    gc.collect()
    gc.disable()  # memory is to be free at once, not when cycles are next looked for
    try:
        trace = cl.trace(model, "It was the best of times")
        first = trace.calls[0]
        kept = [weakref.ref(part) for part in (first.input, *next(iter(first.keys_values.values())))]
        del first
        torch.testing.assert_close(frame.depth_jacobians(trace, -1, forget=True), wanted[1], rtol=1e-5, atol=1e-6)
        assert [part() for part in kept] == [None] * 3
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("measure", "settings"),
    [
        (cl.measure_depth, {"ks": (4,)}),
        (cl.measure_spectra, {"k": 4, "whole": (1,)}),
        (measure_nulls, {"ks": (4,)}),
        (measure_decisive, {"ks": (4,)}),
        (cl.measure_dynamics, {"k": 4}),
        (cl.measure_perturbation, {"noise": (0.1,)}),
    ],
)
def test_every_batched_measure_gives_what_it_gives_for_each_prompt_alone(model, measure, settings):
    assert measure.batched
    texts = ["It was the best of times", "it was", "What is the capital of France? The capital is"]
    together = measure(model, texts, **settings)
    for number, text in enumerate(texts):
        alone = measure(model, [text], **settings)
        shared = [name for name, variable in alone.data_vars.items() if "prompt" not in variable.dims]
        xr.testing.assert_allclose(
            together.isel(prompt=[number]).drop_vars(shared), alone.drop_vars(shared), rtol=1e-3, atol=1e-4
        )


def test_a_prompt_that_is_refused_costs_none_of_those_before_it(model, tmp_path):
    texts = ["one", "two", torch.zeros(1, 0, dtype=torch.long), "four"]
    with pytest.raises(ParameterError, match="the input has shape"):
        cl.sweep(cl.measure_depth, model, texts, store=tmp_path, ks=(2,))
    assert store.listing(root=tmp_path).prompt.tolist() == ["one", "two"]
