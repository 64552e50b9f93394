"""Waiting time for one prompt of the embedded model, in a process of its own as after opening a notebook.

python -m benchmarks.embedded
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import coupling_lib as cl
from benchmarks.machine import timed
from coupling_lib.inputs.prompts import PARIS

# A call takes a tenth of a second, less than a disturbance from elsewhere on the machine lasts.
ROUNDS = 25


def embedded_prompt(rounds: int = ROUNDS) -> dict[str, Any]:
    """Time the call of a reader: `measure_depth` of one prompt on the embedded model, with all readings."""
    model = cl.load_model("nano-neox")
    cl.measure_depth(model, [PARIS])
    seconds = [timed(lambda: cl.measure_depth(model, [PARIS]))[0] for _ in range(rounds)]
    return {
        "shape": model.name,
        "n": cl.trace(model, PARIS).n_tokens,
        "rounds": rounds,
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "call": "measure_depth, one prompt, all readings",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often; the median counts")
    print(json.dumps(embedded_prompt(parser.parse_args().rounds)))
