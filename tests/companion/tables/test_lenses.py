"""Lenses against whole-model autograd and against each other where they are known."""

import numpy as np
import pytest
import tiny
import torch
from reference import relative_error
from refusals import refused

import coupling_lib as cl
from companion.tables import lenses
from coupling_lib.errors import ParameterError

FITTED_ON = ("It was the age of wisdom, it was the age of foolishness", "What is a whale? A whale is")


def made() -> cl.Model:
    return cl.wrap_model(tiny.llama(seed=1), tiny.tokenizer())


@pytest.fixture(scope="module")
def model():
    return made()


@pytest.fixture(scope="module")
def read(model):
    return lenses.measure_readouts(model, tiny.TEXT, fitted_on=FITTED_ON)


def test_lens_with_futures_equals_whole_model_autograd(model):
    traced = cl.trace(model, "It was the best")
    found = lenses.lens_with_futures(traced)

    def last(x, first):
        stream, positions = x[None], torch.arange(len(x))[None]
        how = {"position_embeddings": model.hf.model.rotary_emb(stream, positions), "position_ids": positions}
        mask = torch.full((len(x),) * 2, float("-inf")).triu(1)[None, None]
        for block in model.blocks.modules[first:]:
            out = block(stream, attention_mask=mask, **how)
            stream = out[0] if isinstance(out, tuple) else out
        return stream[0, 1:].sum(dim=0)  # over all tokens but the first: those before t do not depend on it

    for depth in (0, 2):
        x = traced.hidden[depth].clone()
        whole = torch.autograd.functional.jacobian(lambda x, depth=depth: last(x, depth), x)
        assert relative_error(found[depth], whole[:, 1:].mean(dim=1)) < 1e-4
    assert torch.equal(found[-1], torch.eye(32))
    traced = cl.trace(model, torch.tensor([[5, 9]]))
    assert relative_error(lenses.lens_with_futures(traced), cl.lens(traced).dense()) < 1e-4


def test_lenses_agree_with_model_at_last_depth(read):
    own, blind = read.sel(lens=["logit lens", "own lens"]).isel(depth=-1), read.divergence.sel(lens="no state")
    assert abs(own.divergence).max() < 1e-5 and (own.agrees == 1).all()
    assert (read.divergence.isel(depth=0) > 1e-4).all() and float((blind.max("depth") - blind.min("depth")).max()) == 0


def test_interventions_find_the_derivative(read, model):
    assert abs(read.slope - 1).max() < 1e-3
    wrong = cl.lens(cl.trace(model, tiny.TEXT[0]))
    wrong._dense.mul_(1.1)
    torch.testing.assert_close(lenses.intervened_slopes(wrong), torch.full((3,), 1 / 1.1).double(), rtol=2e-3, atol=0)


def test_an_affine_map_is_found():
    generator = torch.Generator().manual_seed(0)
    x, A, b = (torch.randn(*shape, generator=generator) for shape in ((400, 8), (8, 8), (8,)))
    found, constant = lenses._affine(torch.stack([x, x @ A.T + b]))
    assert relative_error(found[0] @ x[0] + constant[0], A @ x[0] + b) < 0.15
    assert found.shape == (2, 8, 8) and constant.shape == (2, 8)


def test_lenses_are_fitted_on_other_texts(model):
    every = [prompt.text for prompt in cl.load_prompts()]
    found = lenses.other_texts(every[::7], count=10)
    assert len(set(found)) == 10 and not set(found) & set(every[::7])
    assert set(lenses.other_texts(every[16:])) == set(every[:16])
    message = "leave 10 texts to fit on; 16 are needed, take fewer prompts"
    refused(ParameterError, message, lenses.other_texts, every[10:])
    for given in ("one text", ("one text",)):
        message = "fitted_on holds fewer than two texts"
        refused(ParameterError, message, lenses.measure_readouts, model, every[:1], fitted_on=given)


CHANGES = {
    "hooked": lambda part: part.register_forward_hook(lambda part, given, out: 0 * out),
    "edited": lambda part: torch.nn.init.zeros_(part.weight),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_hooked_and_edited_models_are_fitted_anew(change):
    def divergence(model):
        return lenses.measure_readouts(model, tiny.TEXT[:1], fitted_on=FITTED_ON).divergence

    used, fresh = made(), made()
    before = divergence(used)
    for model in (used, fresh):
        change(model.blocks.modules[1].mlp.down_proj)
    wanted = divergence(fresh)
    np.testing.assert_allclose(divergence(used), wanted, rtol=1e-5, atol=1e-7)
    assert abs(before - wanted).sel(lens="mean lens").max() > 1e-5


def test_saving_in_operations_grows_with_text_length(model):
    few, many = (lenses.operations(model, tokens) for tokens in (5, 20))
    # Backwards every token passes through every block once for each coordinate of the last state.
    assert many["operations-fit"] / few["operations-fit"] == pytest.approx(20 / 5, rel=0.2)
    # A token's own derivative grows by what it reads of others alone.
    assert 1 <= many["operations-own"] / few["operations-own"] < 1.2
    assert many["operations-ratio"] == many["operations-fit"] / many["operations-own"] > few["operations-ratio"]
    once = 2 * model.d_model * sum(weight.numel() for weight in model.blocks.modules.parameters())
    assert few["operations-fit"] == pytest.approx(once * 5, rel=0.3) and few["operations-own"] < 1.5 * once
