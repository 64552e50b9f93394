"""Experts are those that the model's own pass took, in every precision."""

import pytest
import torch
from families import named
from reference import brute_force_jacobian, relative_error
from torch.overrides import TorchFunctionMode

import coupling_lib as cl
from coupling_lib.blocks import call as routing

IDS = torch.arange(3, 14)[None]


class Other(TorchFunctionMode):
    """Within it, `topk` takes the smallest: experts that the model did not take."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.topk, torch.Tensor.topk):
            return func(args[0], *args[1:], **{**(kwargs or {}), "largest": False})
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "gpt-oss", "deepseek-v3"])
def test_jacobian_uses_the_experts_of_the_pass(family):
    hf = named(family).build()
    model = cl.wrap_model(hf)
    assert model.blocks.choosing
    trace = cl.trace(model, IDS)
    assert [len(call.chosen) > 0 for call in trace.calls].count(True) >= 2
    block = len(trace.calls) - 1
    wanted = brute_force_jacobian(hf, model.blocks.modules[block], {"input_ids": IDS}, 10, 10)
    with Other():  # what a copy in another number format would rank
        found = trace.jacobian(block).dense()
    assert relative_error(found, wanted) < 1e-5


def test_recorded_experts_are_those_of_the_model():
    model = cl.wrap_model(named("llama").build())
    assert not model.blocks.choosing and all(call.chosen == () for call in cl.trace(model, IDS).calls)
    model = cl.wrap_model(named("mixtral").build().to(torch.bfloat16))
    trace = cl.trace(model, IDS)
    for number, call in enumerate(trace.calls):
        with routing.RecordedChoices(lambda: 0) as noting:
            model.blocks.modules[number](call.input, **call.arguments)
        assert all(torch.equal(*pair) for pair in zip(noting.chosen[0], call.chosen, strict=True))
        assert trace.jacobian(number).dense().isfinite().all()


def test_fixed_choices_replace_topk_call_by_call():
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.3]])
    first, second = torch.tensor([[2, 0], [1, 2]]), torch.tensor([[0], [0]])
    with routing.FixedChoices([first, second]):
        values, index = torch.topk(scores, 2, dim=-1)
        assert torch.equal(index, first) and torch.equal(values, torch.tensor([[0.5, 0.1], [0.2, 0.3]]))
        assert torch.equal(scores.topk(1).values, scores[:, :1])
        assert torch.equal(scores.topk(1).indices, torch.tensor([[1], [0]]))  # none is held any more
    for shape in [(5, 2), (1, 5, 2), (1, 5, 3, 2)]:
        chosen = torch.arange(torch.tensor(shape).prod()).reshape(shape)
        few = routing.chosen_rows(chosen, torch.tensor([[1, 4]]), 5)
        assert torch.equal(few, chosen.reshape(5, -1, 2)[[1, 4]].reshape(-1, 2))
