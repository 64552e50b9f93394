"""Llama-3-8B's real shape on a GPU: this library, its faster arithmetics, and the released method.

    python -m benchmarks.gpu --out results/benchmarks/gpu.json

Weights are random, in bfloat16 and in nf4, Jacobians float32. Without a GPU the same code runs on the CPU at a small
size, and what it writes says that no GPU was measured.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

import coupling_lib as cl
from benchmarks import machine, other_tables, released, stages
from benchmarks.shapes import complete_flop, jacobian_flop, llama3_8b, model_from, prompt_ids, small_llama
from benchmarks.split import double_jacobian, split_jacobian
from coupling_lib.measures.common import depth_jacobians

_BLOCKS = 3
PRECISIONS = ("float32", "bfloat16", "nf4", "int8")
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom"


def _float32(traced: cl.Trace) -> Tensor:
    return depth_jacobians(traced, -1)


def _tf32(traced: cl.Trace) -> Tensor:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return depth_jacobians(traced, -1)
    finally:
        torch.set_float32_matmul_precision(before)


def _split(traced: cl.Trace) -> Tensor:
    blocks = traced.model.blocks.modules
    pairs = zip(traced.calls, blocks, strict=True)
    return torch.stack([split_jacobian(call, block, traced.n_tokens - 1) for call, block in pairs])


ARITHMETICS: dict[str, Callable[[cl.Trace], Tensor]] = {
    "float32": _float32,
    "TF32": _tf32,
    "three bfloat16 products": _split,
}


def prompt(
    model: cl.Model, n_tokens: int, rounds: int, arithmetics: tuple[str, ...] = tuple(ARITHMETICS)
) -> list[dict[str, Any]]:
    """Measure one whole prompt in each arithmetic."""
    ids = prompt_ids(model, n_tokens)
    flop = jacobian_flop(model, n_tokens) * model.n_blocks
    middle, everywhere = model.n_blocks // 2, list(range(model.n_blocks))
    call = cl.trace(model, ids).calls[middle]
    exact = double_jacobian(call, model.blocks.modules[middle], n_tokens - 1)
    records, wanted = [], None
    for name in arithmetics:
        if name == "TF32" and model.device.type != "cuda":
            continue
        jacobians = ARITHMETICS[name]
        _once(model, ids, jacobians)  # not timed: the first run fetches code and memory
        runs = [_once(model, ids, jacobians) for _ in range(rounds)]
        last, memory = runs[-1]
        wanted = wanted or last
        medians = stages.medians([run for run, _ in runs])
        records.append(
            {
                "n": n_tokens,
                "arithmetic": name,
                "seconds": medians,
                "jacobian_flop_per_second": flop / medians["jacobians"],
                "memory_above_weights": memory,
                "jacobian_error": float((last.J[middle] - exact.cpu()).norm() / exact.norm()),
                "metric_difference_from_float32": stages.agreement(last, wanted, everywhere)["metric_relative"],
            }
        )
    return records


def _once(model: cl.Model, ids: Tensor, jacobians: Callable[[cl.Trace], Tensor]) -> tuple[stages.Measured, int | None]:
    """Measure a prompt with one arithmetic for the Jacobians, and the peak memory above what was held before."""
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated() if on_gpu else 0
    run = stages.ours(model, ids, jacobians=jacobians)
    memory = torch.cuda.max_memory_allocated() - base if on_gpu else None
    # Results wait on the CPU, so that the next run's memory is its own.
    kept = {name: value.cpu() for name, value in run.values.items()}
    return run._replace(J=run.J.cpu(), values=kept), memory


def released_rest(few: list[Tensor], n_blocks: int, device: torch.device) -> dict[str, float]:
    """Time the released method's steps on a few Jacobians, and scale them to all blocks."""
    spent, decomposed = machine.timed(lambda: released.decompose(few), device)
    pairs, _ = machine.timed(lambda: released.couple(few, decomposed), device)
    return {"svd": spent * n_blocks / len(few), "pairs": pairs * (n_blocks / len(few)) ** 2}


