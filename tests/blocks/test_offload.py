"""Models larger than memory: blocks read from disk one at a time, and the same numbers as with the whole in memory."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from reference import brute_force_jacobian, relative_error
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from coupling_lib import measure_depth
from coupling_lib.blocks import fits as memory
from coupling_lib.blocks import offload, precision
from coupling_lib.errors import ModelUnavailableError, ParameterError
from coupling_lib.jacobian.tracing import trace
from coupling_lib.models.load import load_model

IDS = torch.arange(3, 12)[None]
KINDS = ["llama", "gpt2", "gpt-neox", "mixtral", "bloom-alibi", "vit"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three blocks of each family, their weights split over several files."""
    root = tmp_path_factory.mktemp("offload")
    for family in FAMILIES:
        if family.name in KINDS:
            family.build().float().save_pretrained(root / family.name, max_shard_size="20KB")
            assert len(list((root / family.name).glob("*.safetensors"))) > 3
    return root


@cache
def whole_model(folder: Path, precision: str = "float32"):
    """A model held in memory, loaded once for the tests that leave it as it is."""
    return load_model(folder, precision=precision)


def least(folder: Path, dtype: torch.dtype = torch.float32) -> int:
    """The smallest budget a model can be measured in."""
    saved = whole_model(folder).hf
    return offload.plan(type(saved), saved.config).bytes(dtype)


def given_to(model) -> torch.Tensor:
    if model.hf.main_input_name == "input_ids":
        return IDS
    return torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_jacobians_are_those_of_the_whole_model_bit_for_bit(folders, kind, stored):
    folder = folders / kind
    whole = whole_model(folder, stored)
    small = load_model(folder, precision=stored, memory=least(folder, getattr(torch, stored)))
    assert small.offloaded and not whole.offloaded
    assert {p.device.type for p in small.blocks.modules.parameters()} == {"meta"}
    ours, wanted = trace(small, given_to(small)), trace(whole, given_to(whole))
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


def test_a_measurement_and_the_released_boundary_are_the_same_from_disk(folders):
    folder = folders / "llama"
    whole, small = whole_model(folder), load_model(folder, memory=least(folder))
    for boundary in ("block", "hidden_states"):
        ours, wanted = (measure_depth(m, IDS, ks=(2, 5), boundary=boundary) for m in (small, whole))
        assert all((ours[name].values == wanted[name].values).all() for name in wanted.data_vars)


def test_the_jacobian_from_disk_is_that_of_a_float64_derivative(folders):
    folder = folders / "mixtral"
    model = load_model(folder, memory=least(folder))
    dense = load_model(folder).hf.double()
    wanted = brute_force_jacobian(dense, dense.model.layers[1], {"input_ids": IDS, "use_cache": False}, 8, 8)
    assert relative_error(trace(model, IDS).jacobian(1).dense(), wanted) < 1e-5


def test_weights_stay_in_their_own_files_and_only_fused_experts_are_written_anew(folders):
    for kind, written in (("llama", 0), ("mixtral", 6)):
        folder = folders / kind
        model = load_model(folder, memory=least(folder))
        stored = model.blocks.modules[0]._hf_hook.weights_map
        files = {Path(stored._entries[name]["safetensors_file"]).parent for name in stored}
        (elsewhere,) = files - {folder} or {None}
        assert folder in files and (elsewhere is not None) == bool(written)
        if elsewhere:
            assert len(list(elsewhere.iterdir())) == written
            del model, stored
            gc.collect()
            assert not elsewhere.exists()


def test_a_dense_copy_is_a_plain_block_of_its_own(folders):
    folder = folders / "gpt2"
    model = load_model(folder, memory=least(folder))
    block = model.blocks.modules[1]
    copy = precision.dense_copy(block, torch.float64)
    saved = whole_model(folder).blocks.modules[1].state_dict()
    assert all(torch.equal(value, saved[name].double()) for name, value in copy.state_dict().items())
    assert not any({"forward", "_hf_hook", "_old_forward"} & set(part.__dict__) for part in copy.modules())
    assert all(p.data_ptr() % 64 == 0 for p in precision.dense_copy(block, torch.float32).parameters())
    assert offload.is_offloaded(block) and not offload.is_offloaded(copy)


def test_a_model_that_fits_is_held_as_a_whole(folders):
    folder = folders / "llama"
    saved = whole_model(folder).hf
    total = 4 * sum(p.numel() for p in saved.parameters())
    assert not load_model(folder, memory=total).offloaded
    assert load_model(folder, memory=total - 1).offloaded
    # In bfloat16 the float32 copy of one block comes on top of the stored weights.
    block = sum(p.numel() for p in saved.model.layers[0].parameters())
    assert not load_model(folder, precision="bfloat16", memory=total // 2 + 4 * block).offloaded
    assert load_model(folder, precision="bfloat16", memory=total // 2 + 4 * block - 1).offloaded
    assert not load_model(folder, precision="nf4", memory="1GiB").offloaded
    assert not load_model(folder, untrained=True, memory="1GiB").offloaded


def test_the_least_budget_is_everything_outside_the_blocks_and_one_block_in_float32(folders):
    folder = folders / "llama"
    saved = whole_model(folder).hf
    sizes = {name: p.numel() for name, p in saved.named_parameters()}
    one = sum(n for name, n in sizes.items() if ".layers.0." in name)
    outside = sum(n for name, n in sizes.items() if ".layers." not in name)
    assert least(folder) == 4 * (outside + one)
    assert least(folder, torch.bfloat16) == 2 * outside + 4 * one
    assert load_model(folder, memory=least(folder)).offloaded
    with pytest.raises(ParameterError, match=r"needs 0\.1 MB with its blocks on disk .*; pass memory='1MB' or more"):
        load_model(folder, memory=least(folder) - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "nf4"}, "nf4 cannot stay on disk: pass precision='bfloat16'"),
        ({"precision": "int8"}, "int8 cannot stay on disk"),
        ({"precision": "nf4", "untrained": True}, "nf4 cannot stay on disk"),
    ],
)
def test_what_cannot_stay_on_disk_is_refused_in_one_line(folders, arguments, message):
    with pytest.raises(ParameterError, match=message) as error:
        load_model(folders / "llama", memory=least(folders / "llama"), **arguments)
    assert "\n" not in str(error.value)


