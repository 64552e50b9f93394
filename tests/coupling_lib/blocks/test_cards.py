"""Models on several cards: who lies where, and the same numbers as on one. No card is needed: see `pretend_cards`."""

from itertools import product

import accelerate
import numpy as np
import pytest
import torch
from families import named
from pretend_cards import CARDS, two_cards
from refusals import refused

import coupling_lib as cl
from coupling_lib.blocks import placing, precision, weight_memory
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.measures.trajectories import logit_lens_entropies
from coupling_lib.store.key import fingerprint

IDS = torch.arange(3, 12)[None]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("cards")
    for name in ("llama", "gpt2"):
        named(name).build().float().save_pretrained(root / name)
    return root


SHARED_OUT = [
    ([1, 1, 1, 1], [8, 8], [0, 0, 1, 1]),
    ([1, 1, 1, 1], [10**12, 10**12], [0, 0, 1, 1]),  # however much room there is
    ([2, 1, 1, 1, 1], [4, 4, 4], [0, 1, 1, 2, 2]),
    ([1, 1, 1, 1], [1, 4], [0, 1, 1, 1]),
    ([1, 1, 1, 1, 1], [2, 4], [0, 0, 1, 1, 1]),
    ([3, 3, 3], [3, 7], [0, 1, 1]),
    ([5, 1, 1], [4, 8], [1, 1, 1]),
    ([1, 3, 3], [4, 3], [0, 0, 1]),
    ([1, 3, 3], [4, 2.9], None),
    ([1, 1], [-5, 3], [1, 1]),
    ([1, 1], [-5, -3], None),
]


@pytest.mark.parametrize(("sizes", "rooms", "expected"), SHARED_OUT)
def test_parts_are_shared_out_evenly_in_order(sizes, rooms, expected):
    assert placing.distribute(sizes, rooms) == expected


class Machine:
    """Cards with so much memory for weights, as a share of a tiny Llama's, beside what its Jacobians take."""

    def __init__(self, monkeypatch, *free: float, stored: str = "float32") -> None:
        self.hf, self.stored = named("llama").build().float(), stored
        self.need = weight_memory.bytes_needed(self.hf)
        self.division = placing.plan(self.hf)
        self.cards = [torch.device("cuda", number) for number in range(len(free))]
        # Jacobians, activations, and the float32 copy of a block that is stored otherwise.
        beside = 4 * (3 * 32**2 + self.division.largest * (1 if stored == "float32" else 2))
        room = {card: beside + int(part * self.need[stored]) for card, part in zip(self.cards, free, strict=True)}
        monkeypatch.setattr(weight_memory, "available", lambda device: room.get(device, 10**9))

    def choose(self, **options) -> placing.Placing:
        arguments = precision.loading_arguments(self.stored)
        options = dict(spread=False, untrained=False, budget=None) | options
        return placing.choose(type(self.hf), self.hf.config, self.stored, arguments, self.cards, "tiny", **options)


def test_model_that_fits_lies_on_one_card(monkeypatch, capsys):
    machine = Machine(monkeypatch, 9, 9)
    first, second = machine.cards
    chosen, halves = machine.choose(), (first, second, second)
    assert (chosen.device, chosen.blocks, chosen.at_once) == (first, (), 1)
    assert machine.choose(spread=True).blocks == halves
    assert capsys.readouterr().out == ""
    machine = Machine(monkeypatch, 99, 99)
    total = machine.need["float32"]
    budgets = {total: (), total - 1: halves, total // 2: (placing.DISK,) * 3}
    assert {budget: machine.choose(budget=budget).blocks for budget in budgets} == budgets


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "nf4"])
def test_model_too_large_for_one_card_is_spread(monkeypatch, capsys, stored):
    machine = Machine(monkeypatch, 0.8, 0.8, stored=stored)
    chosen = machine.choose()
    assert {chosen.device, *chosen.blocks} == set(machine.cards) and len(chosen.blocks) == 3 and not chosen.on_disk
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"tiny: measuring it in {stored} needs ") and line.endswith("spread over 2 cards")
    # Every weight has one place, and a block's are in one.
    for name, _ in machine.hf.named_parameters():
        (place,) = [place for part, place in chosen.device_map().items() if f"{name}.".startswith(f"{part}.")]
        assert place == (chosen.blocks[int(name.split(".")[2])] if ".layers." in name else chosen.device)


def test_model_too_large_for_cards_stays_on_disk(monkeypatch, capsys):
    machine = Machine(monkeypatch, 0.6, 0.3)
    for spread in (False, True):
        chosen = machine.choose(spread=spread)
        assert (chosen.device, chosen.blocks) == (machine.cards[0], (placing.DISK,) * 3)
        assert "its blocks stay on disk" in capsys.readouterr().out
    message = r"'tiny' needs .* in .*, and .* are free on cuda:0; "
    for stored in ("float32", "nf4"):
        choose = Machine(monkeypatch, -9, -9, stored=stored).choose
        refused(ModelUnavailableError, message, choose, spread=True)


