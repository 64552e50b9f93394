"""coupling_loss: its value against dense Jacobians, its gradient against finite differences, both in float64."""

import numpy as np
import pytest
import torch
import transformers
from reference import dense_asymmetry
from refusals import refused
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

import coupling_lib as cl
from coupling_lib.errors import ParameterError
from coupling_lib.metrics.regulariser import asymmetry

BLOCKS, WIDTH = 3, 16
STACK = dict(
    vocab_size=40, hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=32, initializer_range=0.4, attn_implementation="eager"
)  # fmt: skip


NO_IDS = r"input_ids is .*; expected whole numbers \(sequences, n\), or pixels"


def tiny(family, **changes):
    torch.manual_seed(0)
    if family == "neox":
        return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**STACK | changes)).double()
    config = transformers.LlamaConfig(**STACK | changes, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(config).double()


class Doubled:
    """The torch module, with float64 where a model's code asks for float32 (in its softmax and its norms)."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def all_in_float64(monkeypatch):
    for module in (modeling_gpt_neox, modeling_llama):
        monkeypatch.setattr(module, "torch", Doubled())


def token_ids(sequences=2, n=5):
    return torch.randint(0, 40, (sequences, n), generator=torch.Generator().manual_seed(1))


def dense_jacobians(hf, ids, token):
    """J_tt of every block and sequence (L, sequences, d, d), by differentiating each block's branch on its own."""
    calls = []
    layers = hf.base_model.layers

    def keep(module, arguments, keywords, _):
        calls.append((module, arguments[0], keywords))

    handles = [layer.register_forward_hook(keep, with_kwargs=True) for layer in layers]
    with torch.no_grad():
        hf(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()

    def jacobian(module, stream, kwargs, sequence):
        def branch(x):
            changed = stream.clone()
            changed[sequence, token] = x
            return (module(changed, **kwargs) - changed)[sequence, token]

        return torch.autograd.functional.jacobian(branch, stream[sequence, token])

    return torch.stack([torch.stack([jacobian(*call, s) for s in range(len(ids))]) for call in calls])


@pytest.mark.parametrize("family", ["neox", "llama"])
@pytest.mark.parametrize("token", [-1, 2])
def test_loss_equals_that_of_dense_jacobians(family, token, all_in_float64):
    hf, ids, probes = tiny(family), token_ids(), 3
    value = cl.coupling_loss(hf, ids, (0, 1, 2), probes, token, generator=torch.Generator().manual_seed(4))
    J = dense_jacobians(hf, ids, token)
    generator = torch.Generator().manual_seed(4)
    left, right = (torch.randn(probes, len(ids), WIDTH, generator=generator).double() for _ in range(2))
    expected = []
    for pair in ((0, 1), (0, 2), (1, 2)):
        back = [torch.einsum("soi,pso->spi", J[block], left) for block in pair]
        forth = [torch.einsum("soi,psi->spo", J[block], right) for block in pair]
        expected += [asymmetry(*back), asymmetry(*forth)]
    assert value.item() == pytest.approx(float(torch.stack(expected).mean()), rel=1e-9)


def test_loss_converges_to_the_dense_asymmetry():
    hf, ids = tiny("neox"), token_ids(sequences=1).repeat(500, 1)
    J = dense_jacobians(hf, ids[:1], -1)[:, 0]
    value = cl.coupling_loss(hf, ids, (0, 2), probes=np.int64(4), generator=torch.Generator().manual_seed(0))
    assert value.item() == pytest.approx(float(dense_asymmetry(J[0], J[2])), abs=0.01)
    for layer in hf.gpt_neox.layers:  # which shrinks every direction alike, so that leaving it out is seen
        torch.nn.init.zeros_(layer.attention.dense.weight)
        with torch.no_grad():
            layer.mlp.dense_4h_to_h.weight -= 3 * torch.linalg.pinv(layer.mlp.dense_h_to_4h.weight)
    J = dense_jacobians(hf, ids[:1], -1)[:, 0]
    rest = [each - torch.trace(each) / WIDTH * torch.eye(WIDTH).double() for each in J]
    shared = cl.coupling_loss(hf, ids, (0, 2), generator=torch.Generator().manual_seed(0), shared=True).item()
    assert shared == pytest.approx(float(dense_asymmetry(rest[0], rest[2])), abs=0.02)
    assert shared > dense_asymmetry(J[0], J[2]) + 0.05


@pytest.mark.parametrize("family", ["neox", "llama"])
def test_gradient_equals_finite_differences(family, all_in_float64):
    hf, ids = tiny(family), token_ids()

    def value():
        return cl.coupling_loss(hf, ids, (0, 2), probes=2, generator=torch.Generator().manual_seed(0))

    value().backward()
    source = torch.Generator().manual_seed(7)
    checked = 0
    for name, parameter in hf.named_parameters():
        if parameter.grad is None or not parameter.grad.abs().max() > 0:
            continue
        direction = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
        direction /= direction.norm()
        step, sides = 1e-5, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
            sides.append(value().item())
            with torch.no_grad():
                parameter.sub_(sign * step * direction)
        slope = (sides[0] - sides[1]) / (2 * step)
        assert float((parameter.grad * direction).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-8), name
        checked += 1
    assert checked >= 15


def test_only_weights_up_to_the_blocks_get_gradients():
    hf = tiny("llama", tie_word_embeddings=False)
    cl.coupling_loss(hf, token_ids(), (0, 1)).backward()
    assert hf.lm_head.weight.grad is None and hf.model.norm.weight.grad is None
    assert hf.model.embed_tokens.weight.grad.abs().max() > 0
    assert hf.model.layers[2].mlp.up_proj.weight.grad is None
    hf = tiny("neox")
    hf.gpt_neox.embed_in.weight.requires_grad_(False)
    cl.coupling_loss(hf, token_ids(), (0, 1)).backward()
    assert hf.gpt_neox.layers[0].mlp.dense_h_to_4h.weight.grad.abs().max() > 0
    hf, ids = tiny("neox"), token_ids()
    sources = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    counts = (2, np.int64(2), 2)
    values = [cl.coupling_loss(hf, ids, n, generator=source).item() for n, source in zip(counts, sources, strict=True)]
    assert values[0] == values[1] != values[2]


@pytest.mark.thorough
def test_minimising_the_loss_couples_blocks():
    hf, ids = tiny("neox").float(), token_ids(sequences=4)
    source = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(hf.parameters(), lr=2e-2)
    before = normalized_miscoupling(hf, ids[:1])
    for _ in range(120):
        loss = cl.coupling_loss(hf, ids, blocks=2, generator=source)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    assert normalized_miscoupling(hf, ids[:1]) < before - 0.3


def normalized_miscoupling(hf, ids):
    values = cl.measure_depth(cl.wrap_model(hf), ids, ks=(4,)).normalized_miscoupling.values[0, 0]
    for parameter in hf.parameters():  # measuring freezes a model
        parameter.requires_grad_(True)
    hf.train()
    return values[~torch.eye(BLOCKS, dtype=torch.bool).numpy()].mean()


def test_checkpointed_blocks_give_the_same_loss_and_gradient():
    hf, found = tiny("neox").train(), []
    for checkpointed in (False, True):
        hf.zero_grad()
        if checkpointed:
            hf.gradient_checkpointing_enable({"use_reentrant": True})
        loss = cl.coupling_loss(hf, token_ids(), generator=torch.Generator().manual_seed(0))
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in hf.parameters() if weight.grad is not None)])
    assert all(map(torch.equal, *found)) and len(found[0]) > 10
    assert all(part.gradient_checkpointing for part in hf.modules() if hasattr(part, "gradient_checkpointing"))


