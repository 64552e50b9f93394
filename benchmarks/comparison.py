"""One model and one length of prompt: the released method and this library in turns, values compared on the way.

python -m benchmarks.comparison gpt2-small 64

A Jacobian of the released method takes up to half a minute, so with longer prompts its Jacobians are formed for a few
blocks and scaled to all; each record says so.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import coupling_lib as cl
from benchmarks import child, machine, stages
from benchmarks.shapes import SHAPES, complete_flop, jacobian_flop, prompt_ids

# Width up to which the released method is run in float64 as well, once; above it takes minutes.
_WIDEST_IN_FLOAT64 = 768

# Blocks that are enough to see what a process that keeps its memory takes.
_BLOCKS_KEPT = 3


def compare(model: cl.Model, n_tokens: int, rounds: int, count: int | None, peak_size: int) -> dict[str, Any]:
    """Run both methods in turns on one prompt."""
    ids = prompt_ids(model, n_tokens)
    kind = stages.faster_attention(model, ids)
    blocks = stages.some_blocks(model.n_blocks, count or model.n_blocks)
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
    seconds = {"released": stages.medians(theirs), "ours": stages.medians(ours[1:])}
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


def _basis(measured: int, n_blocks: int) -> str:
    return f"all {n_blocks} blocks" if measured == n_blocks else f"scaled from {measured} of {n_blocks} blocks"


def in_own_process(shape: str, n_tokens: int, rounds: int, count: int | None, peak_size: int) -> dict[str, Any]:
    """Compare in a child process, and once more in one whose C library keeps the memory that is freed."""
    # The released method frees and takes tensors of tens of megabytes all the time. With its defaults glibc gives many
    # of them back to the system, which hands them out again page by page, zeroed: at d = 768 up to a quarter of its
    # time. In a process with a past some of that falls away, by chance. So both methods start afresh, as in a
    # researcher's run of this prompt, and the record tells what they take without those pages.
    some = () if count is None else ("--blocks", count)
    case = child.record("comparison", shape, n_tokens, "--rounds", rounds, "--peak-size", peak_size, *some)
    if SHAPES[shape].config is not None:
        few = ("--rounds", 1, "--peak-size", peak_size, "--blocks", min(count or _BLOCKS_KEPT, _BLOCKS_KEPT))
        kept = child.record("comparison", shape, n_tokens, *few, memory_kept=True)
        case["memory_kept"] = {name: kept[name] for name in ("basis", "seconds", "ratio")}
    return case


def main() -> None:
    """Run `compare` from the command line and print its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("tokens", type=int)
    parser.add_argument("--rounds", type=int, default=3, help="turns; medians count")
    parser.add_argument("--blocks", type=int, help="blocks the released method is run on; all by default")
    parser.add_argument("--peak-size", type=int, default=2048, help="width of the product at the matrix peak")
    given = parser.parse_args()
    model = SHAPES[given.shape].build()
    print(json.dumps(compare(model, given.tokens, given.rounds, given.blocks, given.peak_size)))


if __name__ == "__main__":
    main()
