"""The registered attention: the family's own numbers, and frozen keys and values."""

import pytest
import torch
from families import named

from coupling_lib.blocks import attention, attention_choice
from coupling_lib.blocks.attention import KeysValues

IDS = torch.arange(3, 12)[None]


@pytest.mark.parametrize("name", ["llama", "gemma2-window", "gpt-oss", "gpt2", "bert", "mixtral"])
def test_registered_attention_keeps_outputs_bit_for_bit(name):
    hf = named(name).build()
    hf.set_attn_implementation("eager")
    plain = hf(input_ids=IDS)[0]
    attention_choice.use(hf)
    assert hf.config._attn_implementation == attention.NAME
    with attention.recording() as keys_values:
        ours = hf(input_ids=IDS)[0]
    assert torch.equal(ours, plain)
    assert len(keys_values) == 3
    assert {kv.keys.shape[2] for kv in keys_values.values()} == {9}


def test_keys_and_values_take_their_own_positions():
    constants = KeysValues(torch.zeros(1, 2, 5, 3), torch.ones(1, 2, 5, 3))
    own = KeysValues(torch.full((2, 2, 1, 3), 7.0), torch.full((2, 2, 1, 3), 8.0))
    both = constants.with_tokens(own, torch.tensor([[1], [4]]))
    assert both.keys[:, 0, :, 0].tolist() == [[0, 7, 0, 0, 0], [0, 0, 0, 0, 7]]
    assert both.values[:, 1, :, 2].tolist() == [[1, 8, 1, 1, 1], [1, 1, 1, 1, 8]]
    hf = named("llama").build()
    attention_choice.use(hf)
    with attention.recording() as keys_values:
        pass
    hf(input_ids=IDS)
    assert keys_values == {} and attention._record is None
    layer = named("llama").build().model.layers[0].self_attn
    with pytest.raises(RuntimeError, match="stop"), attention.frozen(layer, None, None):
        raise RuntimeError("stop")
    assert attention._constants == {}
    hf = named("bloom-alibi").build()
    plain = hf(input_ids=IDS)[0]
    attention_choice.use(hf)
    with attention.recording() as keys_values:
        assert torch.equal(hf(input_ids=IDS)[0], plain)
    assert keys_values == {}


def plain(query, own, constants, positions, mask, scaling):
    """Attention with the chosen tokens written into their places, and autograd through every step."""
    keys, values = constants.with_tokens(own, positions)
    share = query.shape[1] // keys.shape[1]
    keys, values = (part.repeat_interleave(share, dim=1) for part in (keys, values))
    scores = scaling * query @ keys.mT + (0 if mask is None else mask)
    return (scores.softmax(-1) @ values).transpose(1, 2)


@pytest.mark.parametrize("largest", [2**22, 1], ids=["together", "token by token"])
@pytest.mark.parametrize("prompts", [1, 3])
@pytest.mark.parametrize("masked", [None, 1, 6], ids=["no mask", "one mask", "a mask per head"])
@pytest.mark.parametrize("chosen", [1, 2])
def test_kept_attention_derivative_equals_autograd(monkeypatch, largest, prompts, masked, chosen):
    monkeypatch.setattr(attention, "_LARGEST", largest)
    torch.manual_seed(0)
    T, heads, groups, n, width, value_width = 3, 6, 2, 7, 5, 4

    def drawn(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    constants = KeysValues(drawn(prompts, groups, n, width).detach(), drawn(prompts, groups, n, value_width).detach())
    given = drawn(T, heads, chosen, width), drawn(T, groups, chosen, width), drawn(T, groups, chosen, value_width)
    positions = torch.tensor([[1, 4], [0, 6], [2, 5]])[:, :chosen]
    mask = None
    if masked:
        mask = torch.randn(T, masked, chosen, n, dtype=torch.float64)
        mask[:, :, :, 3] = -torch.inf
    found, wanted = (
        attend(given[0], KeysValues(*given[1:]), constants, positions, mask, 0.3)
        for attend in (attention._attend_to_constants, plain)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    cotangents = torch.randn(8, *wanted.shape, dtype=torch.float64)

    def pulled(y):
        return torch.vmap(lambda c: torch.autograd.grad(y, given, c, retain_graph=True))(cotangents)

    for one, other in zip(pulled(found), pulled(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)
