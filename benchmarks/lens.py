"""One token's lens, against passes backwards that fit one with futures: counted, and timed one after the other.

    python -m benchmarks.lens --out results/benchmarks/lens.json

Programs that fit Jacobian lenses make a pass backwards through the whole model for every coordinate of its last state,
here sixteen side by side.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

import coupling_lib as cl
from benchmarks import machine
from benchmarks.machine import timed
from companion.tables.lenses import lens_with_futures, operations
from coupling_lib import paths

CASES = (("nano-neox", 128), ("smollm2-135m", 15), ("smollm2-135m", 128))


def run(name: str, tokens: int, rounds: int) -> dict[str, Any]:
    """Measure a model on a text of so many tokens; the passes backwards are made once."""
    model = cl.load_model(name)
    traced = cl.trace(model, torch.arange(tokens)[None])
    own = statistics.median(timed(lambda: cl.lens(traced).dense())[0] for _ in range(rounds))
    fit, _ = timed(lambda: lens_with_futures(traced))
    counted = operations(model, tokens)
    return {
        **{"shape": name, "d": model.d_model, "L": model.n_blocks, "n": tokens},
        "flop": {way: counted[f"operations-{way}"] for way in ("own", "fit")},
        "seconds": {"own": own, "fit": fit},
        "ratio": {"flop": counted["operations-ratio"], "seconds": fit / own},
    }


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, paths.RESULTS / "benchmarks" / "lens.json")
    parser.add_argument("--rounds", type=int, default=3, help="how often one token's lens")
    parser.add_argument("--quick", action="store_true", help="a short text, to see that it works")
    given = parser.parse_args(arguments)
    cases = (run(name, tokens, given.rounds) for name, tokens in ((("nano-neox", 9),) if given.quick else CASES))
    line = "{shape}, {n} tokens: {ratio[flop]:.0f} times fewer, {ratio[seconds]:.0f} times as fast"
    machine.write_each(given.out, cases, line.format_map)


if __name__ == "__main__":
    main()
