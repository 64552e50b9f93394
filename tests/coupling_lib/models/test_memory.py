"""Memory: what a model needs, what is free, and the error where it does not fit."""

import gc
import weakref

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
    folder = tmp_path_factory.mktemp("models") / "llama"
    return folder, tiny.save_llama(folder)


def test_bytes_needed_count_every_weight(llama, tmp_path, monkeypatch):
    _, saved = llama
    need = memory.bytes_needed(saved)
    total = sum(p.numel() for p in saved.parameters())
    linear = sum(p.numel() for name, p in saved.named_parameters() if "_proj" in name)
    assert (need["float32"], need["bfloat16"], need["float16"]) == (4 * total, 2 * total, 2 * total)
    assert need["int8"] == linear + 4 * (total - linear)
    assert need["nf4"] == need["fp4"] == int(linear * 0.5625) + 4 * (total - linear)
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    unbounded = memory.available(torch.device("cpu"))
    (tmp_path / "memory.max").write_text("5000")
    (tmp_path / "memory.current").write_text("3000")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 700")
    assert unbounded > 10**6 and memory.available(torch.device("cpu")) == 2700


def sizes(llama) -> tuple[dict[str, int], placing.Plan]:
    saved = llama[1]
    return memory.bytes_needed(saved), placing.plan(saved)


def test_models_that_do_not_fit_are_refused(llama, monkeypatch):
    need, division = sizes(llama)

    def with_free(free, message, **how):
        monkeypatch.setattr(memory, "available", lambda device: free)
        refused(ModelUnavailableError, message, cl.load_model, llama[0], **how)

    for untrained in (False, True):
        with_free(10, "even precision='nf4' needs", precision="bfloat16", untrained=untrained)
    drawn = "while its untrained weights are drawn, one block at a time"
    with_free(4 * (division.outside + 2 * division.largest) - 1, drawn, untrained=True)
    assert need["bfloat16"] + 1000 < division.bytes(torch.float32)
    fitting = r"needs 0\.2 MB in float32, and 0\.1 MB are free.*precision='bfloat16'"
    with_free(need["bfloat16"] + 1000, fitting)
    assert cl.load_model(llama[0], precision="bfloat16").precision == "bfloat16"
    place, need = torch.device("cpu"), dict.fromkeys(sizes(llama)[0], 10**9)
    monkeypatch.setattr(memory, "available", lambda device: 10**7)
    for on_disk, message in (
        (9 * 10**6, r"pass precision='bfloat16', which leaves .* on disk \(9\.0 MB\)"),
        (10**7 + 1, "even precision='nf4' needs 1.0 GB: choose"),
    ):
        refused(ModelUnavailableError, message, memory.check, need, "nf4", place, "large", on_disk)
    memory.check(need | {"nf4": 10**7}, "nf4", place, "large", 10**8)


def test_model_that_does_not_fit_stays_on_disk(llama, monkeypatch, capsys):
    folder, _ = llama
    need, division = sizes(llama)
    room = 4 * (tiny.BLOCKS * tiny.WIDTH**2 + division.largest)
    monkeypatch.setattr(memory, "available", lambda device: need["float32"] + room)
    assert not cl.load_model(folder).offloaded and capsys.readouterr().out == ""
    monkeypatch.setattr(memory, "available", lambda device: need["float32"] + room - 1)
    model = cl.load_model(folder)
    assert model.offloaded and tiny.llama(0).config.vocab_size == model.hf.config.vocab_size
    assert capsys.readouterr().out == (
        f"{folder}: measuring it in float32 needs 0.2 MB, and 0.2 MB are free on cpu; its blocks stay on disk and are "
        "read one at a time, the rest takes 0.1 MB\n"
    )
    bounded = cl.load_model(folder, memory=division.bytes(torch.float32))
    assert fingerprint(model) == fingerprint(bounded) and capsys.readouterr().out == ""
    # Where it does not fit either way with room for a measurement, it is tried as before.
    monkeypatch.setattr(memory, "available", lambda device: need["nf4"])
    assert not cl.load_model(folder, precision="nf4").offloaded


BUDGETS = {"8GiB": 8 * 2**30, "500MB": 500 * 10**6, " 1.5 TB ": 1500 * 10**9, "12KiB": 12 * 1024, "7B": 7, 2048: 2048}


def test_amounts_of_memory_are_read_or_refused(llama):
    assert {budget: memory.parse(budget) for budget in (*BUDGETS, None)} == BUDGETS | {None: None}
    message = "memory is .*; it must be a text such as '8GiB' or '500MB'"
    for budget in ("8", "8 gigs", "GiB", "-1GB", "0GB", "1e3MB", "", 0, -5, True, 2.5, ["1GB"]):
        refused(ParameterError, message, cl.load_model, llama[0], memory=budget)


@pytest.mark.parametrize("raised", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_memory_that_runs_out_while_loading_is_refused(llama, monkeypatch, raised):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fail)
    message = "memory ran out while .* in float32; pass precision='nf4'"
    refused(ModelUnavailableError, message, cl.load_model, llama[0])


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
