"""Models larger than memory: blocks read from disk one at a time, and the same numbers as with the whole in memory."""

import gc
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from families import named
from reference import brute_force_jacobian, relative_error
from refusals import refused
from safetensors.torch import load_file

import coupling_lib as cl
from coupling_lib.blocks import offload, placing, storage
from coupling_lib.blocks import validate as checks
from coupling_lib.blocks import weight_memory as memory
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
def whole_model(folder: Path, precision: str = "float32"):
    """A model held in memory, loaded once for the tests that leave it as it is."""
    return cl.load_model(folder, precision=precision)


def least(folder: Path, dtype: torch.dtype = torch.float32) -> int:
    """The smallest budget a model can be measured in."""
    saved = whole_model(folder).hf
    return placing.plan(saved).bytes(dtype)


def given_to(model) -> torch.Tensor:
    if model.hf.main_input_name == "input_ids":
        return IDS
    return torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_offloaded_model_equals_the_whole_bit_for_bit(folders, kind, stored):
    folder = folders / kind
    whole = whole_model(folder, stored)
    small = cl.load_model(folder, precision=stored, memory=least(folder, getattr(torch, stored)))
    assert small.offloaded and not whole.offloaded
    assert {p.device.type for p in small.blocks.modules.parameters()} == {"meta"}
    ours, wanted = cl.trace(small, given_to(small)), cl.trace(whole, given_to(whole))
    assert ours.route == wanted.route and torch.equal(ours.hidden, wanted.hidden)
    V = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
    for block in range(3):
        a, b = ours.calls[block], wanted.calls[block]
        assert a.keys_values.keys() == b.keys_values.keys() and (a.keys_values or kind == "bloom-alibi")
        for name, recorded in a.keys_values.items():
            assert all(torch.equal(x, y) for x, y in zip(recorded, b.keys_values[name], strict=True))
        assert torch.equal(ours.jacobian(block).dense(), wanted.jacobian(block).dense())
        assert torch.equal(ours.jacobian(block, 2, 5) @ V, wanted.jacobian(block, 2, 5) @ V)
    assert {p.device.type for p in small.blocks.modules.parameters()} == {"meta"}


def test_measurements_from_disk_equal_those_from_memory(folders):
    folder = folders / "llama"
    whole, small = whole_model(folder), cl.load_model(folder, memory=least(folder))
    for boundary in ("block", "hidden_states"):
        ours, wanted = (cl.measure_depth(m, IDS, ks=(2, 5), boundary=boundary) for m in (small, whole))
        assert all((ours[name].values == wanted[name].values).all() for name in wanted.data_vars)
    folder = folders / "mixtral"
    model = cl.load_model(folder, memory=least(folder))
    dense = cl.load_model(folder).hf.double()
    wanted = brute_force_jacobian(dense, dense.model.layers[1], {"input_ids": IDS, "use_cache": False}, 8, 8)
    assert relative_error(cl.trace(model, IDS).jacobian(1).dense(), wanted) < 1e-5


