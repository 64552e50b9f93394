"""Models on several cards: who lies where, and the same numbers as on one. No card is needed: see `pretend_cards`."""

import accelerate
import numpy as np
import pytest
import torch
from families import named
from pretend_cards import CARDS, two_cards
from refusals import refused

import coupling_lib as cl
from coupling_lib.blocks import placing as places
from coupling_lib.blocks import precision
from coupling_lib.blocks import weight_memory as memory
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


@pytest.mark.parametrize(
    ("sizes", "rooms", "expected"),
    [
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
    ],
)
def test_parts_are_shared_out_evenly_in_order(sizes, rooms, expected):
    assert places.distribute(sizes, rooms) == expected


class Machine:
    """Cards with so much memory for weights, as a share of a tiny Llama's, beside what its Jacobians take."""

    def __init__(self, monkeypatch, *free: float, stored: str = "float32") -> None:
        self.hf, self.stored = named("llama").build().float(), stored
        self.need = memory.bytes_needed(self.hf)
        self.division = places.plan(self.hf)
        self.cards = [torch.device("cuda", number) for number in range(len(free))]
        # Jacobians, activations, and the float32 copy of a block that is stored otherwise.
        beside = 4 * (3 * 32**2 + self.division.largest * (1 if stored == "float32" else 2))
        room = {card: beside + int(part * self.need[stored]) for card, part in zip(self.cards, free, strict=True)}
        monkeypatch.setattr(memory, "available", lambda device: room.get(device, 10**9))

    def choose(self, **options) -> places.Placing:
        arguments = precision.loading_arguments(self.stored)
        options = dict(spread=False, untrained=False, budget=None) | options
        return places.choose(type(self.hf), self.hf.config, self.stored, arguments, self.cards, "tiny", **options)


def test_model_that_fits_lies_on_one_card(monkeypatch, capsys):
    machine = Machine(monkeypatch, 9, 9)
    first, second = machine.cards
    placing = machine.choose()
    assert (placing.device, placing.blocks) == (first, ())
    assert machine.choose(spread=True).blocks == (first, second, second)
    assert capsys.readouterr().out == ""
    machine = Machine(monkeypatch, 99, 99)
    total = machine.need["float32"]
    assert machine.choose(budget=total).blocks == ()
    assert machine.choose(budget=total - 1).blocks == (*machine.cards[:1], *machine.cards[1:] * 2)
    assert machine.choose(budget=total // 2).on_disk


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "nf4"])
def test_model_too_large_for_one_card_is_spread(monkeypatch, capsys, stored):
    machine = Machine(monkeypatch, 0.8, 0.8, stored=stored)
    placing = machine.choose()
    assert {placing.device, *placing.blocks} == set(machine.cards) and len(placing.blocks) == 3 and not placing.on_disk
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"tiny: measuring it in {stored} needs ") and line.endswith("spread over 2 cards")
    # Every weight has one place, and a block's are in one.
    where = placing.device_map()
    for name, _ in machine.hf.named_parameters():
        (place,) = [place for part, place in where.items() if name == part or name.startswith(f"{part}.")]
        block = name.split(".")[2] if ".layers." in name else None
        assert place == (placing.device if block is None else placing.blocks[int(block)])


def test_model_too_large_for_cards_stays_on_disk(monkeypatch, capsys):
    machine = Machine(monkeypatch, 0.6, 0.3)
    for spread in (False, True):
        placing = machine.choose(spread=spread)
        assert placing.on_disk and set(placing.blocks) == {places.DISK} and placing.device == machine.cards[0]
        assert "its blocks stay on disk" in capsys.readouterr().out
    for stored in ("float32", "nf4"):
        machine = Machine(monkeypatch, -9, -9, stored=stored)
        message = r"'tiny' needs .* in .*, and .* are free on cuda:0; "
        refused(ModelUnavailableError, message, machine.choose, spread=True)


def test_number_of_blocks_drawn_at_once_follows_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    machine = Machine(monkeypatch, 9, 9)
    outside, block = 4 * machine.division.outside, 8 * machine.division.largest
    for spread in (False, True):
        for blocks, most in ((1, 1), (3, 3), (9, 5)):
            budget = outside + blocks * block
            assert machine.choose(spread=spread, untrained=True, budget=max(budget, 1)).at_once == most
    assert machine.choose().at_once == 1


