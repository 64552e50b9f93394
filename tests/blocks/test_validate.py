"""What is checked when a model is loaded."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES
from torch import nn

from coupling_lib.blocks import blockmap
from coupling_lib.blocks import record as blocks
from coupling_lib.blocks import validate as checks
from coupling_lib.errors import UnsupportedModelError


def build(name: str):
    return next(family for family in FAMILIES if family.name == name).build()


def test_a_model_in_training_mode_is_refused_for_its_two_answers():
    with pytest.raises(UnsupportedModelError, match="two answers in two runs"):
        checks.validate(build("gpt2").train())


def test_a_block_that_reads_something_else_is_refused():
    hf = build("gpt2")
    hf.transformer.h[1].register_forward_pre_hook(lambda module, args: (args[0] + 1.0, *args[1:]))
    with pytest.raises(UnsupportedModelError, match="block 2 of GPT2LMHeadModel .* does not read what block 1 wrote"):
        checks.validate(hf)


def test_a_block_with_a_memory_of_its_own_is_refused():
    hf = build("gpt2")
    block = hf.transformer.h[1]
    block.calls = 0

    def forget(module, args, output):
        module.calls += 1
        return output * (1 + 0.1 * (module.calls > 2))

    block.register_forward_hook(forget)
    with pytest.raises(UnsupportedModelError, match="block 2 .* depends on more than its residual stream"):
        checks.validate(hf)


def test_tokens_that_mix_outside_attention_are_noticed_and_the_family_is_named():
    """The self-check at load: a block whose MLP looks at its neighbours is not a function of frozen keys and values."""

    class Mixing(nn.Module):
        def __init__(self, mlp):
            super().__init__()
            self.mlp = mlp

        def forward(self, x):
            return self.mlp(x + x.mean(dim=1, keepdim=True))

    hf = build("llama")
    hf.model.layers[2].mlp = Mixing(hf.model.layers[2].mlp)
    with pytest.raises(
        UnsupportedModelError, match=r"block 3 of LlamaForCausalLM \(model type 'llama'\): the attention route"
    ):
        checks.validate(hf)


def test_a_wrong_mask_row_is_noticed(monkeypatch):
    """The mistake of the fused kernels, put in on purpose: all keys are visible to every query."""
    rows = blockmap._rows
    monkeypatch.setattr(blockmap, "_rows", lambda name, *rest: None if name == "attention_mask" else rows(name, *rest))
    with pytest.raises(UnsupportedModelError, match="the attention route gives a Jacobian that differs"):
        checks.validate(build("llama"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_self_check_is_far_below_its_limit_in_every_family(family):
    hf = family.build()
    found = checks.validate(hf)
    if found.route == "sequence":
        return
    name = hf.main_input_name
    given = blocks.random_input(hf, torch.Generator().manual_seed(3), n_tokens=9)
    for call, module in zip(blocks.record(hf, found, {name: given}), found.modules, strict=True):
        assert checks.route_error(call, module, found.route, torch.float64) < 1e-5


def test_experts_run_one_at_a_time():
    """The grouped kernel rejects float64 and has no forward mode; `load_model` and `wrap_model` switch it off."""
    from coupling_lib.models.load import wrap_model

    hf = build("mixtral")
    hf.set_experts_implementation("grouped_mm")
    assert wrap_model(hf).hf.config._experts_implementation == "eager"
