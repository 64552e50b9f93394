"""Models larger than memory: blocks read from disk one at a time, and the same numbers as with the whole in memory."""

import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from families import named
from reference import relative_error
from refusals import refused
from safetensors.torch import load_file
from torch import nn

import coupling_lib as cl
from coupling_lib.blocks import offload, placing, storage, validate, weight_memory
from coupling_lib.blocks.find import find_blocks
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.models import wrap

IDS = torch.arange(3, 12)[None]
KINDS = ["llama", "gpt2", "gpt-neox", "mixtral", "bloom-alibi", "vit"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three blocks of each family, their weights split over several files."""
    root = tmp_path_factory.mktemp("offload")
    for name in KINDS:
        named(name).build().float().save_pretrained(root / name, max_shard_size="20KB")
        assert len(list((root / name).glob("*.safetensors"))) > 3
    return root


@cache
def whole_model(folder: Path, precision: str = "float32") -> cl.Model:
    """A model held in memory, loaded once for the tests that leave it as it is."""
    return cl.load_model(folder, precision=precision)


def least(folder: Path, stored: str = "float32") -> int:
    """The smallest budget a model can be measured in."""
    return placing.plan(whole_model(folder).hf).bytes(getattr(torch, stored))


def offloaded(folder: Path, stored: str = "float32") -> cl.Model:
    return cl.load_model(folder, precision=stored, memory=least(folder, stored))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_offloaded_model_equals_the_whole_bit_for_bit(folders, kind, stored):
    whole, small = whole_model(folders / kind, stored), offloaded(folders / kind, stored)
    assert small.offloaded and not whole.offloaded
    assert {p.device.type for p in small.blocks.modules.parameters()} == {"meta"}
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    given = pixels if kind == "vit" else IDS
    ours, wanted = cl.trace(small, given), cl.trace(whole, given)
    assert ours.route == wanted.route and torch.equal(ours.hidden, wanted.hidden)
    V = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
    for block in range(3):
        a, b = ours.calls[block].keys_values, wanted.calls[block].keys_values
        assert a.keys() == b.keys() and (a or kind == "bloom-alibi")
        torch.testing.assert_close([*a.values()], [*b.values()], rtol=0, atol=0)
        for boundary in ("block", "hidden_states"):
            assert torch.equal(*(each.jacobian(block, boundary=boundary).dense() for each in (ours, wanted)))
        assert torch.equal(ours.jacobian(block, 2, 5) @ V, wanted.jacobian(block, 2, 5) @ V)
    assert {p.device.type for p in small.blocks.modules.parameters()} == {"meta"}


def test_measurements_from_disk_equal_those_from_memory(folders):
    models = offloaded(folders / "llama"), whole_model(folders / "llama")
    for boundary in ("block", "hidden_states"):
        ours, wanted = (cl.measure_depth(model, IDS, ks=(2, 5), boundary=boundary) for model in models)
        assert ours.equals(wanted)


def test_offloaded_weights_stay_in_their_files(folders):
    for kind, written in (("llama", []), ("mixtral", [6])):  # experts are joined, which needs files of their own
        model = offloaded(folders / kind)
        stored = model.blocks.modules[0]._hf_hook.weights_map
        files = {Path(stored._entries[name]["safetensors_file"]).parent for name in stored}
        assert folders / kind in files
        elsewhere = files - {folders / kind}
        assert [len(list(folder.iterdir())) for folder in elsewhere] == written
        del model, stored
        gc.collect()
        assert not any(folder.exists() for folder in elsewhere)


def test_dense_copies_of_offloaded_blocks_hold_their_weights(folders):
    block = offloaded(folders / "gpt2").blocks.modules[1]
    copy, saved = storage.dense_copy(block, torch.float64), whole_model(folders / "gpt2").blocks.modules[1].state_dict()
    torch.testing.assert_close(dict(copy.state_dict()), {k: x.double() for k, x in saved.items()}, rtol=0, atol=0)
    assert not any({"forward", "_hf_hook", "_old_forward"} & set(part.__dict__) for part in copy.modules())
    assert all(p.data_ptr() % 64 == 0 for p in storage.dense_copy(block, torch.float32).parameters())
    assert storage.on_disk(block) and not storage.on_disk(copy)


class Reading:
    """Stands in the place of `safe_open`, of a file and of a slice of one, and counts the bytes of each tensor read."""

    def __init__(self, opened, read: Counter, name: str = "") -> None:
        self.opened, self.read, self.name = opened, read, name

    def __call__(self, file, **options):
        assert options["backend"] == "pread"  # a mapped file counts towards a process's memory
        return Reading(self.opened(file, **options), self.read)

    def __getattr__(self, name):
        return getattr(self.opened, name)

    def __enter__(self):
        return Reading(self.opened.__enter__(), self.read)

    def __exit__(self, *error):
        return self.opened.__exit__(*error)

    def get_slice(self, name):
        return Reading(self.opened.get_slice(name), self.read, name)

    def get_tensor(self, name):
        return self.get_slice(name)[:]

    def __getitem__(self, part):
        self.read[self.name] += (tensor := self.opened[part]).nbytes
        return tensor


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_offloaded_weights_are_not_read_during_load(folders, stored, monkeypatch):
    folder = folders / "llama"
    sizes = {name: weight.nbytes for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}
    outside = {name: size for name, size in sizes.items() if ".layers." not in name}
    least(folder)  # reads the whole model, once
    reading = Reading(transformers.modeling_utils.safe_open, Counter())
    for module in (transformers.modeling_utils, offload):
        monkeypatch.setattr(module, "safe_open", reading)
    monkeypatch.setattr(wrap, "validate", lambda hf, *_: find_blocks(hf))
    model = offloaded(folder, stored)
    assert model.offloaded and reading.read == outside and 0 < sum(outside.values()) < sum(sizes.values())
    # The check reads the first block in the model, and each of the three once for itself.
    validate.validate(model.hf)
    times = {0: 3, 1: 1, 2: 1}
    inside = {name: size * times[int(name.split(".")[2])] for name, size in sizes.items() if name not in outside}
    assert reading.read == outside | inside


def test_model_over_its_memory_budget_is_offloaded(folders):
    folder = folders / "llama"
    sizes = {name: p.numel() for name, p in whole_model(folder).hf.named_parameters()}
    total, block = sum(sizes.values()), sum(n for name, n in sizes.items() if ".layers.0." in name)
    outside = sum(n for name, n in sizes.items() if ".layers." not in name)
    assert least(folder) == 4 * (outside + block)
    assert least(folder, "bfloat16") == 2 * outside + 4 * block
    for given, is_offloaded in [
        (dict(memory=4 * total), False),
        (dict(memory=4 * total - 1), True),
        # In bfloat16 the float32 copy of one block comes on top of the stored weights.
        (dict(precision="bfloat16", memory=2 * total + 4 * block), False),
        (dict(precision="bfloat16", memory=2 * total + 4 * block - 1), True),
        (dict(precision="nf4", memory="1GiB"), False),
        (dict(untrained=True, memory="1GiB"), False),
        (dict(memory=least(folder)), True),
    ]:
        assert cl.load_model(folder, **given).offloaded is is_offloaded, given


def test_models_that_cannot_stay_on_disk_are_refused(folders, monkeypatch):
    folder, budget = folders / "llama", least(folders / "llama")
    for message, given in (
        ("nf4 cannot stay on disk: pass precision='bfloat16'", dict(precision="nf4")),
        ("int8 cannot stay on disk", dict(precision="int8")),
        ("nf4 cannot stay on disk", dict(precision="nf4", untrained=True)),
        (r"needs 0\.1 MB with its blocks on disk .*; pass memory='1MB' or more", dict(memory=budget - 1)),
    ):
        refused(ParameterError, message, cl.load_model, folder, **dict(memory=budget) | given)
    monkeypatch.setattr(weight_memory, "available", lambda device: budget - 1)
    message = "with its blocks on disk, and .* are free on cpu"
    refused(ModelUnavailableError, message, cl.load_model, folder, memory=budget)


def test_damaged_files_are_refused_without_temporary_files_left(folders, tmp_path, monkeypatch):
    folder = shutil.copytree(folders / "mixtral", tmp_path / "mixtral")
    budget = least(folder)
    last = sorted(folder.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-8])
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    refused(ModelUnavailableError, "damaged or truncated", cl.load_model, folder, memory=budget)
    assert not list((tmp_path / "temporary").iterdir())


# A model of 3 GB, measured by a process that may hold 2 GB.
LIMIT, MEASURED = 2 * 10**9, (3, 16)
SIZES = dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=17, num_attention_heads=16, vocab_size=512)
# RLIMIT_DATA bounds all private writable memory of the process: the interpreter's, every tensor, and files mapped as
# torch maps them. The kernel refuses what goes beyond; VmHWM is its own record of the most that was ever resident.
CHILD = """
    import resource, sys
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import json, torch
    from coupling_lib import errors, load_model, trace
    model = load_model(sys.argv[1], memory="1GB")
    traced = trace(model, torch.arange(3, 12)[None])
    V = torch.randn(traced.d_model, 4, generator=torch.Generator().manual_seed(0))
    products = {block: traced.jacobian(block) @ V for block in map(int, sys.argv[4:])}
    torch.save({"hidden": traced.hidden, "V": V, "products": products}, sys.argv[3])
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    try:
        load_model(sys.argv[1])
        refused = None
    except errors.ModelUnavailableError as error:
        refused = str(error)
    print(json.dumps({"peak": peak, "offloaded": model.offloaded, "refused": refused}))
"""


def of_block(hf: nn.Module, number: int, x: torch.Tensor, V: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Evaluate and differentiate one block of a Llama: its output, and J V at the last token in float64."""
    layer = hf.model.layers[number]
    mask = torch.full((x.shape[1],) * 2, torch.finfo(torch.float32).min).triu(1)[None, None]
    tables = hf.model.rotary_emb(x, torch.arange(x.shape[1])[None])
    output = layer(x, attention_mask=mask, position_embeddings=tables)
    layer, x, mask, tables = layer.double(), x.double(), mask.double(), tuple(table.double() for table in tables)

    def last(token: torch.Tensor) -> torch.Tensor:
        states = torch.cat([x[:, :-1], token[None, None]], dim=1)
        return layer(states, attention_mask=mask, position_embeddings=tables)[0, -1]

    return output, torch.stack([torch.func.jvp(last, (x[0, -1],), (v,))[1] - v for v in V.double().T], dim=1)


@pytest.mark.thorough
def test_3_gb_model_is_measured_in_2_gb(tmp_path, record_property):
    folder, result = tmp_path / "large", tmp_path / "result.pt"
    try:
        config = transformers.LlamaConfig(**SIZES, num_key_value_heads=4, max_position_embeddings=64)
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="400MB")
        sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
        assert sum(sizes) > 3 * 10**9 and max(sizes) < 500 * 10**6
        # Tensors come from the heap, whose pages are used again: the kernel need not clear 20 GB of fresh ones.
        allocation = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "1000000000"}
        command = [sys.executable, "-c", textwrap.dedent(CHILD), *map(str, (folder, LIMIT, result, *MEASURED))]
        environment = os.environ | allocation | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert child.returncode == 0, child.stderr
        report = json.loads(child.stdout.splitlines()[-1])
        record_property("peak_resident_bytes", report["peak"])
        assert report["offloaded"] and report["peak"] < LIMIT
        # The limit is real: without the budget the same process cannot load the model.
        assert "memory ran out" in report["refused"] and "pass memory=" in report["refused"]
        found = torch.load(result)
        hf = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").requires_grad_(False)
        for number in MEASURED:
            output, product = of_block(hf, number, found["hidden"][number][None], found["V"])
            assert torch.equal(found["hidden"][number + 1], output[0])
            assert relative_error(found["products"][number], product) < 1e-5
    finally:
        shutil.rmtree(folder, ignore_errors=True)
