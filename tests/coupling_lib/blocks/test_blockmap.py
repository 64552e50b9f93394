"""Routes to a block's map of a few tokens, and the traps on the way."""

import pytest
import torch
from families import JOINED, loaded, named
from reference import relative_error
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from coupling_lib.blocks import blockmap, record, route_choice
from coupling_lib.blocks.attention import KeysValues
from coupling_lib.inputs.traced import trace
from coupling_lib.jacobian import derivatives, differentiate

IDS = torch.arange(3, 14)[None]


def recorded(name: str):
    model = loaded(named(name))
    return model.blocks, record.record(model.hf, model.blocks, {"input_ids": IDS})


def mapped(call, block, route: str, *positions: int) -> torch.Tensor:
    """Call a block's map at the recorded states of some tokens, and return the last one's output."""
    index = torch.tensor([positions])
    return blockmap.token_map(call, block, route, index)(call.input[0][index])[0, -1]


def assert_reproduced(call, block, route: str, *positions: int) -> None:
    found = mapped(call, block, route, *positions)
    torch.testing.assert_close(found, call.output[0, positions[-1]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["llama", "gpt-oss", "mistral-window", "falcon-alibi", "bloom-alibi", "mpt-alibi", "mamba2", "rwkv"]
)
def test_every_route_reproduces_the_output_of_its_block(name):
    found, calls = recorded(name)
    for call, block, route in zip(calls, found.modules, found.routes, strict=True):
        for positions in ([10], [4], [2, 7]):
            assert_reproduced(call, block, route, *positions)


def test_token_map_masks_where_naive_replay_fails():
    """A local layer slices a causal mask of its own by length and takes every query for the last tokens."""
    (found, calls), index, errors = recorded("gpt-neo"), torch.tensor([[4]]), []
    for call, block in zip(calls[:2], found.modules, strict=False):
        cache = blockmap._FrozenCache(blockmap.cached(call, block), index)
        naive = blockmap._few(call, index).with_argument("layer_past", cache).replay(block, call.input[0][index])
        errors.append(relative_error(naive[0, -1], call.output[0, 4]))
        assert_reproduced(call, block, "cache", 4)
    assert errors[0] < 1e-5 and errors[1] > 1e-2  # a global layer has no window, a local one has


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
    for name, routes in ROUTES.items():
        found, calls = recorded(name)
        assert found.routes == routes and found.route == " and ".join(sorted(set(routes)))
        assert route_choice.choose_route(calls[0], found.modules[0]) == routes[0]


def test_states_are_counted_and_recorded_once():
    traced = trace(loaded(named("mamba2")), torch.arange(1, 12)[None])
    # 8 heads of width 8 with states of 8, and a convolution of width 4 over 64 + 2 * 2 * 8 channels.
    size = 8 * 8 * 8 + 4 * (64 + 2 * 2 * 8)
    assert blockmap.state_size(traced.calls[0], traced.block(0)) == size
    assert differentiate.n_evaluated(traced, 0, [(5, 5)]) == 1 + size // (4 * 32)
    assert differentiate.n_evaluated(traced, 0, [(5, 7)]) == 3 * (1 + size // (4 * 32))
    cache, one = blockmap._RecordingCache(), torch.zeros(1, 2, 3, 4)
    assert isinstance(cache.update(one, one), KeysValues)
    refused(ValueError, "more than once", cache.update, one, one)


def test_recurrent_states_advance_one_token_at_a_time():
    """Mamba's form for many tokens begins anew, without a word: from a state, tokens are taken one by one."""
    found, calls = recorded("mamba")
    call, block = calls[1], found.modules[1]
    cache = DynamicCache(config=call.config)
    blockmap.advance(call, block, cache, 0, call.input[:, :3])
    at_once = blockmap.advance(call, block, cache, 3, call.input[:, 3:8])[0, -1]
    assert relative_error(at_once, call.output[0, 7]) > 1e-3
    assert_reproduced(call, block, "state", 3, 7)
    # What takes one token does not bound them: another map, and another Jacobian, without a word.
    found, calls = recorded("mamba2-bounded")
    assert route_choice.carries_state(calls[1], found.modules[1]) and found.route == "sequence"
    assert relative_error(mapped(calls[1], found.modules[1], "state", 6), calls[1].output[0, 6]) > 1e-3


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3-next", "lfm2"])
def test_evaluations_of_one_map_are_independent(name):
    """What a block writes over its states must not reach the next evaluation."""
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
