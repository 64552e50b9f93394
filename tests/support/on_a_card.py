"""Compare the Jacobians of every tested family on a card with those of brute force in float64 on the processor.

    PYTHONPATH=. python tests/support/on_a_card.py [FAMILY ...]

Prints each family's largest relative error in float64 and in float32, and at the end what `benchmarks/latest_gpu.json`
keeps of it. Without a card everything runs on the processor.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from every_family import example
from families import FAMILIES, Family, named
from reference import brute_force_jacobian, relative_error

import coupling_lib as cl

DTYPES = (torch.float64, torch.float32)


def errors(family: Family, device: str) -> list[float]:
    """Give the largest relative error of a few Jacobians of the first and the last block, by dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf = family.build().double()
        path, inputs = cl.wrap_model(hf).blocks.path, example(hf)
        there = [cl.wrap_model(family.build().to(device, dtype), name=family.name) for dtype in DTYPES]
    wide = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    blocks, worst = hf.get_submodule(path), [0.0] * len(DTYPES)
    traces = [cl.trace(model, *(x.to(device, dtype if x.is_floating_point() else None) for x in inputs.values()))
              for model, dtype in zip(there, DTYPES, strict=True)]  # fmt: skip
    last = traces[0].n_tokens - 1
    for block in (0, len(blocks) - 1):
        for pair in ((last, last), (last - 2, last)):
            wanted = brute_force_jacobian(hf, blocks[block], wide, *pair)
            if wanted.norm() > 1e-9:  # else the tokens do not see each other
                found = (trace.jacobian(block, *pair).dense().cpu() for trace in traces)
                worst = [max(old, relative_error(J, wanted)) for old, J in zip(worst, found, strict=True)]
    return worst


def main(names: list[str]) -> None:
    """Go over the families."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = {}
    for family in map(named, names) if names else FAMILIES:
        found[family.name] = errors(family, device)
        print(f"{family.name:<22}{found[family.name][0]:>10.1e}{found[family.name][1]:>10.1e}", flush=True)
    worst = [max(column) for column in zip(*found.values(), strict=True)]
    print(f"on {device}:", json.dumps({"number": len(found), "float64": worst[0], "float32": worst[1]}))
    sys.exit(max(worst) > 1e-5)


if __name__ == "__main__":
    main(sys.argv[1:])