def test_device_auto_lists_the_current_card_first(monkeypatch, folders):
    assert places.devices("auto") == places.devices(None) == [CPU]
    assert cl.load_model(folders / "llama", device="auto").device == CPU
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [card.index for card in places.devices("auto")] == [1, 0, 2]
    assert places.devices("cuda:2") == [torch.device("cuda:2")]
    refused(ParameterError, r"device is 'all'; it must be 'cpu', 'cuda', 'cuda:N' or 'auto'$", places.devices, "all")


def check_same(spread, whole) -> None:
    ours, wanted = cl.trace(spread, IDS), cl.trace(whole, IDS)
    assert ours.routes == wanted.routes and torch.equal(ours.hidden, wanted.hidden)
    for block in range(3):
        for boundary in ("block", "hidden_states"):
            J, expected = (traced.jacobian(block, boundary=boundary).dense() for traced in (ours, wanted))
            assert torch.equal(J, expected)
        assert torch.equal(ours.jacobian(block, 2, 5).dense(), wanted.jacobian(block, 2, 5).dense())


@pytest.mark.parametrize("untrained", [False, True])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "nf4"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_spread_model_equals_the_whole_bit_for_bit(folders, monkeypatch, kind, stored, untrained):
    given = dict(precision=stored, untrained=untrained)
    whole = cl.load_model(folders / kind, **given)
    monkeypatch.setattr(places, "devices", lambda device: [CPU, CPU])
    spread = cl.load_model(folders / kind, device="auto", **given)
    hooks = [getattr(part, "_hf_hook", None) for part in spread.hf.modules()]
    assert sum(hook is not None for hook in hooks) == 3
    assert all(block._hf_hook.io_same_device for block in spread.blocks.modules)
    assert (spread.device, spread.offloaded, spread.blocks.path) == (CPU, False, whole.blocks.path)
    assert fingerprint(spread) == fingerprint(whole)
    check_same(spread, whole)


def test_model_dispatched_by_accelerate_gives_the_same_numbers(folders):
    whole = cl.load_model(folders / "llama")
    hf = cl.load_model(folders / "llama").hf
    where = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    where |= {f"model.layers.{number}": "cpu" for number in range(3)}
    accelerate.dispatch_model(hf, where, force_hooks=True)
    assert hasattr(hf.model.layers[0].mlp.up_proj, "_hf_hook")
    check_same(cl.wrap_model(hf), whole)


def near(ours: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(ours.cpu(), wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize(("kind", "given"), [("llama", {}), ("gpt2", dict(precision="bfloat16", untrained=True))])
def test_no_operation_mixes_tensors_of_two_cards(folders, monkeypatch, kind, given):
    whole = cl.load_model(folders / kind, **given)
    wanted = cl.trace(whole, IDS)
    dense = [wanted.jacobian(block, boundary="hidden_states").dense() for block in range(3)]
    depth, paths = cl.measure_depth(whole, IDS, ks=(2,)), cl.measure_trajectories(whole, IDS)
    moved, entropies = cl.measure_perturbation(whole, IDS), logit_lens_entropies(wanted)
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
        measured = cl.measure_depth(spread, IDS, ks=(2,)), cl.measure_trajectories(spread, IDS)
        measured = *measured, cl.measure_perturbation(spread, IDS)
    for found, expected in zip(measured, (depth, paths, moved), strict=True):
        for name in ("normalized_miscoupling", "line_shape_score", "amplification"):
            if name in expected:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-6)


def test_pretended_cards_refuse_tensors_of_two_devices(monkeypatch):
    with two_cards(monkeypatch):
        a, b = torch.ones(3, device=CARDS[0]), torch.ones(3).to(CARDS[1])
        with pytest.raises(RuntimeError, match="met tensors on lazy:0, lazy:1"):
            a + b
        assert (a + b.to(CARDS[0]) + 1).tolist() == [3, 3, 3]
        with pytest.raises(RuntimeError, match="met tensors on cpu, lazy:0"):
            torch.ones(3)[a > 0]
