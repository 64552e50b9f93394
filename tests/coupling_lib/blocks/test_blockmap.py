"""Routes to a block's map of a few tokens, and the traps on the way."""

import pytest
import torch
from families import JOINED, loaded, named
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from coupling_lib.blocks import blockmap, route_choice
from coupling_lib.blocks import record as blocks
from coupling_lib.blocks import validate as checks
from coupling_lib.blocks.attention import KeysValues
from coupling_lib.inputs.traced import trace
from coupling_lib.jacobian import derivatives, differentiate

IDS = torch.arange(3, 14)[None]


def recorded(name: str):
    model = loaded(named(name))
    return model.blocks, blocks.record(model.hf, model.blocks, {"input_ids": IDS})


@pytest.mark.parametrize(
    "name", ["llama", "gpt-oss", "mistral-window", "falcon-alibi", "bloom-alibi", "mpt-alibi", "mamba2", "rwkv"]
)
def test_every_route_reproduces_the_output_of_its_block(name):
    found, calls = recorded(name)
    for call, block, route in zip(calls, found.modules, found.routes, strict=True):
        for positions in ([[10]], [[4]], [[2, 7]]):
            index = torch.tensor(positions)
            out = blockmap.token_map(call, block, route, index)(call.input[0][index])
            torch.testing.assert_close(out[:, -1], call.output[0][index[:, -1]], rtol=1e-6, atol=1e-6)


def test_token_map_masks_where_naive_replay_fails():
    """It slices a causal mask of its own by length and takes every query for the last tokens: silently wrong."""
    (found, calls), index = recorded("gpt-neo"), torch.tensor([[4]])
    for number, wrong in ((0, False), (1, True)):  # a global layer has no window, a local one has
        call, block = calls[number], found.modules[number]
        x, wanted = call.input[0][index], call.output[0][index]
        cache = blockmap._FrozenCache(blockmap.cached(call, block), index)
        naive = blockmap._few(call, index).with_argument("layer_past", cache).replay(block, x)
        error = float((naive - wanted).abs().max())
        assert error > 1e-2 if wrong else error < 1e-5
        right = blockmap.token_map(call, block, "cache", index)(x)
        torch.testing.assert_close(right, wanted, rtol=1e-5, atol=1e-5)
    # With `sdpa` the recorded mask is None and a lone query is taken for one that sees every key.
    hf = named("llama").build()
    found = checks.validate(hf)
    hf.set_attn_implementation("sdpa")
    calls = blocks.record(hf, found, {"input_ids": IDS})
    call, block, index = calls[0], found.modules[0], torch.tensor([[4]])
    assert call.arguments["attention_mask"] is None
    constants = blockmap.cached(call, block)
    fused = blockmap._few(call, index).with_argument("past_key_values", blockmap._FrozenCache(constants, index))
    wrong = (fused.replay(block, call.input[0][index]) - call.output[0][index]).norm() / call.output[0][index].norm()
    assert float(wrong) > 1e-2
    found, calls = recorded("llama")
    right = blockmap.token_map(calls[0], found.modules[0], "attention", index)(calls[0].input[0][index])
    torch.testing.assert_close(right, calls[0].output[0][index], rtol=1e-6, atol=1e-6)


ROUTES = {
    "llama": ("attention",) * 3,
    "gptj": (JOINED,) * 3,
    "mamba": ("state",) * 3,
    "rwkv": ("sequence",) * 3,
    "qwen3-next": ("state", "attention", "state"),
    "recurrent-gemma": ("sequence", "sequence", "attention"),
    "falcon-h1": ("state",) * 3,  # beside a recurrence, attention is not all of a block
}


def test_blocks_take_the_routes_of_their_kind():
    for name in ROUTES:
        found, calls = recorded(name)
        assert found.routes == ROUTES[name] and found.route == " and ".join(sorted(set(ROUTES[name])))
        assert route_choice.choose_route(calls[0], found.modules[0]) == found.routes[0]
    traced = trace(loaded(named("mamba2")), torch.arange(1, 12)[None])
    # 8 heads of width 8 with states of 8, and a convolution of width 4 over 64 + 2 * 2 * 8 channels.
    size = 8 * 8 * 8 + 4 * (64 + 2 * 2 * 8)
    assert blockmap.state_size(traced.calls[0], traced.block(0)) == size
    assert differentiate.n_evaluated(traced, 0, [(5, 5)]) == 1 + size // (4 * 32)
    assert differentiate.n_evaluated(traced, 0, [(5, 7)]) == 3 * (1 + size // (4 * 32))
    cache = blockmap._RecordingCache()
    one = torch.zeros(1, 2, 3, 4)
    assert isinstance(cache.update(one, one), KeysValues)
    refused(ValueError, "more than once", cache.update, one, one)


def test_recurrent_states_advance_one_token_at_a_time():
    """Mamba's form for many tokens begins anew, without a word: from a state, tokens are taken one by one."""
    found, calls = recorded("mamba")
    call, block = calls[1], found.modules[1]
    cache = DynamicCache(config=call.config)
    blockmap.advance(call, block, cache, 0, call.input[:, :3])
    naive = blockmap.advance(call, block, cache, 3, call.input[:, 3:8])[0, -1]
    assert float((naive - call.output[0, 7]).norm() / naive.norm()) > 1e-3
    index = torch.tensor([[3, 7]])
    right = blockmap.token_map(call, block, "state", index)(call.input[0][index])[0, -1]
    torch.testing.assert_close(right, call.output[0, 7], rtol=1e-6, atol=1e-6)
    # What takes one token does not bound them: another map, and another Jacobian, without a word.
    found, calls = recorded("mamba2-bounded")
    call, block, index = calls[1], found.modules[1], torch.tensor([[6]])
    assert route_choice.carries_state(call, block) and found.route == "sequence"
    naive = blockmap.token_map(call, block, "state", index)(call.input[0][index])[0, -1]
    assert float((naive - call.output[0, 6]).norm() / naive.norm()) > 1e-3
    # One map is evaluated many times; what the block writes over its states must not reach the next evaluation.
    for name in ["mamba", "mamba2", "qwen3-next", "lfm2"]:
        found, calls = recorded(name)
        index = torch.tensor([[4, 6]])
        map_, x = blockmap.token_map(calls[0], found.modules[0], "state", index), calls[0].input[0][index]
        first = map_(x)
        map_(x + 1)
        assert torch.equal(map_(x), first)


@pytest.mark.parametrize(("name", "grows"), [("mamba2", False), ("qwen3-next", False), ("lfm2", False), ("rwkv", True)])
def test_pullback_cost_is_independent_of_sequence_length(name, grows):
    model, counts = loaded(named(name)), []
    for n in (16, 48):
        traced = trace(model, torch.arange(1, n + 1)[None])
        x, y = differentiate.evaluate(traced, 0, [(n - 1, n - 1)], "block")
        with FlopCounterMode(display=False) as counter:
            derivatives.pulled_back(y, x, torch.eye(32, dtype=x.dtype)[:, None])
        counts.append(counter.get_total_flops())
    assert counts[0] > 0 and (counts[1] > 2 * counts[0] if grows else counts[1] == counts[0])
