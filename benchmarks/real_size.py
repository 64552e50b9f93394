"""The depth notebook at real size: one prompt of a model of Llama-3-8B's shape, through papermill, as a user runs it.

    python -m benchmarks.real_size --out results/benchmarks/real_size.json

The checkpoint has random weights in bfloat16, 16 GB in safetensors files, and lies in a temporary folder (TMPDIR)
beside the untrained weights that the notebook draws for itself, another 32 GB for float32. `--blocks 2` takes two of
the blocks. Measurements are kept in a folder of their own, so that nothing is read from an earlier run.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jupytext
import psutil
import torch
from transformers import LlamaForCausalLM, PreTrainedConfig

from benchmarks import machine, shapes
from coupling_lib import paths
from coupling_lib.blocks import weight_memory
from coupling_lib.blocks.find import find_blocks
from coupling_lib.measures.depth import measure_depth
from coupling_lib.models.untrained import draw

SHAPES = {"llama3-8b": shapes.llama3_8b, "small": shapes.small_llama}


def run(
    config: PreTrainedConfig, parameters: dict[str, str], threads: int, size: int = 4096, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Write a checkpoint and run the notebook on it."""
    torch.set_num_threads(threads)
    facts = machine.facts()  # the load of the machine before this adds to it
    with tempfile.TemporaryDirectory(prefix="real-size-") as root:
        folder = checkpoint or Path(root) / "model"
        if not any(folder.glob("*.safetensors")):
            folder.mkdir(parents=True, exist_ok=True)
            draw(LlamaForCausalLM, config, 1, torch.bfloat16, folder)
        written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        before = machine.matrix_rate(size)
        seconds, peaks, output = _papermill(Path(root), {"model": str(folder), "prompts": "1"} | parameters, threads)
        matrix_peak = max(before, machine.matrix_rate(size))
    flop, model = _flop(config), {"d": config.hidden_size, "L": config.num_hidden_layers}
    about_it = [line.replace(str(folder), folder.name) for line in output.splitlines() if str(folder) in line]
    return {
        "machine": facts,
        "model": model | {"weights": "random, bfloat16", "bytes": written},
        "parameters": parameters,
        "formed": inspect.signature(measure_depth).parameters["formed"].default,
        "seconds": seconds,
        **peaks,
        "flop": flop,
        "matrix_peak": matrix_peak,
        "fraction_of_peak": flop / seconds / matrix_peak,
        "said": [line for line in about_it if "papermill" not in line],
    }


def _flop(config: PreTrainedConfig) -> int:
    """Count the products of the Jacobians of all blocks, of the trained and of the untrained model."""
    blocks = find_blocks(weight_memory.skeleton(LlamaForCausalLM, config)).modules
    weights = sum(weight.numel() for weight in blocks.parameters() if weight.ndim == 2)
    return 2 * 2 * config.hidden_size * weights


def _papermill(root: Path, parameters: dict[str, str], threads: int) -> tuple[float, dict[str, int], str]:
    """Run the notebook in a process of its own; return its seconds, its largest process and its output."""
    notebook = root / "depth.ipynb"
    jupytext.write(jupytext.read(paths.ROOT / "notebooks" / "depth.py"), notebook)
    command = [sys.executable, "-m", "papermill", str(notebook), str(root / "out.ipynb"), "--log-output"]
    command += [word for name, value in parameters.items() for word in ("-p", name, value)]
    environment = os.environ | {"COUPLING_RESULTS": str(root / "results"), "XDG_CACHE_HOME": str(root / "cache")}
    environment |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(paths.ROOT), "JUPYTER_PREFER_ENV_PATH": "1"}
    start = time.perf_counter()
    with (root / "log").open("w+", encoding="utf-8") as log:
        child = subprocess.Popen(command, cwd=paths.ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        peaks, done = {"peak_resident": 0, "peak_own": 0}, threading.Event()
        watcher = threading.Thread(target=_watch, args=(child.pid, peaks, done), daemon=True)
        watcher.start()
        code = child.wait()
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
        log.seek(0)
        output = log.read()
    if code:
        raise RuntimeError(f"papermill ended with {code}: {output.strip().splitlines()[-1]}")
    return seconds, peaks, output


def _watch(pid: int, peaks: dict[str, int], done: threading.Event) -> None:
    """Track the largest memory of a process and of those that it started."""
    while not done.wait(0.5):  # to look takes some milliseconds of a core
        try:
            parent = psutil.Process(pid)
            family = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                memory = process.memory_info()
            except psutil.NoSuchProcess:
                continue
            # Weights are read through mapped files: their pages are resident while there is room, and need none.
            now = {"peak_resident": memory.rss, "peak_own": memory.rss - getattr(memory, "shared", 0)}
            peaks.update({name: max(peaks[name], size) for name, size in now.items()})


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, paths.RESULTS / "benchmarks" / "real_size.json")
    parser.add_argument("--shape", choices=SHAPES, default="llama3-8b", help="whose shape the checkpoint has")
    parser.add_argument("--blocks", type=int, help="number of blocks, for a part of the model")
    parser.add_argument("--precision", default="float32", help="how the weights are held")
    parser.add_argument("--memory", default="", help="the most that weights may take, as 8GB")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of threads")
    parser.add_argument("--size", type=int, default=4096, help="width of the matrices for the matrix peak")
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint to write, or that was written before")
    given = parser.parse_args(arguments)
    config = SHAPES[given.shape](**{"blocks": given.blocks} if given.blocks else {})
    parameters = {"precision": given.precision} | ({"memory": given.memory} if given.memory else {})
    result = run(config, parameters, given.threads, given.size, given.checkpoint)
    machine.write(given.out, result)
    print(
        f"{result['seconds'] / 60:.1f} min, {result['peak_own'] / 1e9:.1f} GB of memory at most, "
        f"{result['fraction_of_peak']:.0%} of the matrix peak; written to {given.out}"
    )


if __name__ == "__main__":
    main()
