"""Compare states and Jacobians of every tested family on a card with brute force in float64 on the processor.

    PYTHONPATH=. python tests/support/on_a_card.py [FAMILY ...]

Prints what `every_family` finds of each, in one process, as a card cannot be shared by forks. Without a card everything
runs on the processor. `benchmarks/latest_gpu.json` keeps the last line.
"""

import json
import sys

import torch
from every_family import compared
from families import FAMILIES, named

import coupling_lib as cl


def main(names: list[str]) -> None:
    """Go over the families."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = {}
    for family in map(named, names) if names else FAMILIES:
        hf = family.build().float()
        hf.config.use_cache = hf.config.get_text_config().use_cache = False
        model = cl.wrap_model(family.build().to(device, torch.float32), name=family.name)
        found[family.name] = compared(model, hf)
        print(f"{family.name:<22}", *found[family.name].values(), flush=True)
    worst = max(float(row["exact_to"]) for row in found.values())
    print(f"on {device}:", json.dumps({"number": len(found), "float32": worst}))
    sys.exit(any(row["outcome"] != "exact" for row in found.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
