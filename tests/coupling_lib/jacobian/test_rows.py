"""Tokens are the ids that were given: rows that a model adds to its stream, and lengths that it cannot read."""

import pytest
import torch
import transformers
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
    config = transformers.BigBirdConfig(
        **dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=500),
        **dict(block_size=4, num_random_blocks=1),
    )
    return transformers.BigBirdForMaskedLM(config)


# The model, its number of tokens, and the rows before and after these: Longformer pads to its window and BigBird to its
# blocks, CPM-Ant puts 32 rows of its own before the text.
@pytest.mark.parametrize(
    ("made", "n", "before", "after"),
    [
        (lambda: build("masked", "longformer", False), 13, 0, 3),
        (lambda: build("causal", "cpmant", False), 12, 32, 0),
        (big_bird, 102, 0, 2),
        (llama, 12, 0, 0),
    ],
    ids=["longformer", "cpmant", "big_bird", "llama"],
)
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
    return transformers.RobertaForMaskedLM(config)


def gpt2() -> transformers.PreTrainedModel:
    sizes = dict(n_embd=32, n_layer=2, n_head=2, vocab_size=280, n_positions=34)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


# RoBERTa's positions begin behind the row for padding: its table of 34 has room for 32 tokens, or 33 with another row.
@pytest.mark.parametrize(
    ("made", "most"),
    [(roberta, 32), (lambda: roberta(pad_token_id=0), 33), (gpt2, 34)],
    ids=["roberta", "padding_0", "gpt2"],
)
def test_too_long_input_is_refused_with_maximum_length(made, most):
    model = cl.wrap_model(made().eval(), tokenizer())
    assert cl.trace(model, ids_of(most, 200)).n_tokens == most
    for n in (most + 1, most + 20):
        with pytest.raises(ParameterError, match=f"the input has {n} tokens; .* reads at most {most}; shorten it"):
            cl.trace(model, ids_of(n, 200))


def test_long_texts_are_cut_with_a_warning():
    model = cl.wrap_model(roberta().eval(), tokenizer())
    with pytest.warns(UserWarning, match="longer than 32 tokens and cut"):
        (given,) = cl.inputs_for(model, ["It was the best of times, " * 20])
    assert cl.trace(model, given).n_tokens == 32
    model, ids = cl.wrap_model(llama()), ids_of(9, 200)
    trace, kept = cl.trace(model, ids), ids.clone()
    lens, wanted = cl.lens(trace), cl.lens(cl.trace(model, kept)).readout().ids
    ids.fill_(7)
    assert torch.equal(trace.inputs["input_ids"], kept)
    assert torch.equal(lens.readout().ids, wanted)
    hf = llama()
    model = cl.wrap_model(hf)
    hf.model.embed_tokens.weight = None
    message = "does not run on this input .TypeError: .*see that model.hf runs on it"
    refused(UnsupportedModelError, message, cl.trace, model, ids_of(9, 200))


# A table that is stretched to what is read has no length, and one that was stretched has another than before.
@pytest.mark.parametrize(
    ("rope", "most"),
    [
        (dict(rope_type="default", rope_theta=1e4), 64),
        (dict(rope_type="dynamic", rope_theta=1e4, factor=2.0), None),
        (dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64), 256),
        (dict(rope_type="linear", rope_theta=1e4, factor=2.0), 64),
    ],
    ids=["default", "dynamic", "yarn", "linear"],
)
def test_stretched_rotary_tables_allow_longer_inputs(rope, most):
    hf = llama(max_position_embeddings=64, rope_parameters=rope).double()
    assert longest_input(hf) == most
    n, model = min(100, most or 100), cl.wrap_model(hf)
    trace = cl.trace(model, ids_of(n, 200))
    wanted = brute_force_jacobian(hf, hf.model.layers[1], {"input_ids": ids_of(n, 200)}, n - 1, n - 1)
    assert relative_error(trace.jacobian(1).dense(), wanted) < 1e-6
