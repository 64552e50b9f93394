"""Traces: states, tokens and inputs."""

import gc

import pytest
import torch
from families import loaded, named
from reference import relative_error
from refusals import refused

import coupling_lib as cl
from coupling_lib.errors import ParameterError, UntrustworthyResultError

IDS = torch.arange(3, 12)[None]


def test_hidden_states_run_from_embedding_to_last_block():
    hf, fresh = named("gpt-neox").build(), named("gpt-neox").build()
    trace = cl.trace(cl.wrap_model(hf), IDS)
    last = trace.final_norm(trace.hidden[3])
    states = hf(input_ids=IDS, output_hidden_states=True).hidden_states
    assert trace.hidden.shape == (4, 9, 32) and (trace.n_blocks, trace.n_tokens, trace.d_model) == (3, 9, 32)
    torch.testing.assert_close(trace.hidden[:3], torch.cat(states[:3]), rtol=0, atol=0)
    torch.testing.assert_close(last, states[3][0])
    assert relative_error(trace.hidden[3], states[3][0]) > 0.1  # P14: their last is after the final norm
    # Transformers puts its hooks on at the first call for hidden states, and notes it.
    torch.testing.assert_close(states, fresh(input_ids=IDS, output_hidden_states=True).hidden_states)


def test_traces_are_repeatable_and_leave_the_model_unchanged():
    mixtral, hf = loaded(named("mixtral")), loaded(named("llama")).hf
    assert torch.equal(cl.trace(mixtral, IDS).hidden, cl.trace(mixtral, IDS).hidden)
    before = hf(input_ids=IDS).logits
    cl.trace(loaded(named("llama")), IDS).jacobian(1).dense()
    assert torch.equal(hf(input_ids=IDS).logits, before)
    assert not any(p.requires_grad for p in hf.parameters())
    trace = cl.trace(loaded(named("gpt-neox")), IDS)
    wanted = trace.jacobian(2).dense()
    for block in range(3):
        trace.forget(block)
    assert [call is None for call in trace.calls] == [True, True, False]
    assert (trace.n_blocks, trace.n_tokens, trace.d_model) == (3, 9, 32)
    assert torch.equal(trace.jacobian(2).dense(), wanted)


def test_texts_prompts_and_ids_are_traced_alike(model):
    text = "It was the best of times"
    trace = cl.trace(model, text)
    assert "".join(trace.tokens) == text and trace.n_tokens == len(trace.tokens) and trace.route == "attention"
    by_prompt = cl.trace(model, cl.Prompt("dickens", "novels", text))
    assert torch.equal(by_prompt.hidden, trace.hidden) and by_prompt.tokens == trace.tokens
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    assert torch.equal(cl.trace(model, ids).hidden, trace.hidden)
    refused(ParameterError, "is an empty text", cl.trace, model, cl.Prompt("nothing", "novels", " "))


UNFIT = [
    ("some text", "llama has no tokenizer"),
    (torch.zeros(1, 0, dtype=torch.long), r"input_ids is \(1, n\) with n >= 1"),
    (torch.zeros(2, 5, dtype=torch.long), r"shape \(2, 5\)"),
    (torch.zeros(1, 5), "dtype torch.float32"),
    (torch.full((1, 5), 64), "outside the vocabulary of llama, 0 to 63"),
    (torch.zeros(1, 65, dtype=torch.long), "reads at most 64"),
    (17, "the input is a int; give a text, a `Prompt` or a tensor of input_ids"),
    (["some text"], "the input is a list"),
]


@pytest.mark.parametrize(("given", "message"), UNFIT)
def test_input_that_does_not_fit_is_refused(given, message):
    refused(ParameterError, message, cl.trace, loaded(named("llama")), given)


def test_memory_does_not_grow_over_traces():
    """P20: graphs of earlier traces must not be kept alive."""
    model = loaded(named("llama"))

    def live_tensors() -> int:
        cl.trace(model, IDS).jacobian(1).dense()
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

    def assert_refused(message: str) -> None:
        refused(UntrustworthyResultError, message, cl.trace, model, IDS)

    try:
        torch.set_default_dtype(dtype)
        assert_refused(f"default dtype is {dtype}.*set_default_dtype")
        torch.set_default_dtype(usual)
        torch.set_float32_matmul_precision("high")
        assert_refused("float32 products are set to 'high'.*'highest'")
    finally:
        torch.set_default_dtype(usual)
        torch.set_float32_matmul_precision("highest")
    with torch.autocast("cpu", dtype=dtype):
        assert_refused(f"autocast is on for 'cpu' and rounds products to {dtype}")
        with torch.autocast("cpu", enabled=False):
            assert cl.trace(model, IDS).jacobian(0).dense().dtype == torch.float32
