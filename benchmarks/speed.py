"""The released method against this library, on the CPU: whole prompts and each stage, values compared on the way.

    python -m benchmarks.speed --out results/benchmarks/speed.json
    python -m benchmarks.speed --quick --out speed.json                 # a minute; shows that it works

Both methods take turns in one process. A Jacobian of the released method takes up to half a minute, so with longer
prompts its Jacobians are formed for a few blocks and scaled to all; each row says so.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

import coupling_lib as cl
from benchmarks import machine, memory, report, stages
from benchmarks.growth import growth
from benchmarks.shapes import SHAPES, Shape, complete_flop, jacobian_flop, prompt_ids
from coupling_lib.prompts import PARIS

# Width up to which the released method is run in float64 as well, once; above it takes minutes.
_WIDEST_IN_FLOAT64 = 768


def compare(model: cl.Model, n_tokens: int, rounds: int, count: int, peak_size: int) -> dict[str, Any]:
    """Run both methods in turns on one prompt.

    Args:
        model: the model.
        n_tokens: length of the prompt.
        rounds: how often; medians count.
        count: how many blocks the released method forms Jacobians of.
        peak_size: width of the matrices whose product measures the matrix peak, between the rounds.

    Returns:
        a record of seconds by stage and method, their ratios, FLOP/s and agreement.
    """
    ids = prompt_ids(model, n_tokens)
    kind = stages.faster_attention(model, ids)
    blocks = stages.some_blocks(model.n_blocks, count)
    ours = [stages.ours(model, ids)]  # not timed: the first run fetches code and memory
    theirs, peaks = [], []
    for _ in range(rounds):
        peaks.append(machine.matrix_rate(peak_size))
        theirs.append(stages.theirs(model, ids, kind, blocks, ours[0].J))
        # Twice, because a second of somebody else's work on the machine is nothing beside theirs and half of ours.
        ours += [stages.ours(model, ids) for _ in range(2)]
    agreement = stages.agreement(ours[-1], theirs[-1], blocks)
    if len(blocks) == model.n_blocks:
        double = stages.in_float64(model)
        exact = stages.ours(double, ids)
        for name, found in (("ours", ours[-1]), ("released", theirs[-1])):
            agreement[f"{name}_from_float64"] = stages.agreement(found, exact, blocks)["metric_relative"]
        if model.d_model <= _WIDEST_IN_FLOAT64:
            both = stages.agreement(exact, stages.theirs(double, ids, kind, blocks, exact.J), blocks)
            agreement["both_in_float64"] = both["metric_relative"]
    seconds = {"released": _medians(theirs), "ours": _medians(ours[1:])}
    ratio = {stage: seconds["released"][stage] / seconds["ours"][stage] for stage in seconds["ours"]}
    flop = jacobian_flop(model, n_tokens)
    rate = flop * model.n_blocks / seconds["ours"]["jacobians"]
    return {
        "shape": model.name,
        "d": model.d_model,
        "L": model.n_blocks,
        "n": n_tokens,
        "rounds": rounds,
        "released_attention": kind,
        "released_blocks": len(blocks),
        "basis": _basis(len(blocks), model.n_blocks),
        "seconds": seconds,
        "ratio": ratio,
        "flop_per_block": flop,
        "jacobian_flop_per_second": rate,
        "matrix_peak": max(peaks),
        "fraction_of_peak": rate / max(peaks),
        "complete_flop_per_block": complete_flop(model),
        "complete_fraction_of_peak": rate / max(peaks) * complete_flop(model) / flop,
        "agreement": agreement,
    }


def _medians(runs: list[stages.Measured]) -> dict[str, float]:
    seconds = {stage: statistics.median(run.seconds[stage] for run in runs) for stage in stages.STAGES}
    return seconds | {"total": statistics.median(sum(run.seconds.values()) for run in runs)}


def _basis(measured: int, n_blocks: int) -> str:
    return f"all {n_blocks} blocks" if measured == n_blocks else f"scaled from {measured} of {n_blocks} blocks"


def embedded_prompt(rounds: int) -> dict[str, Any]:
    """Time what a reader does: `measure_depth` of one prompt on the embedded model, with all readings.

    Args:
        rounds: how often; the median counts.

    Returns:
        a record.
    """
    model = cl.load_model("nano-neox")
    cl.measure_depth(model, [PARIS])
    seconds = statistics.median(machine.timed(lambda: cl.measure_depth(model, [PARIS]))[0] for _ in range(rounds))
    n_tokens = cl.trace(model, PARIS).n_tokens
    return {"shape": model.name, "n": n_tokens, "seconds": seconds, "call": "measure_depth, one prompt, all readings"}


def held(shape: str, n_tokens: int) -> list[dict[str, Any]]:
    """Measure both methods' peak memory above the weights.

    Args:
        shape: a name of `shapes.SHAPES`.
        n_tokens: length of the prompt.

    Returns:
        one record per method.
    """
    methods = ("ours", "released")
    return [
        {"shape": shape, "n": n_tokens, "method": m} | memory.peak_above_weights(shape, n_tokens, m) for m in methods
    ]


def run(names: list[str], tokens: list[int], rounds: int, count: int, quick: bool) -> dict[str, Any]:
    """Run the whole benchmark.

    Args:
        names: names of shapes.
        tokens: prompt lengths.
        rounds: rounds per case.
        count: how many blocks the released method forms Jacobians of, where the model has random weights.
        quick: use small sizes for the matrix peak and the growth.

    Returns:
        the record that is written as JSON.
    """
    result: dict[str, Any] = {"machine": machine.facts(), "quick": quick, "cases": [], "memory": []}
    # First, as in a notebook that has just been opened: what follows leaves the memory of this process in pieces.
    result["embedded_prompt"] = embedded_prompt(rounds)
    peak_size = 256 if quick else 2048
    for name in names:
        shape: Shape = SHAPES[name]
        model = shape.build()
        for n_tokens in tokens:
            # Short prompts and embedded models are quick enough for all blocks.
            whole = shape.config is None or n_tokens <= 16
            case = compare(model, n_tokens, rounds, model.n_blocks if whole else count, peak_size)
            print(report.case_line(case), flush=True)
            result["cases"].append(case)
        del model
        if shape.config is not None:
            result["memory"] += held(name, max(tokens))
    result["growth"] = growth(quick, rounds)
    return result


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line.

    Args:
        arguments: the words after the command; those of this process by default.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/speed.json"), help="the JSON to write")
    parser.add_argument("--quick", action="store_true", help="one tiny shape, one round: does it run?")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="models to measure")
    parser.add_argument("--tokens", nargs="+", type=int, help="prompt lengths")
    parser.add_argument("--rounds", type=int, help="turns per case; medians count")
    parser.add_argument("--blocks", type=int, default=3, help="blocks the released method is run on")
    given = parser.parse_args(arguments)
    names = given.shapes or (["tiny"] if given.quick else ["nano-neox", "gpt2-small", "pythia-410m"])
    tokens = given.tokens or ([16] if given.quick else [16, 64, 128])
    rounds = given.rounds or (1 if given.quick else 3)
    torch.manual_seed(0)
    result = run(names, tokens, rounds, given.blocks, given.quick)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(report.speed_page(result))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
