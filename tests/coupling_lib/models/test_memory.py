"""Memory: what a model needs, what is free, and the error where it does not fit."""

import gc
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import tiny
import torch
import transformers
from refusals import refused

import coupling_lib as cl
from coupling_lib.blocks import free_memory, placing
from coupling_lib.blocks import weight_memory as memory
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.store.key import fingerprint


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    saved = tiny.save_llama(folder := tmp_path_factory.mktemp("models") / "llama")
    return SimpleNamespace(folder=folder, hf=saved, need=memory.bytes_needed(saved), plan=placing.plan(saved))


def test_bytes_needed_count_every_weight(llama):
    total = sum(p.numel() for p in llama.hf.parameters())
    linear = sum(p.numel() for name, p in llama.hf.named_parameters() if "_proj" in name)
    few = {"int8": linear} | dict.fromkeys(("nf4", "fp4"), int(linear * 0.5625))
    whole = {"float32": 4 * total, "bfloat16": 2 * total, "float16": 2 * total}
    assert llama.need == whole | {name: size + 4 * (total - linear) for name, size in few.items()}


def test_free_memory_is_bounded_by_the_control_group(tmp_path, monkeypatch):
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    unbounded = memory.available(torch.device("cpu"))
    (tmp_path / "memory.max").write_text("5000")
    (tmp_path / "memory.current").write_text("3000")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 700")
    assert unbounded > 10**6 and memory.available(torch.device("cpu")) == 2700


def test_models_that_do_not_fit_are_refused(llama, monkeypatch):
    drawing, smaller = 4 * (llama.plan.outside + 2 * llama.plan.largest), llama.need["bfloat16"] + 1000
    assert smaller < llama.plan.bytes(torch.float32)
    for free, how, message in (
        (10, {"precision": "bfloat16"}, "even precision='nf4' needs"),
        (10, {"precision": "bfloat16", "untrained": True}, "even precision='nf4' needs"),
        (drawing - 1, {"untrained": True}, "while its untrained weights are drawn, one block at a time"),
        (smaller, {}, r"needs 0\.2 MB in float32, and 0\.1 MB are free.*precision='bfloat16'"),
    ):
        monkeypatch.setattr(memory, "available", lambda device, free=free: free)
        refused(ModelUnavailableError, message, cl.load_model, llama.folder, **how)
    assert cl.load_model(llama.folder, precision="bfloat16").precision == "bfloat16"
    place, need = torch.device("cpu"), dict.fromkeys(llama.need, 10**9)
    monkeypatch.setattr(memory, "available", lambda device: 10**7)
    for on_disk, message in (
        (9 * 10**6, r"pass precision='bfloat16', which leaves .* on disk \(9\.0 MB\)"),
        (10**7 + 1, "even precision='nf4' needs 1.0 GB: choose"),
    ):
        refused(ModelUnavailableError, message, memory.check, need, "nf4", place, "large", on_disk)
    memory.check(need | {"nf4": 10**7}, "nf4", place, "large", 10**8)


def test_model_that_does_not_fit_stays_on_disk(llama, monkeypatch, capsys):
    room = llama.need["float32"] + 4 * (tiny.BLOCKS * tiny.WIDTH**2 + llama.plan.largest)
    monkeypatch.setattr(memory, "available", lambda device: room)
    assert not cl.load_model(llama.folder).offloaded and capsys.readouterr().out == ""
    monkeypatch.setattr(memory, "available", lambda device: room - 1)
    model = cl.load_model(llama.folder)
    assert model.offloaded and capsys.readouterr().out == (
        f"{llama.folder}: measuring it in float32 needs 0.2 MB, and 0.2 MB are free on cpu; its blocks stay on disk "
        "and are read one at a time, the rest takes 0.1 MB\n"
    )
    bounded = cl.load_model(llama.folder, memory=llama.plan.bytes(torch.float32))
    assert fingerprint(model) == fingerprint(bounded) and capsys.readouterr().out == ""
    # Where it does not fit either way with room for a measurement, it is tried as before.
    monkeypatch.setattr(memory, "available", lambda device: llama.need["nf4"])
    assert not cl.load_model(llama.folder, precision="nf4").offloaded


BUDGETS = {"8GiB": 8 * 2**30, "500MB": 500 * 10**6, " 1.5 TB ": 1500 * 10**9, "12KiB": 12 * 1024, "7B": 7, 2048: 2048}


def test_amounts_of_memory_are_read_or_refused(llama):
    assert {budget: memory.parse(budget) for budget in (*BUDGETS, None)} == BUDGETS | {None: None}
    for budget in ("8", "8 gigs", "GiB", "-1GB", "0GB", "1e3MB", "", 0, -5, True, 2.5, ["1GB"]):
        message = "memory is .*; it must be a text such as '8GiB' or '500MB'"
        refused(ParameterError, message, cl.load_model, llama.folder, memory=budget)


@pytest.mark.parametrize("raised", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_memory_that_runs_out_while_loading_is_refused(llama, monkeypatch, raised):
    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", Mock(side_effect=raised))
    message = "memory ran out while .* in float32; pass precision='nf4'"
    refused(ModelUnavailableError, message, cl.load_model, llama.folder)


@pytest.mark.parametrize(("blocks", "kept"), [(1, True), (300, False)])
def test_deleted_model_makes_room_for_another(blocks, kept):
    config = transformers.LlamaConfig(hidden_size=512, intermediate_size=512, num_hidden_layers=blocks, vocab_size=64)
    arguments = {"dtype": torch.float32, "device_map": "cpu"}
    gc.disable()
    try:
        model = cl.load_model("nano-neox")
        measured = cl.measure_depth(model, ["Some words"], ks=(4,))
        weights = weakref.ref(model.hf)
        del model
        placing.choose(
            transformers.LlamaForCausalLM, config, "float32", arguments, [torch.device("cpu")], "large",
            spread=False, untrained=True, budget=None,
        )  # fmt: skip
        assert (weights() is not None) == kept and measured.sizes["block_1"] == 12
    finally:
        gc.enable()