def released_prompt(model: cl.Model, n_tokens: int, n_blocks: int, rest: dict[str, float]) -> dict[str, Any]:
    """Run the released method on a few blocks and scale its Jacobians to all; the rest depends on no prompt."""
    ids, device = prompt_ids(model, n_tokens), model.device
    kind = stages.faster_attention(model, ids)
    blocks = stages.some_blocks(model.n_blocks, _BLOCKS)
    with released.attention_set_to(model.hf, kind):
        capture, states = machine.timed(lambda: released.hidden_states(model.hf, ids), device)
        each = [machine.timed(lambda block=block: released.jacobian(states, block), device)[0] for block in blocks]
    seconds = {"capture": capture * n_blocks / model.n_blocks, "jacobians": statistics.mean(each) * n_blocks, **rest}
    return {
        "n": n_tokens,
        "dtype": str(model.hf.dtype).removeprefix("torch."),
        "attention": kind,
        "basis": f"scaled from {len(blocks)} of {n_blocks} blocks",
        "seconds": seconds | {"total": sum(seconds.values())},
    }


def run(rounds: int, tokens: list[int] | None, out: Path) -> dict[str, Any]:
    """Run the benchmark on a GPU, or a rehearsal on the CPU; what is known so far is written after each part."""
    on_gpu = torch.cuda.is_available()
    device, size = ("cuda", 8192) if on_gpu else ("cpu", 512)
    make = llama3_8b if on_gpu else small_llama
    model = model_from(make(), "Llama-3-8B shape" if on_gpu else "small Llama", device, torch.bfloat16)
    n_blocks, tokens = model.n_blocks, tokens or ([16, 64, 128] if on_gpu else [16])
    shape = {"shape": model.name, "d": model.d_model, "L": n_blocks, "complete_flop": complete_flop(model) * n_blocks}
    result: dict[str, Any] = {
        "machine": machine.facts(),
        "gpu_measured": on_gpu,
        "model": shape | {"weights": "random, bfloat16"},
        "matrix_peak": _peaks(size, device),
        "precisions": [{"precision": one, "error": other_numbers(one, device)} for one in PRECISIONS],
        "prompts": [record for n in tokens for record in prompt(model, n, rounds)],
    }
    machine.write(out, result)
    J = depth_jacobians(cl.trace(model, prompt_ids(model, 16)), -1)
    rest = released_rest([*J[:_BLOCKS]], n_blocks, model.device)
    result["released"] = [released_prompt(model, n, n_blocks, rest) for n in tokens]
    del model, J
    machine.write(out, result)
    # At equal precision: a model of the same blocks in float32, with a few of them.
    shallow = model_from(make(blocks=_BLOCKS + 1), "a few blocks", device, torch.float32)
    result["released"] += [released_prompt(shallow, n, n_blocks, rest) for n in tokens]
    del shallow
    result["nf4"] = in_4_bits(make(), tokens, rounds, device)
    machine.write(out, result)
    return result


def other_numbers(precision: str, device: str) -> float:
    """Return the relative distance of a device's Jacobians from the processor's, the worst of a small model."""
    here, there = (
        depth_jacobians(cl.trace(cl.load_model("nano-neox", precision=precision, device=one), TEXT), -1).double().cpu()
        for one in ("cpu", device)
    )
    return float(((there - here).flatten(1).norm(dim=1) / here.flatten(1).norm(dim=1)).max())


def in_4_bits(config: PreTrainedConfig, tokens: list[int], rounds: int, device: str) -> dict[str, Any]:
    """Measure the same shape with weights of 4 bits, the setting of the paper, drawn as `load_model` does it."""
    with tempfile.TemporaryDirectory() as folder:
        config.architectures = ["LlamaForCausalLM"]
        config.save_pretrained(folder)
        load = partial(cl.load_model, folder, precision="nf4", untrained=True, device=device)
        seconds, model = machine.timed(load, device)
    held = torch.cuda.memory_allocated() if device == "cuda" else None
    prompts = [record for n in tokens for record in prompt(model, n, rounds, ("float32",))]
    return {"seconds_to_draw": seconds, "weights": held, "prompts": prompts}


def _peaks(size: int, device: str) -> dict[str, float]:
    peaks = {"float32": machine.matrix_rate(size, torch.float32, device)}
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
        peaks["TF32"] = machine.matrix_rate(size, torch.float32, device)
        torch.set_float32_matmul_precision("highest")
        peaks["bfloat16"] = machine.matrix_rate(size, torch.bfloat16, device)
    return peaks


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, Path("results/benchmarks/gpu.json"))
    parser.add_argument("--tokens", nargs="+", type=int, help="prompt lengths")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per case; medians count")
    given = parser.parse_args(arguments)
    result = run(given.rounds, given.tokens, given.out)
    print(other_tables.gpu_tables(result))
    if not result["gpu_measured"]:
        print("No GPU was found: this was a rehearsal on the CPU at a small size; no GPU figure was measured.")
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