def test_loss_of_vision_transformer_takes_pixels():
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        attn_implementation="eager"
    )  # fmt: skip
    hf = transformers.ViTForImageClassification(config)
    loss = cl.coupling_loss(hf, torch.randn(2, 3, 8, 8), token=0)
    loss.backward()
    assert 0 < loss.item() < 1
    hf = tiny("neox", attn_implementation="sdpa")
    refused(ParameterError, "the attention is 'sdpa'", cl.coupling_loss, hf, token_ids())
    hf = tiny("neox")
    hf.config.pad_token_id = 0
    padded = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]])
    refused(ParameterError, r"input_ids holds padding \(id 0\)", cl.coupling_loss, hf, padded)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(blocks=1), "blocks is 1; expected at least two"),
        (dict(blocks=4), "blocks is 4"),
        *((dict(blocks=blocks), r"from 0 to 2") for blocks in ((0, 3), (1.0, 2), (True, 2))),
        (dict(probes=1), "probes is 1; expected a whole number, at least 2"),
        (dict(token=5), "token is 5; the sequences have 5 tokens"),
        (dict(token=1.5), "token is 1.5; the sequences have 5 tokens"),
        (dict(generator=3), "generator is 3; expected torch.Generator"),
        *((dict(input_ids=ids), NO_IDS) for ids in (torch.tensor([1, 2]), torch.ones(2, 3), "a text")),
        (dict(input_ids=torch.zeros(0, 3, dtype=torch.long)), NO_IDS),
    ],
)
def test_impossible_settings_are_refused(wrong, message):
    refused(ParameterError, message, cl.coupling_loss, tiny("neox"), **{"input_ids": token_ids()} | wrong)