def test_offloaded_weights_stay_in_their_files(folders):
    for kind, written in (("llama", 0), ("mixtral", 6)):
        folder = folders / kind
        model = cl.load_model(folder, memory=least(folder))
        stored = model.blocks.modules[0]._hf_hook.weights_map
        files = {Path(stored._entries[name]["safetensors_file"]).parent for name in stored}
        (elsewhere,) = files - {folder} or {None}
        assert folder in files and (elsewhere is not None) == bool(written)
        if elsewhere:
            assert len(list(elsewhere.iterdir())) == written
            del model, stored
            gc.collect()
            assert not elsewhere.exists()
    folder = folders / "gpt2"
    model = cl.load_model(folder, memory=least(folder))
    block = model.blocks.modules[1]
    copy = storage.dense_copy(block, torch.float64)
    saved = whole_model(folder).blocks.modules[1].state_dict()
    assert all(torch.equal(value, saved[name].double()) for name, value in copy.state_dict().items())
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

    def noted(self, name, tensor):
        self.read[name] += tensor.nbytes
        return tensor

    def get_tensor(self, name):
        return self.noted(name, self.opened.get_tensor(name))

    def get_slice(self, name):
        return Reading(self.opened.get_slice(name), self.read, name)

    def __getitem__(self, part):
        return self.noted(self.name, self.opened[part])


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_offloaded_weights_are_not_read_during_load(folders, stored, monkeypatch):
    folder, dtype = folders / "llama", getattr(torch, stored)
    sizes = {name: weight.nbytes for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}
    outside = {name: size for name, size in sizes.items() if ".layers." not in name}
    budget = least(folder, dtype)
    reading = Reading(transformers.modeling_utils.safe_open, Counter())
    monkeypatch.setattr(transformers.modeling_utils, "safe_open", reading)
    monkeypatch.setattr(offload, "safe_open", reading)
    monkeypatch.setattr(wrap, "validate", lambda hf, *_: find_blocks(hf))
    model = cl.load_model(folder, precision=stored, memory=budget)
    assert model.offloaded and reading.read == outside and 0 < sum(outside.values()) < sum(sizes.values())
    # The check reads the first block in the model, and each of the three once for itself.
    checks.validate(model.hf)
    times = {0: 3, 1: 1, 2: 1}
    inside = {name: size * times[int(name.split(".")[2])] for name, size in sizes.items() if name not in outside}
    assert reading.read == outside | inside


def test_model_over_its_memory_budget_is_offloaded(folders):
    folder = folders / "llama"
    saved = whole_model(folder).hf
    total = 4 * sum(p.numel() for p in saved.parameters())
    assert not cl.load_model(folder, memory=total).offloaded
    assert cl.load_model(folder, memory=total - 1).offloaded
    # In bfloat16 the float32 copy of one block comes on top of the stored weights.
    block = sum(p.numel() for p in saved.model.layers[0].parameters())
    assert not cl.load_model(folder, precision="bfloat16", memory=total // 2 + 4 * block).offloaded
    assert cl.load_model(folder, precision="bfloat16", memory=total // 2 + 4 * block - 1).offloaded
    assert not cl.load_model(folder, precision="nf4", memory="1GiB").offloaded
    assert not cl.load_model(folder, untrained=True, memory="1GiB").offloaded
    sizes = {name: p.numel() for name, p in saved.named_parameters()}
    one = sum(n for name, n in sizes.items() if ".layers.0." in name)
    outside = sum(n for name, n in sizes.items() if ".layers." not in name)
    assert least(folder) == 4 * (outside + one)
    assert least(folder, torch.bfloat16) == 2 * outside + 4 * one
    assert cl.load_model(folder, memory=least(folder)).offloaded
    with pytest.raises(ParameterError, match=r"needs 0\.1 MB with its blocks on disk .*; pass memory='1MB' or more"):
        cl.load_model(folder, memory=least(folder) - 1)


def test_quantised_weights_on_disk_are_refused(folders, monkeypatch):
    folder, budget = folders / "llama", least(folders / "llama")
    for message, arguments in (
        ("nf4 cannot stay on disk: pass precision='bfloat16'", {"precision": "nf4"}),
        ("int8 cannot stay on disk", {"precision": "int8"}),
        ("nf4 cannot stay on disk", {"precision": "nf4", "untrained": True}),
    ):
        refused(ParameterError, message, cl.load_model, folder, memory=budget, **arguments)
    monkeypatch.setattr(memory, "available", lambda device: budget - 1)
    message = "with its blocks on disk, and .* are free on cpu"
    refused(ModelUnavailableError, message, cl.load_model, folder, memory=budget)


def test_damaged_files_are_refused_without_temporary_files_left(folders, tmp_path, monkeypatch):
    folder = tmp_path / "mixtral"
    shutil.copytree(folders / "mixtral", folder)
    budget = least(folder)
    last = sorted(folder.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-8])
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    refused(ModelUnavailableError, "damaged or truncated", cl.load_model, folder, memory=budget)
    assert not list((tmp_path / "temporary").iterdir())
