"""Modes of torch, threads, and a training that goes on: the numbers stay, or one line says why not."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from refusals import refused
from tiny import llama
from torch import Tensor

import coupling_lib as cl
from coupling_lib.errors import UnsupportedModelError, UntrustworthyResultError

TEXT = "It was the best of times, it was the worst"
V = torch.randn(96, generator=torch.Generator().manual_seed(0))


def numbers(model: cl.Model, text: str = TEXT) -> dict[str, Tensor]:
    """What of each kind is computed from one trace."""
    trace = cl.trace(model, text)
    J, top = trace.jacobian(5), trace.jacobian(7).svd(10)
    A = cl.coupling_matrix(J, top, k=10)
    return {
        "states": trace.hidden,
        "column": trace.jacobian(5) @ V,
        "row": trace.jacobian(5).T @ V,
        "matrix": J.dense(),
        "formed": top.S,
        "unformed": trace.jacobian(6).svd(5, formed=False).S,
        "two tokens": cl.block_jacobians(trace, 3, [(0, 4)]),
        "final norm": trace.jacobian(11, boundary="hidden_states").dense(),
        "coupling": cl.miscoupling(A, normalized=True),
        "lens": cl.lens(trace)[3],
    }


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.set_grad_enabled(False)])
def test_numbers_are_the_same_without_gradients(model, mode):
    wanted = numbers(model)
    with mode():
        found = numbers(model)
        assert not torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_inference_mode_and_default_dtype_keep_the_numbers(model):
    with torch.inference_mode():
        other = cl.load_model("nano-neox")
    assert torch.equal(numbers(other)["matrix"], numbers(model)["matrix"])
    with torch.inference_mode():
        hf = llama()
    refused(UnsupportedModelError, r"inference_mode", cl.wrap_model, hf)
    usual, wanted = torch.get_default_dtype(), numbers(model)
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(numbers(model), wanted, rtol=1e-5, atol=1e-6)
    finally:
        torch.set_default_dtype(usual)


def test_computing_under_autocast_is_refused(model):
    trace = cl.trace(model, TEXT)
    J, top = trace.jacobian(5), trace.jacobian(7).svd(10)
    A = cl.coupling_matrix(J, top, k=10)
    for compute, *given in (
        (trace.jacobian(3).dense,),
        (trace.jacobian(4).__matmul__, V),
        (trace.jacobian(7).svd, 10),
        (cl.top_triplets, J.dense(), 10),
        (cl.coupling_matrix, J.dense(), top, 10),
        (cl.miscoupling, A),
        (cl.measure_depth, model, [TEXT], (10,)),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            refused(UntrustworthyResultError, "autocast is on", compute, *given)


def in_threads(*jobs) -> list:
    """Run jobs at the same time, each in a thread of its own, and collect what each returns."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        return [future.result() for future in [threads.submit(job) for job in jobs]]


@pytest.mark.thorough
@pytest.mark.parametrize("models", [("nano-neox", "nano-llama"), ("nano-neox", "nano-neox")])
def test_two_threads_agree_with_one_bit_for_bit(models):
    loaded = {name: cl.load_model(name) for name in models}
    texts = [TEXT, "Call me Ishmael. Some years ago, never mind how long precisely"]

    def one(name: str, text: str) -> Tensor:
        trace = cl.trace(loaded[name], text)
        return torch.cat([trace.hidden[-1].flatten(), trace.jacobian(4).dense().flatten(), trace.jacobian(6) @ V])

    def job(name: str, text: str):
        wanted = one(name, text)
        return lambda: [torch.equal(one(name, text), wanted) for _ in range(200)]

    assert in_threads(*map(job, models, texts)) == [[True] * 200] * 2


def test_two_threads_load_and_measure_as_one_does(model):
    wanted = numbers(model)["matrix"]
    jobs = [lambda: numbers(cl.load_model("nano-neox"))["matrix"], lambda: numbers(model)["matrix"]]
    assert [torch.equal(found, wanted) for found in in_threads(*jobs)] == [True, True]


def trained(measured: bool) -> list[Tensor]:
    """Weights after some steps of a training with dropout, measured in between or not."""
    torch.manual_seed(1)
    hf = llama(attention_dropout=0.2).train()
    hf.set_attn_implementation("sdpa")
    frozen = next(hf.parameters()).requires_grad_(False)
    optimiser = torch.optim.AdamW([weight for weight in hf.parameters() if weight.requires_grad], lr=1e-2)
    ids = torch.arange(3, 15)[None]
    for step in range(6):
        hf(input_ids=ids, labels=ids).loss.backward()
        if measured and step % 2:
            with cl.measuring(hf) as model:
                assert not hf.training
                cl.trace(model, ids).jacobian(1).dense()
        optimiser.step()
        optimiser.zero_grad()
    assert not frozen.requires_grad
    return [weight.detach() for weight in hf.parameters()]


def test_measuring_leaves_training_unchanged():
    torch.testing.assert_close(trained(measured=True), trained(measured=False), rtol=0, atol=0)
    hf = llama().train()
    hf.set_attn_implementation("sdpa")
    hf.model.layers[0].eval()
    before = [(set(vars(part)), part.training) for part in hf.modules()]
    settings, grads = copy.deepcopy(vars(hf.config)), [weight.requires_grad for weight in hf.parameters()]
    with pytest.raises(ZeroDivisionError), cl.measuring(hf, name="mine") as model:
        assert (model.name, hf.training, next(hf.parameters()).requires_grad) == ("mine", False, False)
        trace = cl.trace(model, torch.arange(4)[None])
        raise ZeroDivisionError
    message = "'mine', block 1 is in training mode since the trace; take Jacobians within cl.measuring"
    refused(UntrustworthyResultError, message, trace.jacobian(1).dense)
    assert [(set(vars(part)), part.training) for part in hf.modules()] == before
    assert vars(hf.config) == settings and [weight.requires_grad for weight in hf.parameters()] == grads
