"""What it costs to compare blocks with plain autograd: at load, and where a hook stands on every block.

    python -m benchmarks.checks --out results/benchmarks/checks.json

The hook changes nothing and stands on a norm, so that the same derivatives are computed by the same rules. What is
added is the comparison of each block with the whole sequence: once a trace, and once for each pair of tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config

import coupling_lib as cl
from benchmarks import machine
from benchmarks.machine import timed
from benchmarks.shapes import Shape, prompt_ids
from coupling_lib import paths
from coupling_lib.blocks.validate import validate

CASES = (Shape("nano-neox"), Shape("gpt2-small", GPT2Config))


def run(cases: tuple[Shape, ...] = CASES, rounds: int = 5, n: int = 16) -> list[dict[str, Any]]:
    """Measure the cases."""
    records = []
    for shape in cases:
        model, times = shape.build(), {"load": [], "bare": [], "hooked": []}
        ids = prompt_ids(model, n)
        for _ in range(rounds):
            times["load"].append(timed(lambda model=model: validate(model.hf))[0])
            times["bare"].append(timed(lambda model=model, ids=ids: _jacobians(model, ids))[0])
            norms = [next(m for m in block.modules() if "Norm" in type(m).__name__) for block in model.blocks.modules]
            hooks = [norm.register_forward_hook(_same) for norm in norms]
            times["hooked"].append(timed(lambda model=model, ids=ids: _jacobians(model, ids))[0])
            for hook in hooks:
                hook.remove()
        least = {name: min(all_) for name, all_ in times.items()}
        added = least["hooked"] / least["bare"] - 1
        records.append({"shape": shape.name, "d": model.d_model, "seconds": least, "added": added})
    return records


def _jacobians(model: cl.Model, ids: torch.Tensor) -> None:
    trace = cl.trace(model, ids)
    for block in range(trace.n_blocks):
        trace.jacobian(block).dense()


def _same(_: nn.Module, __: tuple, output: torch.Tensor) -> torch.Tensor:
    return output * 1.0


def main(argv: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=paths.RESULTS / "benchmarks" / "checks.json")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(argv)
    record = {"machine": machine.facts(), "cases": run(rounds=given.rounds)}
    machine.write(given.out, record)
    for case in record["cases"]:
        print(f"{case['shape']}: check at load {case['seconds']['load']:.3f} s, hooks add {case['added']:.1%}")


if __name__ == "__main__":
    main()
