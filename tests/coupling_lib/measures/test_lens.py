"""Lenses averaged over tokens and prompts, against the lens of each token."""

import numpy as np
import pytest
import torch
from families import loaded, named
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.measures.lens import lens_mean

TEXTS = ["It was the best of times, it was the worst of times", "Call me Ishmael. Some years ago"]


@pytest.mark.parametrize("tokens", [(-1,), (2, -1), "all"])
def test_measured_lens_is_the_mean_over_tokens(model, tokens):
    ds = cl.measure_lens(model, TEXTS, tokens=tokens, depths=(0, 7, 12, 7))
    for number, traced in enumerate(cl.trace(model, text) for text in TEXTS):
        chosen = range(traced.n_tokens) if tokens == "all" else tokens
        wanted = torch.stack([cl.lens(traced, token).dense() for token in chosen]).mean(dim=0)[[0, 7, 12, 7]]
        np.testing.assert_allclose(ds.lens[number], wanted, rtol=1e-4, atol=1e-5)
        assert int(ds.tokens[number]) == len(chosen)


def test_mean_lens_has_its_standard_error(model, tmp_path):
    first, again = (cl.sweep(cl.measure_lens, model, TEXTS, depths=[6], store=tmp_path) for _ in range(2))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    assert first.lens.identical(again.lens) and first.lens.sizes["prompt"] == 2
    ds = cl.measure_lens(model, [*TEXTS, "The quick brown fox"], depths=(3,))
    values = torch.from_numpy(ds.lens.values[:, 0]).double()
    error = (values.var(dim=0) / 3).sum().sqrt() / values.mean(dim=0).norm()
    mean = lens_mean(ds)
    assert float(mean.relative_error[0]) == pytest.approx(float(error), rel=1e-4) and mean.n_prompts == 3
    assert bool(lens_mean(ds.isel(prompt=[0])).relative_error.isnull().all())


def test_bad_arguments_are_refused(model):
    alike = [cl.measure_lens(model, TEXTS[:1], **way) for way in (dict(tokens=-1, depths=6), dict(depths=(6,)))]
    np.testing.assert_array_equal(*(ds.lens for ds in alike))
    for settings, message in (
        (dict(depths=(13,)), "a depth is 13; .* has 12 blocks"),
        (dict(tokens="last"), "tokens is 'last'; it must be token positions, such as"),
        (dict(tokens=()), r"tokens is \(\); it must be token positions, such as"),
        (dict(tokens=(99,)), "token is 99; this input has"),
    ):
        refused(ParameterError, message, cl.measure_lens, model, TEXTS[:1], **settings)
    refused(UnsupportedModelError, "is bidirectional", cl.measure_lens, loaded(named("bert")), torch.arange(1, 9)[None])
