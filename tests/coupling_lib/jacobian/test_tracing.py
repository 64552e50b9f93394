"""Traces: states, tokens and inputs."""

import gc

import pytest
import torch
from families import loaded, named
from reference import relative_error
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UntrustworthyResultError
from coupling_lib.inputs import traced as tracing

IDS = torch.arange(3, 12)[None]


def test_hidden_states_run_from_embedding_to_last_block():
    model = loaded(named("gpt-neox"))
    trace = tracing.trace(model, IDS)
    states = model.hf(input_ids=IDS, output_hidden_states=True).hidden_states
    assert trace.hidden.shape == (4, 9, 32) and (trace.n_blocks, trace.n_tokens, trace.d_model) == (3, 9, 32)
    for level in range(3):
        torch.testing.assert_close(trace.hidden[level], states[level][0], rtol=0, atol=0)
    torch.testing.assert_close(trace.final_norm(trace.hidden[3]), states[3][0])
    assert relative_error(trace.hidden[3], states[3][0]) > 0.1  # P14: their last is after the final norm
    # Transformers puts its hooks on at the first call for hidden states, and notes it.
    hf = named("gpt-neox").build()
    wanted = named("gpt-neox").build()(input_ids=IDS, output_hidden_states=True).hidden_states
    tracing.trace(cl.wrap_model(hf), IDS).final_norm  # ruff: ignore[useless-expression]
    found = hf(input_ids=IDS, output_hidden_states=True).hidden_states
    assert len(found) == 4 and all(relative_error(a, b) < 1e-6 for a, b in zip(found, wanted, strict=True))


def test_traces_are_repeatable_and_leave_the_model_unchanged():
    model = loaded(named("mixtral"))
    assert torch.equal(tracing.trace(model, IDS).hidden, tracing.trace(model, IDS).hidden)
    model = loaded(named("llama"))
    before = model.hf(input_ids=IDS).logits
    tracing.trace(model, IDS).jacobian(1).dense()
    assert torch.equal(model.hf(input_ids=IDS).logits, before)
    assert not any(p.requires_grad for p in model.hf.parameters())
    trace = tracing.trace(loaded(named("gpt-neox")), IDS)
    wanted = trace.jacobian(2).dense()
    for block in range(3):
        trace.forget(block)
    assert [call is None for call in trace.calls] == [True, True, False]
    assert (trace.n_blocks, trace.n_tokens, trace.d_model) == (3, 9, 32)
    assert torch.equal(trace.jacobian(2).dense(), wanted)


def test_texts_and_prompts_are_tokenised_alike():
    trace = tracing.trace(cl.load_model("nano-neox"), "It was the best of times")
    assert "".join(trace.tokens) == "It was the best of times"
    assert trace.n_tokens == len(trace.tokens) and trace.route == "attention"
    model, text = cl.load_model("nano-neox"), "It was the best of times"
    found, wanted = tracing.trace(model, cl.Prompt("dickens", "novels", text)), tracing.trace(model, text)
    assert torch.equal(found.hidden, wanted.hidden) and found.tokens == wanted.tokens
    refused(ParameterError, "is an empty text", tracing.trace, model, cl.Prompt("nothing", "novels", " "))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("some text", "llama has no tokenizer"),
        (torch.zeros(1, 0, dtype=torch.long), r"input_ids is \(1, n\) with n >= 1"),
        (torch.zeros(2, 5, dtype=torch.long), r"shape \(2, 5\)"),
        (torch.zeros(1, 5), "dtype torch.float32"),
        (torch.full((1, 5), 64), "outside the vocabulary of llama, 0 to 63"),
        (torch.zeros(1, 65, dtype=torch.long), "reads at most 64"),
        (17, "the input is a int; give a text, a `Prompt` or a tensor of input_ids"),
        (["some text"], "the input is a list"),
    ],
)
def test_input_that_does_not_fit_is_refused(given, message):
    refused(ParameterError, message, tracing.trace, loaded(named("llama")), given)


def test_memory_does_not_grow_over_traces():
    """P20: graphs of earlier traces must not be kept alive."""
    model = loaded(named("llama"))

    def live_tensors() -> int:
        tracing.trace(model, IDS).jacobian(1).dense()
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    live_tensors()
    gc.freeze()  # what was there before is left out, which is nearly all there is to look through
    try:
        counts = [live_tensors() for _ in range(5)]
    finally:
        gc.unfreeze()
    assert counts[-1] == counts[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_precision_modes_of_torch_are_refused(dtype):
    model, usual = cl.load_model("nano-neox", precision="bfloat16"), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        refused(UntrustworthyResultError, f"default dtype is {dtype}.*set_default_dtype", tracing.trace, model, IDS)
    finally:
        torch.set_default_dtype(usual)
    torch.set_float32_matmul_precision("high")
    try:
        refused(UntrustworthyResultError, "float32 products are set to 'high'.*'highest'", tracing.trace, model, IDS)
    finally:
        torch.set_float32_matmul_precision("highest")
    message = f"autocast is on for 'cpu' and rounds products to {dtype}"
    with torch.autocast("cpu", dtype=dtype):
        refused(UntrustworthyResultError, message, tracing.trace, model, IDS)
    with torch.autocast("cpu", dtype=dtype), torch.autocast("cpu", enabled=False):
        assert tracing.trace(model, IDS).jacobian(0).dense().dtype == torch.float32