def test_too_little_free_memory_is_refused_even_from_disk(folders, monkeypatch):
    budget = least(folders / "llama")
    monkeypatch.setattr(memory, "available", lambda device: budget - 1)
    with pytest.raises(ModelUnavailableError, match="with its blocks on disk, and .* are free on cpu"):
        load_model(folders / "llama", memory=budget)


def test_damaged_files_are_refused_and_nothing_is_left_behind(folders, tmp_path, monkeypatch):
    folder = tmp_path / "mixtral"
    shutil.copytree(folders / "mixtral", folder)
    budget = least(folder)
    last = sorted(folder.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-8])
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with pytest.raises(ModelUnavailableError, match="damaged or truncated"):
        load_model(folder, memory=budget)
    assert not list((tmp_path / "temporary").iterdir())


# A model of 3 GB under a limit of 2 GB

WIDTH, INNER, DEPTH, LIMIT = 2048, 5632, 17, 2 * 10**9
MEASURED = (3, 16)

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


def write_large_llama(folder: Path) -> LlamaConfig:
    """Write 3 GB of random float32 weights, one block and file at a time; no two blocks are alike."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=DEPTH,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=64,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in LlamaDecoderLayer(config, 0).named_parameters()}
    block = {name: _draw(shape, generator) for name, shape in shapes.items()}
    files = {"model-00000.safetensors": {"model.norm.weight": torch.ones(WIDTH)}}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        files["model-00000.safetensors"][name] = _draw((512, WIDTH), generator)
    where = {}
    for number in range(DEPTH + 1):
        file = f"model-{number:05d}.safetensors"
        tensors = files.get(file) or {
            f"model.layers.{number - 1}.{name}": weight.roll(number, 0) for name, weight in block.items()
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return config


def _draw(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.ones(shape) if len(shape) == 1 else torch.empty(shape).uniform_(-0.03, 0.03, generator=generator)


def block_alone(folder: Path, config: LlamaConfig, number: int, x: torch.Tensor, V: torch.Tensor) -> tuple:
    """Evaluate and differentiate one block from its own weights: its output, and J V at the last token in float64."""
    prefix = f"model.layers.{number}."
    weights = load_file(folder / f"model-{number + 1:05d}.safetensors")
    config._attn_implementation = "eager"
    with torch.device("meta"):
        layer = LlamaDecoderLayer(config, number)
    n = x.shape[1]
    mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
    tables = LlamaRotaryEmbedding(config)(x, torch.arange(n)[None])
    plain = {name.removeprefix(prefix): weight.clone() for name, weight in weights.items()}
    layer.load_state_dict(plain, assign=True)
    layer.requires_grad_(False)
    output = layer(x, attention_mask=mask, position_embeddings=tables)
    layer.double()
    mask, tables, wide = mask.double(), tuple(table.double() for table in tables), x.double()

    def last(token: torch.Tensor) -> torch.Tensor:
        states = torch.cat([wide[:, :-1], token[None, None]], dim=1)
        return layer(states, attention_mask=mask, position_embeddings=tables)[0, -1]

    columns = [torch.func.jvp(last, (wide[0, -1],), (v.double(),))[1] - v for v in V.T]
    return output, torch.stack(columns, dim=1)


def test_a_model_of_3_gb_is_measured_under_a_hard_limit_of_2_gb(tmp_path, record_property):
    folder, result = tmp_path / "large", tmp_path / "result.pt"
    try:
        config = write_large_llama(folder)
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        assert size > 3 * 10**9 and max(f.stat().st_size for f in folder.iterdir()) < 500 * 10**6
        # Tensors come from the heap, whose pages are used again: the kernel need not clear 20 GB of fresh ones.
        allocation = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "1000000000"}
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), str(LIMIT), str(result), *map(str, MEASURED)],
            env=os.environ | allocation | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        report = json.loads(child.stdout.splitlines()[-1])
        record_property("peak_resident_bytes", report["peak"])
        print(f"weights {size / 1e9:.2f} GB, limit {LIMIT / 1e9:.2f} GB, peak resident {report['peak'] / 1e9:.2f} GB")
        assert report["offloaded"] and report["peak"] < LIMIT
        # The limit is real: without the budget the same process cannot load the model.
        assert "memory ran out" in report["refused"] and "pass memory=" in report["refused"]
        found = torch.load(result)
        for number in MEASURED:
            output, product = block_alone(folder, config, number, found["hidden"][number][None], found["V"])
            assert torch.equal(found["hidden"][number + 1], output[0])
            assert relative_error(found["products"][number], product) < 1e-5
    finally:
        shutil.rmtree(folder, ignore_errors=True)
