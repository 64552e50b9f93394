"""Memory: what a model needs, what is free, and what is said where it does not fit."""

from __future__ import annotations

import gc
import weakref

import pytest
import tiny
import torch
import transformers

import coupling_lib as cl
from coupling_lib.blocks import free_memory, placing
from coupling_lib.blocks import weight_memory as memory
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.models.load import load_model
from coupling_lib.store.key import fingerprint


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "llama"
    return folder, tiny.save_llama(folder)


def one_line(error: pytest.ExceptionInfo) -> None:
    assert str(error.value) and "\n" not in str(error.value)


def test_memory_needed_counts_every_weight(llama):
    _, saved = llama
    need = memory.bytes_needed(saved)
    total = sum(p.numel() for p in saved.parameters())
    linear = sum(p.numel() for name, p in saved.named_parameters() if "_proj" in name)
    assert (need["float32"], need["bfloat16"], need["float16"]) == (4 * total, 2 * total, 2 * total)
    assert need["int8"] == linear + 4 * (total - linear)
    assert need["nf4"] == need["fp4"] == int(linear * 0.5625) + 4 * (total - linear)


def sizes(llama) -> tuple[dict[str, int], placing.Plan]:
    saved = llama[1]
    return memory.bytes_needed(saved), placing.plan(saved)


def test_a_model_that_fits_neither_way_is_refused_with_a_precision_that_does(llama, monkeypatch):
    need, division = sizes(llama)
    free = need["bfloat16"] + 1000
    assert free < division.bytes(torch.float32)
    monkeypatch.setattr(memory, "available", lambda device: free)
    with pytest.raises(
        ModelUnavailableError, match=r"needs 0\.2 MB in float32, and 0\.1 MB are free.*precision='bfloat16'"
    ) as error:
        load_model(llama[0])
    one_line(error)
    model = load_model(llama[0], precision="bfloat16")
    assert model.precision == "bfloat16"


def test_a_model_that_fits_in_no_precision_is_refused(llama, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 10)
    for untrained in (False, True):
        with pytest.raises(ModelUnavailableError, match="even precision='nf4' needs"):
            load_model(llama[0], precision="bfloat16", untrained=untrained)


def test_weights_that_cannot_be_drawn_even_by_blocks_are_refused(llama, monkeypatch):
    _, division = sizes(llama)
    least = 4 * (division.outside + 2 * division.largest)
    monkeypatch.setattr(memory, "available", lambda device: least - 1)
    with pytest.raises(ModelUnavailableError, match="while its untrained weights are drawn, one block at a time") as e:
        load_model(llama[0], untrained=True)
    one_line(e)


def test_a_model_that_does_not_fit_stays_on_disk_by_itself_and_says_so_in_one_line(llama, monkeypatch, capsys):
    folder, _ = llama
    need, division = sizes(llama)
    room = 4 * (tiny.BLOCKS * tiny.WIDTH**2 + division.largest)
    monkeypatch.setattr(memory, "available", lambda device: need["float32"] + room)
    assert not load_model(folder).offloaded and capsys.readouterr().out == ""
    monkeypatch.setattr(memory, "available", lambda device: need["float32"] + room - 1)
    model = load_model(folder)
    assert model.offloaded and tiny.llama(0).config.vocab_size == model.hf.config.vocab_size
    assert capsys.readouterr().out == (
        f"{folder}: measuring it in float32 needs 0.2 MB, and 0.2 MB are free on cpu; its blocks stay on disk and are "
        "read one at a time, the rest takes 0.1 MB\n"
    )
    bounded = load_model(folder, memory=division.bytes(torch.float32))
    assert fingerprint(model) == fingerprint(bounded) and capsys.readouterr().out == ""
    # Where it does not fit either way with room for a measurement, it is tried as before.
    monkeypatch.setattr(memory, "available", lambda device: need["nf4"])
    assert not load_model(folder, precision="nf4").offloaded


def test_quantised_weights_that_do_not_fit_are_told_of_blocks_on_disk(llama, monkeypatch):
    place, need = torch.device("cpu"), dict.fromkeys(sizes(llama)[0], 10**9)
    monkeypatch.setattr(memory, "available", lambda device: 10**7)
    with pytest.raises(ModelUnavailableError, match=r"pass precision='bfloat16', which leaves .* on disk \(9\.0 MB\)"):
        memory.check(need, "nf4", place, "large", 9 * 10**6)
    with pytest.raises(ModelUnavailableError, match="even precision='nf4' needs 1.0 GB: choose"):
        memory.check(need, "nf4", place, "large", 10**7 + 1)
    memory.check(need | {"nf4": 10**7}, "nf4", place, "large", 10**8)


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("500MB", 500 * 10**6),
        (" 1.5 TB ", 1500 * 10**9),
        ("12KiB", 12 * 1024),
        ("7B", 7),
        (2048, 2048),
        (None, None),
    ],
)
def test_an_amount_of_memory_is_read(budget, size):
    assert memory.parse(budget) == size


@pytest.mark.parametrize("budget", ["8", "8 gigs", "GiB", "-1GB", "0GB", "1e3MB", "", 0, -5, True, 2.5, ["1GB"]])
def test_what_is_no_amount_of_memory_is_refused_in_one_line(llama, budget):
    with pytest.raises(ParameterError, match="memory is .*; it must be a text such as '8GiB' or '500MB'") as error:
        load_model(llama[0], memory=budget)
    one_line(error)


def test_free_memory_is_bounded_by_the_control_group(tmp_path, monkeypatch):
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    unbounded = memory.available(torch.device("cpu"))
    for name, value in {
        "memory.max": "5000",
        "memory.current": "3000",
        "memory.stat": "anon 1\ninactive_file 700",
    }.items():
        (tmp_path / name).write_text(value)
    assert unbounded > 10**6 and memory.available(torch.device("cpu")) == 2700


@pytest.mark.parametrize("raised", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_memory_that_runs_out_while_loading_ends_in_one_line(llama, monkeypatch, raised):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", fail)
    with pytest.raises(ModelUnavailableError, match="memory ran out while .* in float32; pass precision='nf4'"):
        load_model(llama[0])


@pytest.mark.parametrize(("blocks", "kept"), [(1, True), (300, False)])
def test_a_model_that_was_let_go_is_gone_before_a_large_one_takes_its_place(blocks, kept):
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
