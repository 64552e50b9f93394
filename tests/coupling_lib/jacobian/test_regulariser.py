"""coupling_loss: its value against dense Jacobians, its gradient against finite differences, both in float64."""

import numpy as np
import pytest
import torch
import transformers
from reference import brute_force_jacobian, dense_asymmetry
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


def dense_jacobians(hf, ids, token=-1):
    """J_tt of every block and sequence (L, sequences, d, d)."""
    inputs = [{"input_ids": one[None], "use_cache": False} for one in ids]
    blocks = hf.base_model.layers
    return torch.stack(
        [torch.stack([brute_force_jacobian(hf, block, each, token, token) for each in inputs]) for block in blocks]
    )


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
    J = dense_jacobians(hf, ids[:1])[:, 0]
    value = cl.coupling_loss(hf, ids, (0, 2), probes=np.int64(4), generator=torch.Generator().manual_seed(0))
    assert value.item() == pytest.approx(float(dense_asymmetry(J[0], J[2])), abs=0.01)
    for layer in hf.gpt_neox.layers:  # which shrinks every direction alike, so that leaving it out is seen
        torch.nn.init.zeros_(layer.attention.dense.weight)
        with torch.no_grad():
            layer.mlp.dense_4h_to_h.weight -= 3 * torch.linalg.pinv(layer.mlp.dense_h_to_4h.weight)
    J = dense_jacobians(hf, ids[:1])[:, 0]
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
    source, step, checked = torch.Generator().manual_seed(7), 1e-5, 0
    for name, parameter in hf.named_parameters():
        if parameter.grad is None or not parameter.grad.abs().max() > 0:
            continue
        direction = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
        move = step * direction / direction.norm()
        sides = []
        for by in (move, -2 * move, move):
            parameter.data += by
            sides.append(value().item())
        slope = (sides[0] - sides[1]) / (2 * step)
        assert float((parameter.grad * move).sum() / step) == pytest.approx(slope, rel=1e-5, abs=1e-8), name
        checked += 1
    assert checked >= 15


def test_only_weights_up_to_the_blocks_get_gradients():
    hf = tiny("llama", tie_word_embeddings=False)
    cl.coupling_loss(hf, token_ids(), (0, 1)).backward()
    beyond = (hf.lm_head, hf.model.norm, hf.model.layers[2].mlp.up_proj)
    assert [layer.weight.grad for layer in beyond] == [None] * 3
    assert hf.model.embed_tokens.weight.grad.abs().max() > 0
    hf = tiny("neox")
    hf.gpt_neox.embed_in.weight.requires_grad_(False)
    cl.coupling_loss(hf, token_ids(), (0, 1)).backward()
    assert hf.gpt_neox.layers[0].mlp.dense_h_to_4h.weight.grad.abs().max() > 0


def test_generator_draws_blocks_and_probes():
    hf, ids = tiny("neox"), token_ids()
    drawn = [(2, 0), (np.int64(2), 0), (2, 1)]
    values = [cl.coupling_loss(hf, ids, n, generator=torch.Generator().manual_seed(seed)).item() for n, seed in drawn]
    assert values[0] == values[1] != values[2]


@pytest.mark.thorough
def test_minimising_the_loss_couples_blocks():
    hf, ids = tiny("neox").float(), token_ids(sequences=4)

    def normalized_miscoupling():
        with cl.measuring(hf) as model:
            values = cl.measure_depth(model, ids[:1], ks=(4,)).normalized_miscoupling.values[0, 0]
        return values[~np.eye(BLOCKS, dtype=bool)].mean()

    source, optimiser = torch.Generator().manual_seed(0), torch.optim.Adam(hf.parameters(), lr=2e-2)
    before = normalized_miscoupling()
    for _ in range(120):
        optimiser.zero_grad(set_to_none=True)
        cl.coupling_loss(hf, ids, blocks=2, generator=source).backward()
        optimiser.step()
    assert normalized_miscoupling() < before - 0.3


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
    sizes = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, attn_implementation="eager")
    loss = cl.coupling_loss(transformers.ViTForImageClassification(config), torch.randn(2, 3, 8, 8), token=0)
    loss.backward()
    assert 0 < loss.item() < 1


NO_IDS = r"input_ids is .*; expected whole numbers \(sequences, n\), or pixels"


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


def test_fused_attention_and_padding_are_refused():
    hf, padded = tiny("neox", attn_implementation="sdpa"), torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]])
    refused(ParameterError, "the attention is 'sdpa'", cl.coupling_loss, hf, token_ids())
    padding = r"input_ids holds padding \(id 0\)"
    refused(ParameterError, padding, cl.coupling_loss, tiny("neox", pad_token_id=0), padded)