def test_number_of_blocks_drawn_at_once_follows_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    machine = Machine(monkeypatch, 9, 9)
    outside, block = 4 * machine.division.outside, 8 * machine.division.largest
    for spread, (blocks, most) in product((False, True), ((1, 1), (3, 3), (9, 5))):
        assert machine.choose(spread=spread, untrained=True, budget=outside + blocks * block).at_once == most
    assert machine.choose().at_once == 1


def test_device_auto_lists_the_current_card_first(monkeypatch, folders):
    assert placing.devices("auto") == placing.devices(None) == [CPU]
    assert cl.load_model(folders / "llama", device="auto").device == CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [card.index for card in placing.devices("auto")] == [1, 0, 2]
    assert placing.devices("cuda:2") == [torch.device("cuda:2")]
    refused(ParameterError, r"device is 'all'; it must be 'cpu', 'cuda', 'cuda:N' or 'auto'$", placing.devices, "all")


def jacobians(traced: cl.Trace) -> list[torch.Tensor]:
    """Form three Jacobians of each block: of the last token up to both boundaries, and between two tokens."""
    how = dict(boundary="block"), dict(boundary="hidden_states"), dict(token_in=2, token_out=5)
    return [traced.jacobian(block, **given).dense() for block, given in product(range(3), how)]


def check_same(model: cl.Model, whole: cl.Model) -> None:
    ours, wanted = cl.trace(model, IDS), cl.trace(whole, IDS)
    assert ours.routes == wanted.routes and torch.equal(ours.hidden, wanted.hidden)
    torch.testing.assert_close(jacobians(ours), jacobians(wanted), rtol=0, atol=0)


@pytest.mark.parametrize("untrained", [False, True])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "nf4"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_spread_model_equals_the_whole_bit_for_bit(folders, monkeypatch, kind, stored, untrained):
    given = dict(precision=stored, untrained=untrained)
    whole = cl.load_model(folders / kind, **given)
    monkeypatch.setattr(placing, "devices", lambda device: [CPU, CPU])
    spread = cl.load_model(folders / kind, device="auto", **given)
    hooks = [getattr(part, "_hf_hook", None) for part in spread.hf.modules()]
    assert sum(hook is not None for hook in hooks) == 3
    assert all(block._hf_hook.io_same_device for block in spread.blocks.modules)
    assert (spread.device, spread.offloaded, spread.blocks.path) == (CPU, False, whole.blocks.path)
    assert fingerprint(spread) == fingerprint(whole)
    check_same(spread, whole)


def test_model_dispatched_by_accelerate_gives_the_same_numbers(folders):
    whole, other = (cl.load_model(folders / "llama") for _ in range(2))
    parts = "model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", *(f"model.layers.{n}" for n in range(3))
    accelerate.dispatch_model(other.hf, dict.fromkeys(parts, "cpu"), force_hooks=True)
    assert hasattr(other.hf.model.layers[0].mlp.up_proj, "_hf_hook")
    check_same(cl.wrap_model(other.hf), whole)


def near(ours: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(ours.cpu(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def measured(model: cl.Model) -> dict[str, np.ndarray]:
    depth, paths = cl.measure_depth(model, IDS, ks=(2,)), cl.measure_trajectories(model, IDS)
    moved = cl.measure_perturbation(model, IDS)
    return {"depth": depth.normalized_miscoupling, "paths": paths.line_shape_score, "moved": moved.amplification}


@pytest.mark.parametrize(("kind", "given"), [("llama", {}), ("gpt2", dict(precision="bfloat16", untrained=True))])
def test_no_operation_mixes_tensors_of_two_cards(folders, monkeypatch, kind, given):
    whole = cl.load_model(folders / kind, **given)
    wanted, expected = cl.trace(whole, IDS), measured(whole)
    dense = [wanted.jacobian(block, boundary="hidden_states").dense() for block in range(3)]
    entropies = logit_lens_entropies(wanted)
    with two_cards(monkeypatch):
        spread = cl.load_model(folders / kind, device="auto", **given)
        assert [next(block.parameters()).device for block in spread.blocks.modules] == [CARDS[0], CARDS[1], CARDS[1]]
        assert spread.device == CARDS[0]
        ours = cl.trace(spread, IDS)
        assert ours.hidden.device == ours.device == CARDS[1] and near(ours.hidden, wanted.hidden)
        for block in range(3):
            J = ours.jacobian(block, boundary="hidden_states")
            assert J.device == CARDS[min(block, 1)] and near(J.dense(), dense[block])
        assert all(near(value, entropies[name]) for name, value in logit_lens_entropies(ours).items())
        found = measured(spread)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=1e-6)


def test_pretended_cards_refuse_tensors_of_two_devices(monkeypatch):
    with two_cards(monkeypatch):
        a, b = torch.ones(3, device=CARDS[0]), torch.ones(3).to(CARDS[1])
        with pytest.raises(RuntimeError, match="met tensors on lazy:0, lazy:1"):
            a + b
        assert (a + b.to(CARDS[0]) + 1).tolist() == [3, 3, 3]
        with pytest.raises(RuntimeError, match="met tensors on cpu, lazy:0"):
            torch.ones(3)[a > 0]
