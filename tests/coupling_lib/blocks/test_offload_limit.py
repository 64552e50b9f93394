"""A model of 3 GB, measured by a process that may hold 2 GB."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from reference import relative_error
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

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
    sizes = dict(hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=DEPTH, num_attention_heads=16)
    more = dict(vocab_size=512, num_key_value_heads=4, max_position_embeddings=64)
    config = LlamaConfig(**sizes, **more, architectures=["LlamaForCausalLM"])
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
        prefix = f"model.layers.{number - 1}"
        tensors = files.get(file) or {f"{prefix}.{name}": weight.roll(number, 0) for name, weight in block.items()}
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


@pytest.mark.thorough
def test_3_gb_model_is_measured_in_2_gb(tmp_path, record_property):
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
