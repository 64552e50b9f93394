"""Tokens are the ids that were given: rows that a model adds to its stream, and lengths that it cannot read."""

import pytest
import torch
import transformers
from families import named
from reference import brute_force_jacobian, brute_force_state, relative_error
from refusals import refused
from tiny import STACK, llama, tokenizer
from tiny_families import build

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UnsupportedModelError
from coupling_lib.inputs.prompt_arguments import longest_input

pytestmark = pytest.mark.filterwarnings("ignore::coupling_lib.errors.PostNormWarning")


def ids_of(n: int, most: int = 400) -> torch.Tensor:
    return torch.randint(5, most, (1, n), generator=torch.Generator().manual_seed(n))


def big_bird() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(**STACK, vocab_size=500, block_size=4, num_random_blocks=1)
    return transformers.BigBirdForMaskedLM(config)


# The model, its number of tokens, and the rows before and after these: Longformer pads to its window and BigBird to its
# blocks, CPM-Ant puts 32 rows of its own before the text.
ROWS = {
    "longformer": (lambda: build("masked", "longformer", False), 13, 0, 3),
    "cpmant": (lambda: build("causal", "cpmant", False), 12, 32, 0),
    "big_bird": (big_bird, 102, 0, 2),
    "llama": (llama, 12, 0, 0),
}


@pytest.mark.parametrize(("made", "n", "before", "after"), ROWS.values(), ids=ROWS)
def test_the_last_token_is_the_last_id_given(made, n, before, after):
    hf = made().eval().double()
    model, ids = cl.wrap_model(hf), ids_of(n, 60)
    trace = cl.trace(model, ids)
    assert trace.calls[0].input.shape[1] == before + n + after
    assert trace.n_tokens == trace.hidden.shape[1] == n
    hf.config.use_cache, inputs = False, {"input_ids": ids}
    block = model.blocks.modules[1]
    for token_in in (-1, -3):
        wanted = brute_force_jacobian(hf, block, inputs, before + n + token_in, before + n - 1)
        most = 1e-6 if made is llama else 1e-8  # whose norms are in float32
        assert relative_error(trace.jacobian(1, token_in, -1).dense(), wanted) < most
    assert torch.equal(trace.hidden[1, -1], brute_force_state(hf, block, inputs, before + n - 1).to(trace.hidden))


def roberta(**changes) -> transformers.PreTrainedModel:
    config = transformers.RobertaConfig(**STACK, vocab_size=280, max_position_embeddings=34, **changes)
    return transformers.RobertaForMaskedLM(config).eval()


# RoBERTa's positions begin behind the row for padding: its table of 34 has room for 32 tokens, or 33 with another row.
LONGEST = {
    "roberta": (roberta, 32),
    "padding_0": (lambda: roberta(pad_token_id=0), 33),
    "gpt2": (lambda: named("gpt2").build(), 64),
}


@pytest.mark.parametrize(("made", "most"), LONGEST.values(), ids=LONGEST)
def test_too_long_input_is_refused_with_maximum_length(made, most):
    model = cl.wrap_model(made())
    assert cl.trace(model, ids_of(most, 60)).n_tokens == most
    for n in (most + 1, most + 20):
        message = f"the input has {n} tokens; .* reads at most {most}; shorten it"
        refused(ParameterError, message, cl.trace, model, ids_of(n, 60))


def test_long_texts_are_cut_with_a_warning():
    model = cl.wrap_model(roberta(), tokenizer())
    with pytest.warns(UserWarning, match="longer than 32 tokens and cut"):
        (given,) = cl.inputs_for(model, ["It was the best of times, " * 20])
    assert cl.trace(model, given).n_tokens == 32


def test_a_trace_keeps_the_ids_it_was_given():
    model, ids = cl.wrap_model(hf := llama()), ids_of(9, 200)
    trace, kept = cl.trace(model, ids), ids.clone()
    lens, wanted = cl.lens(trace), cl.lens(cl.trace(model, kept)).readout().ids
    ids.fill_(7)
    assert torch.equal(trace.inputs["input_ids"], kept) and torch.equal(lens.readout().ids, wanted)
    hf.model.embed_tokens.weight = None
    message = "does not run on this input .TypeError: .*see that model.hf runs on it"
    refused(UnsupportedModelError, message, cl.trace, model, kept)


# A table that is stretched to what is read has no length, and one that was stretched has another than before.
STRETCHED = {
    "default": ({}, 64),
    "dynamic": ({"factor": 2.0}, None),
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": 64}, 256),
    "linear": ({"factor": 2.0}, 64),
}


@pytest.mark.parametrize("kind", STRETCHED)
def test_stretched_rotary_tables_allow_longer_inputs(kind):
    settings, most = STRETCHED[kind]
    rope = {"rope_type": kind, "rope_theta": 1e4} | settings
    hf = llama(max_position_embeddings=64, rope_parameters=rope).double()
    assert longest_input(hf) == most
    n = min(100, most or 100)
    ids = ids_of(n, 200)
    wanted = brute_force_jacobian(hf, hf.model.layers[1], {"input_ids": ids}, n - 1, n - 1)
    assert relative_error(cl.trace(cl.wrap_model(hf), ids).jacobian(1).dense(), wanted) < 1e-6
