"""Untrained weights, each block drawn from a seed of its own: the same numbers however and wherever they are kept."""

import copy
import gc
import os
import subprocess
import sys
import tempfile
import threading
from functools import partial, partialmethod

import pytest
import tiny
import torch
import transformers
from families import FAMILIES, Family, each_family, named
from refusals import refused
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from coupling_lib.blocks import offload, placing, weight_memory
from coupling_lib.blocks.precision import loading_arguments
from coupling_lib.errors import ModelUnavailableError, UnsupportedModelError
from coupling_lib.inputs.traced import trace
from coupling_lib.models import temporary_files, untrained
from coupling_lib.models.load import load_model
from coupling_lib.store.key import fingerprint

KINDS = ["llama", "gpt-neox", "gpt2", "mixtral"]


def made_of(family: Family) -> tuple[type[PreTrainedModel], transformers.PreTrainedConfig]:
    config = getattr(transformers, family.config)(**family.arguments)
    if family.model:
        return getattr(transformers, family.model), config
    return AutoModelForCausalLM._model_mapping[type(config)], config


def drawn(cls, config, seed=5, precision="float32", at_once=1) -> PreTrainedModel:
    where = placing.Placing(torch.device("cpu"), placing.plan(weight_memory.skeleton(cls, config)), at_once=at_once)
    return untrained.initialise(cls, config, seed, where, loading_arguments(precision), None)


@each_family(FAMILIES)
def test_untrained_weights_are_distributed_as_by_the_constructor(family, tmp_path):
    cls, config = made_of(family)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ours = drawn(cls, config)
    assert torch.equal(torch.rand(3), expected)
    wanted = cls._from_config(copy.deepcopy(config), dtype=torch.float32)
    values, others = ours.state_dict(), wanted.state_dict()
    assert values.keys() == others.keys()
    for name, value in values.items():
        value, other = value.float(), others[name].float()
        if (other == other.flatten()[0]).all():
            assert torch.equal(value, other), name
        else:  # four errors of the difference of two standard deviations and of two means
            n, spread = value.numel(), other.std()
            assert abs(value.std() - spread) < 4 * spread / n**0.5, name
            assert abs(value.mean() - other.mean()) < 4 * spread * (2 / n) ** 0.5, name
    for (name, buffer), (_, other) in zip(ours.named_buffers(), wanted.named_buffers(), strict=True):
        assert torch.equal(buffer, other), name
    untrained.draw(cls, config, 5, torch.float32, tmp_path, at_once=2)
    again, report = cls.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and tiny.same_weights(again, ours)
    if family.name != "zamba2":  # whose blocks share a layer, which lies with the first
        assert len(list(tmp_path.glob("*.safetensors"))) == len(placing.plan(again).blocks) + 1


def test_tied_weight_is_drawn_as_by_its_owner(tmp_path):
    # ModernBERT draws its decoder, which is tied to the embedding, seven times narrower in a model of 22 blocks.
    config = transformers.ModernBertConfig(
        **dict(hidden_size=32, num_hidden_layers=22, num_attention_heads=4, intermediate_size=64, vocab_size=500),
        **dict(pad_token_id=7, bos_token_id=0, eos_token_id=0, cls_token_id=0, sep_token_id=0),
    )
    ours, theirs = drawn(transformers.ModernBertForMaskedLM, config), transformers.ModernBertForMaskedLM(config)
    embedding, wanted = ours.get_input_embeddings().weight, theirs.get_input_embeddings().weight
    assert ours.get_output_embeddings().weight is embedding
    assert float((embedding.std() / wanted.std()).detach()) == pytest.approx(1, abs=0.05)
    untrained.draw(type(ours), config, 5, torch.float32, tmp_path)
    assert tiny.same_weights(type(ours).from_pretrained(tmp_path, dtype=torch.float32), ours)


def test_untrained_block_depends_on_seed_and_name_only():
    shape = dict(tiny.STACK, vocab_size=50)
    config = transformers.LlamaConfig(**shape | {"num_hidden_layers": 3})
    three = drawn(transformers.LlamaForCausalLM, config, at_once=3).model
    alone = drawn(transformers.LlamaForCausalLM, transformers.LlamaConfig(**shape | {"num_hidden_layers": 1})).model
    other = drawn(transformers.LlamaForCausalLM, config, seed=6).model
    weight = [layer.mlp.up_proj.weight for layer in three.layers]
    assert torch.equal(weight[0], alone.layers[0].mlp.up_proj.weight)
    assert torch.equal(three.embed_tokens.weight, alone.embed_tokens.weight)
    pairs = torch.stack([w.flatten() for w in (*weight, other.layers[0].mlp.up_proj.weight)])
    apart = torch.corrcoef(pairs)[~torch.eye(4, dtype=torch.bool)]
    assert apart.abs().max() < 5 / weight[0].numel() ** 0.5


