"""The check at load, made once for the same weights."""

from __future__ import annotations

import json
import os

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from coupling_lib import paths
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.models import remembered_checks
from coupling_lib.models.load import load_model


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(remembered_checks, "_SECONDS", 0.0)
    return tmp_path / "cache" / "checked"


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """The names of the models that were checked."""
    names, validate = [], remembered_checks.validate
    monkeypatch.setattr(remembered_checks, "validate", lambda hf, name: names.append(name) or validate(hf, name))
    return names


@pytest.mark.filterwarnings("ignore::coupling_lib.errors.PostNormWarning")
@pytest.mark.parametrize("save", [tiny.save_llama, tiny.save_bert])
def test_weights_that_passed_are_not_checked_again(tmp_path, cache, made, save):
    save(tmp_path / "m")
    first, again = load_model(tmp_path / "m"), load_model(tmp_path / "m")
    assert made == [str(tmp_path / "m")] and len(list(cache.iterdir())) == 1
    assert (first.blocks.routes, first.blocks.post_norm) == (again.blocks.routes, again.blocks.post_norm)
    assert first.hf.config._attn_implementation == again.hf.config._attn_implementation
    assert torch.equal(first.hf(torch.arange(4)[None])[0], again.hf(torch.arange(4)[None])[0])


def test_other_weights_another_precision_and_another_seed_are_checked(tmp_path, made):
    tiny.save_llama(tmp_path / "m")
    variants = [{}, {"precision": "bfloat16"}, {"untrained": True}, {"untrained": True, "seed": 1}]
    for arguments in variants * 2:
        load_model(tmp_path / "m", **arguments)
    assert len(made) == len(variants)
    file = tmp_path / "m" / "model.safetensors"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    load_model(tmp_path / "m")
    assert len(made) == len(variants) + 1


def test_a_function_that_was_exchanged_and_a_hook_on_every_module_are_checked(tmp_path, made, monkeypatch):
    tiny.save_llama(tmp_path / "m")
    load_model(tmp_path / "m")
    handle = register_module_forward_hook(lambda module, args, output: None)
    load_model(tmp_path / "m")
    handle.remove()
    assert len(made) == 2
    load_model(tmp_path / "m")
    assert len(made) == 2
    silu = nn.functional.silu
    monkeypatch.setattr(nn.functional, "silu", lambda x, inplace=False: silu(x).detach() / 2 + silu(x) / 2)
    with pytest.raises(UnsupportedModelError, match="not the derivative"):
        load_model(tmp_path / "m")


def test_weights_that_did_not_pass_are_refused_each_time(tmp_path, cache):
    tiny.save_llama(tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].clone()
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    for _ in range(2):
        with pytest.raises(ModelUnavailableError, match="hold 1 NaN"):
            load_model(tmp_path / "m")
    assert not cache.exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", json.dumps({"routes": ["attention"]}), json.dumps({"post_norm": []})]
)
def test_a_damaged_note_counts_for_nothing(tmp_path, cache, made, content):
    tiny.save_llama(tmp_path / "m")
    load_model(tmp_path / "m")
    next(cache.iterdir()).write_text(content)
    assert load_model(tmp_path / "m").blocks.route == "attention" and len(made) == 2


def test_where_nothing_can_be_written_and_where_it_is_quick_it_is_checked_each_time(tmp_path, cache, made, monkeypatch):
    tiny.save_llama(tmp_path / "m")
    cache.parent.write_text("a file where the folder would be")
    for _ in range(2):
        assert load_model(tmp_path / "m").blocks.route == "attention"
    cache.parent.unlink()
    monkeypatch.setattr(remembered_checks, "_SECONDS", 1e9)
    load_model(tmp_path / "m")
    assert len(made) == 3 and not cache.exists()
