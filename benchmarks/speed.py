"""The released method against this library, on the CPU: whole prompts and each stage, values compared on the way.

    python -m benchmarks.speed --out results/benchmarks/speed.json
    python -m benchmarks.speed --quick --out speed.json                 # a minute; shows that it works

Both methods take turns in one process, a fresh one for each model and length of prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks import child, comparison, embedded, machine, report
from benchmarks.growth import growth
from benchmarks.shapes import SHAPES


def run(names: list[str], tokens: list[int], rounds: int, count: int, quick: bool) -> dict[str, Any]:
    """Run the whole benchmark."""
    result: dict[str, Any] = {"machine": machine.facts(), "quick": quick, "cases": [], "memory": []}
    result["embedded_prompt"] = child.record("embedded", "--rounds", 3 if quick else embedded.ROUNDS)
    peak_size = 256 if quick else 2048
    for name in names:
        trained = SHAPES[name].config is None
        for n_tokens in tokens:
            # Short prompts and embedded models are quick enough for all blocks.
            blocks = None if trained or n_tokens <= 16 else count
            case = comparison.in_own_process(name, n_tokens, rounds, blocks, peak_size)
            print(report.case_line(case), flush=True)
            result["cases"].append(case)
        if not trained:
            for method in ("ours", "released"):
                about = {"shape": name, "n": max(tokens), "method": method}
                result["memory"].append(about | child.record("memory", *about.values()))
    result["growth"] = growth(quick, rounds)
    return result


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, Path("results/benchmarks/speed.json"))
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
    machine.write(given.out, result)
    print(report.speed_page(result))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
