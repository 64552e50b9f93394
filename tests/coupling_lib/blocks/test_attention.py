"""The registered attention: the family's own numbers, and frozen keys and values."""

from functools import partial

import pytest
import torch
from families import named

from coupling_lib.blocks import attention, attention_choice
from coupling_lib.blocks.attention import KeysValues

IDS = torch.arange(3, 12)[None]


# Calls of the attention in three blocks: BLOOM has its own.
CALLS = {"llama": 3, "gemma2-window": 3, "gpt-oss": 3, "gpt2": 3, "bert": 3, "mixtral": 3, "bloom-alibi": 0}


@pytest.mark.parametrize(("name", "calls"), CALLS.items())
def test_registered_attention_keeps_outputs_bit_for_bit(name, calls):
    hf = named(name).build()
    hf.set_attn_implementation("eager")
    plain = hf(input_ids=IDS)[0]
    attention_choice.use(hf)
    with attention.recording() as keys_values:
        assert torch.equal(hf(input_ids=IDS)[0], plain)
    assert [kv.keys.shape[2] for kv in keys_values.values()] == [9] * calls


def test_nothing_is_kept_beyond_a_context():
    hf = named("llama").build()
    attention_choice.use(hf)
    with attention.recording() as keys_values:
        pass
    hf(input_ids=IDS)
    assert keys_values == {} and attention._record is None
    with pytest.raises(RuntimeError, match="stop"), attention.frozen(hf.model.layers[0].self_attn, None, None):
        raise RuntimeError("stop")
    assert attention._constants == {}


def test_keys_and_values_take_their_own_positions():
    constants = KeysValues(torch.zeros(1, 2, 5, 3), torch.ones(1, 2, 5, 3))
    own = KeysValues(torch.full((2, 2, 1, 3), 7.0), torch.full((2, 2, 1, 3), 8.0))
    both = constants.with_tokens(own, torch.tensor([[1], [4]]))
    assert both.keys[:, 0, :, 0].tolist() == [[0, 7, 0, 0, 0], [0, 0, 0, 0, 7]]
    assert both.values[:, 1, :, 2].tolist() == [[1, 8, 1, 1, 1], [1, 1, 1, 1, 8]]


def plain(query, own, constants, positions, mask, scaling):
    """Attention with the chosen tokens written into their places, and autograd through every step."""
    parts = constants.with_tokens(own, positions)
    keys, values = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in parts)
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
    drawn = partial(torch.randn, dtype=torch.float64, requires_grad=True)
    constants = KeysValues(drawn(prompts, groups, n, width).detach(), drawn(prompts, groups, n, value_width).detach())
    given = drawn(T, heads, chosen, width), drawn(T, groups, chosen, width), drawn(T, groups, chosen, value_width)
    positions = torch.tensor([[1, 4], [0, 6], [2, 5]])[:, :chosen]
    mask = None
    if masked:
        mask = torch.randn(T, masked, chosen, n, dtype=torch.float64)
        mask[:, :, :, 3] = -torch.inf
    cotangents = torch.randn(8, T, chosen, heads, value_width, dtype=torch.float64)

    def attended(attend) -> tuple:
        y = attend(given[0], KeysValues(*given[1:]), constants, positions, mask, 0.3)
        return y, torch.vmap(lambda c: torch.autograd.grad(y, given, c, retain_graph=True))(cotangents)

    (found, pulled), (wanted, expected) = attended(attention._attend_to_constants), attended(plain)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    torch.testing.assert_close(pulled, expected, rtol=0, atol=1e-13)