@pytest.mark.parametrize("precision", ["bfloat16", "nf4", "fp4", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_untrained_weights_are_stored_as_from_a_checkpoint(kind, precision, tmp_path):
    cls, config = made_of(named(kind))
    drawn(cls, config).save_pretrained(tmp_path)
    wanted = cls.from_pretrained(tmp_path, **loading_arguments(precision))
    ours = drawn(cls, config, precision=precision, at_once=2)
    found, read = ours.state_dict(), wanted.state_dict()
    assert found.keys() == read.keys() and all(torch.equal(found[name], read[name]) for name in read)
    assert [type(module) for module in ours.modules()] == [type(module) for module in wanted.modules()]
    assert not [name for name, weight in ours.named_parameters() if weight.is_meta]


def test_untrained_embedded_model_is_its_step_0():
    hows = {"revision": "step0"}, {"untrained": True}, {"untrained": True, "seed": 1}
    start, fresh, other = (load_model("nano-neox", **how) for how in hows)
    torch.manual_seed(0)
    wanted = type(start.hf)(start.hf.config)
    assert tiny.same_weights(start.hf, wanted) and tiny.same_weights(fresh.hf, wanted)
    assert not tiny.same_weights(other.hf, wanted)


@pytest.mark.parametrize("at_once", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_drawing_holds_no_more_blocks_than_allowed(at_once, tmp_path, monkeypatch):
    # No other test has a model of this width alive.
    config = transformers.LlamaConfig(**dict(tiny.STACK, num_hidden_layers=6, hidden_size=88), vocab_size=50)
    seen, write, looking = [], untrained._Files.write, threading.Lock()

    def note(files, part):
        with looking:
            alive = [x for x in gc.get_objects() if isinstance(x, nn.Parameter) and not x.is_meta]
            seen.append(sum(x.shape == (88, 88) for x in alive) // 4)
            del alive
        write(files, part)

    gc.collect()
    monkeypatch.setattr(untrained._Files, "write", note)
    untrained.draw(transformers.LlamaForCausalLM, config, 0, torch.float32, tmp_path, at_once=at_once)
    assert len(seen) == 7 and 1 <= max(seen) <= at_once and seen[-1] == 0


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    cls, config = made_of(named(request.param))
    config.architectures = [cls.__name__]
    config.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_untrained_blocks_on_disk_give_the_same_numbers(folder, stored):
    how = {"untrained": True, "precision": stored}
    whole = load_model(folder, seed=3, **how)
    how["memory"] = placing.plan(whole.hf).bytes(getattr(torch, stored))
    small, again, other = (load_model(folder, seed=seed, **how) for seed in (3, 3, 4))
    assert small.offloaded and not whole.offloaded and (small.seed, small.untrained) == (3, True)
    assert fingerprint(small) == fingerprint(again) != fingerprint(other)
    ids = torch.arange(3, 12)[None]
    ours, wanted = trace(small, ids), trace(whole, ids)
    assert torch.equal(ours.hidden, wanted.hidden)
    assert torch.equal(ours.jacobian(1).dense(), wanted.jacobian(1).dense())


@pytest.fixture
def load_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    need = placing.plan(tiny.save_llama(tmp_path / "model")).bytes(torch.float32)
    return partial(load_model, tmp_path / "model", untrained=True, memory=need)


def test_temporary_files_of_models_and_dead_processes_go(load_on_disk, tmp_path, monkeypatch):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    others = (
        f"{temporary_files.PREFIX}{os.getpid()}-a",
        "coupling_lib-abc",
        f"coupling_lib-else-{gone.stdout.strip()}-a",
    )
    for name in (*others, f"{temporary_files.PREFIX}{gone.stdout.strip()}-a"):
        (tmp_path / name).mkdir()
    model, kept = load_on_disk(), {"model", *others}
    assert len(list(tmp_path.glob("coupling_lib-*/*.safetensors"))) == tiny.BLOCKS + 1
    del model
    gc.collect()
    assert {path.name for path in tmp_path.iterdir()} == kept
    monkeypatch.setattr(offload, "load", lambda *given: 1 / 0)
    refused(UnsupportedModelError, "ZeroDivisionError", load_on_disk)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_full_disk_is_refused_before_drawing(load_on_disk, tmp_path, monkeypatch):
    usage = temporary_files.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(temporary_files.shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    refused(ModelUnavailableError, r"take 0\.2 MB of .* 0\.0 MB are free in .*TMPDIR", load_on_disk)


def forgetful(hf, original, module):
    if getattr(module, "out_features", None) != 64:
        original(hf, module)


def meddling(hf, original, module):
    original(hf, module)
    if type(module).__name__ == "LlamaModel":
        nn.init.zeros_(module.layers[1].mlp.up_proj.weight)


OTHER_WAYS = {
    "leaves weights out": (forgetful, r"LlamaModel gives model\.layers\.0\.mlp\.\w+\.weight no value"),
    "blocks from outside": (meddling, "not drawn block after block"),
}


@pytest.mark.parametrize(("initialise", "message"), OTHER_WAYS.values(), ids=OTHER_WAYS)
def test_family_that_initialises_otherwise_is_refused(load_on_disk, monkeypatch, initialise, message):
    family = transformers.LlamaPreTrainedModel
    monkeypatch.setattr(family, "_init_weights", partialmethod(initialise, family._init_weights))
    refused(UnsupportedModelError, message, load_on_disk)
