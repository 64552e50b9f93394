"""Untrained weights drawn one block at a time: those drawn at once, with one block in memory."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import tempfile
from itertools import chain, repeat
from pathlib import Path

import pytest
import tiny
import torch
import transformers
from families import FAMILIES, Family, each_family, named
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from coupling_lib.blocks import offload, placing, weight_memory
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.jacobian.tracing import trace
from coupling_lib.models import untrained
from coupling_lib.models.load import load_model
from coupling_lib.store.key import fingerprint

KINDS = ["llama", "gpt-neox", "gpt2", "mixtral"]


def made_of(family: Family) -> tuple[type[PreTrainedModel], transformers.PreTrainedConfig]:
    config = getattr(transformers, family.config)(**family.arguments)
    if family.model:
        return getattr(transformers, family.model), config
    return AutoModelForCausalLM._model_mapping[type(config)], config


def test_a_family_whose_blocks_share_a_layer_is_refused(tmp_path):
    """No block has all of its weights to itself."""
    with pytest.raises(UnsupportedModelError, match="weights are not drawn block after block"):
        untrained.draw(*made_of(named("zamba2")), 5, torch.float32, tmp_path)


@each_family(family for family in FAMILIES if family.name != "zamba2")
def test_every_weight_is_the_one_drawn_at_once_in_every_family(family, tmp_path):
    cls, config = made_of(family)
    torch.manual_seed(5)
    whole = cls._from_config(copy.deepcopy(config), dtype=torch.float32)
    wanted = whole.state_dict()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    untrained.draw(cls, config, 5, torch.float32, tmp_path)
    assert torch.equal(torch.rand(3), expected)
    found = {name: x for file in tmp_path.glob("*.safetensors") for name, x in load_file(file).items()}
    assert wanted.keys() - found.keys() <= set(whole.all_tied_weights_keys) and found.keys() <= wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    again, report = cls.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and tiny.same_weights(again, whole)


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    cls, config = made_of(named(request.param))
    config.architectures = [cls.__name__]
    config.save_pretrained(tmp_path)
    return tmp_path


def least(folder: Path, dtype: torch.dtype) -> int:
    hf = load_model(folder, untrained=True).hf
    return placing.plan(type(hf), hf.config).bytes(dtype)


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_blocks_on_disk_give_the_numbers_of_the_model_drawn_at_once(folder, stored):
    whole = load_model(folder, untrained=True, seed=3, precision=stored)
    small = load_model(folder, untrained=True, seed=3, precision=stored, memory=least(folder, getattr(torch, stored)))
    assert small.offloaded and not whole.offloaded and (small.seed, small.untrained) == (3, True)
    ids = torch.arange(3, 12)[None]
    ours, wanted = trace(small, ids), trace(whole, ids)
    assert torch.equal(ours.hidden, wanted.hidden)
    assert torch.equal(ours.jacobian(1).dense(), wanted.jacobian(1).dense())


@pytest.mark.parametrize("stored", ["bfloat16", "nf4"])
def test_a_model_that_fits_only_when_stored_is_drawn_by_block_and_held_as_a_whole(folder, stored, monkeypatch):
    whole = load_model(folder, untrained=True, seed=3, precision=stored)
    calls = []
    drawn = untrained.draw
    monkeypatch.setattr(untrained, "draw", lambda *given: calls.append(given) or drawn(*given))
    hf = load_model(folder, untrained=True).hf
    need = weight_memory.needed(type(hf), hf.config)["float32"]
    host = chain([need * 2] * 2, repeat(need - 1))  # on the device, then where it is drawn
    monkeypatch.setattr(weight_memory, "available", lambda device: next(host))
    again = load_model(folder, untrained=True, seed=3, precision=stored)
    assert len(calls) == 1 and not again.offloaded
    ours, wanted = again.hf.state_dict(), whole.hf.state_dict()
    assert ours.keys() == wanted.keys() and all(torch.equal(ours[name], wanted[name]) for name in wanted)
    assert fingerprint(again) == fingerprint(whole)


def test_the_key_of_a_model_drawn_to_disk_is_its_seed(folder):
    budget = least(folder, torch.float32)
    first, again, other = (load_model(folder, untrained=True, seed=n, memory=budget) for n in (3, 3, 4))
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)


def in_memory(of_a_block: dict[tuple[int, ...], int]) -> float:
    """How many blocks the parameters that live would fill, counting those whose shape only a block has."""
    alive = [x for x in gc.get_objects() if isinstance(x, nn.Parameter) and x.device.type != "meta"]
    return sum(x.numel() for x in alive if tuple(x.shape) in of_a_block) / sum(of_a_block.values())


def test_never_more_than_two_blocks_are_in_memory(tmp_path, monkeypatch):
    config = transformers.LlamaConfig(**dict(tiny.STACK, num_hidden_layers=6, intermediate_size=71), vocab_size=50)
    shapes: dict[tuple[int, ...], int] = {}
    for name, x in transformers.LlamaForCausalLM(config).named_parameters():
        if "layers.0.mlp" in name:
            shapes[tuple(x.shape)] = shapes.get(tuple(x.shape), 0) + x.numel()
    gc.collect()
    seen = []
    linear, write = nn.Linear.reset_parameters, untrained._Files.write

    def reset(module):
        linear(module)
        if module.in_features == 71 and not module.weight.is_meta:  # the last layer of a block; a look takes a second
            seen.append(in_memory(shapes))

    def note(files, tensors):
        seen.append(in_memory(shapes))
        write(files, tensors)

    monkeypatch.setattr(nn.Linear, "reset_parameters", reset)
    monkeypatch.setattr(untrained._Files, "write", note)
    untrained.draw(transformers.LlamaForCausalLM, config, 0, torch.float32, tmp_path)
    assert len([share for share in seen if share == 1]) >= 6 and 1 <= max(seen) <= 2
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 7 and "model.layers.2.mlp.up_proj.weight" in load_file(files[2])


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    tiny.save_llama(tmp_path / "m")
    budget = least(tmp_path / "m", torch.float32)
    model = load_model(tmp_path / "m", untrained=True, memory=budget)
    assert len(list((tmp_path / "temporary").glob("*/*.safetensors"))) == tiny.BLOCKS + 1
    del model
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())
    monkeypatch.setattr(offload, "load", lambda *given: 1 / 0)
    with pytest.raises(UnsupportedModelError, match="ZeroDivisionError"):
        load_model(tmp_path / "m", untrained=True, memory=budget)
    assert not list((tmp_path / "temporary").iterdir())


def test_what_a_killed_process_left_is_removed_and_what_lives_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    kept = [
        f"{untrained._PREFIX}{os.getpid()}-a",
        f"coupling_lib-elsewhere-{gone.stdout.strip()}-a",
        "coupling_lib-abc",
    ]
    for name in (*kept, f"{untrained._PREFIX}{gone.stdout.strip()}-a"):
        (tmp_path / "temporary" / name).mkdir(parents=True)
    tiny.save_llama(tmp_path / "m")
    load_model(tmp_path / "m", untrained=True, precision="nf4")
    assert {path.name for path in (tmp_path / "temporary").iterdir()} == set(kept)


def test_a_disk_without_room_is_said_before_anything_is_drawn(tmp_path, monkeypatch):
    tiny.save_llama(tmp_path)
    budget = least(tmp_path, torch.float32)
    usage = untrained.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(untrained.shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with pytest.raises(ModelUnavailableError, match=r"take 0\.2 MB of .* 0\.0 MB are free in .*TMPDIR"):
        load_model(tmp_path, untrained=True, memory=budget)


def test_a_family_that_changes_blocks_from_outside_is_refused_rather_than_drawn_otherwise(tmp_path, monkeypatch):
    original = transformers.LlamaPreTrainedModel._init_weights

    def meddling(self, module):
        original(self, module)
        if type(module).__name__ == "LlamaModel":
            nn.init.zeros_(module.layers[1].mlp.up_proj.weight)

    tiny.save_llama(tmp_path)
    budget = least(tmp_path, torch.float32)
    monkeypatch.setattr(transformers.LlamaPreTrainedModel, "_init_weights", meddling)
    with pytest.raises(UnsupportedModelError, match="not drawn block after block"):
        load_model(tmp_path, untrained=True, memory=budget)
