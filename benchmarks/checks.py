"""Cost of comparing blocks with central differences and plain autograd: at load, and beneath hooks.

    python -m benchmarks.checks --rounds 3

Loading is all that `load_model` does for the embedded model, and for a shape with random weights all that `wrap_model`
does; a real one's weights are read besides.

The hook changes nothing and stands on a norm, so that the same derivatives are computed by the same rules. What is
added is the comparison of each block with the whole sequence: once a trace, and once for each pair of tokens.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import GPT2Config, Qwen2Config

import coupling_lib as cl
from benchmarks import machine
from benchmarks.machine import timed
from benchmarks.shapes import Shape, prompt_ids
from coupling_lib import paths
from coupling_lib.blocks import central_differences
from coupling_lib.blocks.validate import validate


def qwen25_15b(blocks: int = 3) -> Qwen2Config:
    """Return the configuration of some blocks of Qwen2.5-1.5B."""
    heads = dict(num_attention_heads=12, num_key_value_heads=2)
    return Qwen2Config(hidden_size=1536, intermediate_size=8960, num_hidden_layers=blocks, vocab_size=1024, **heads)


CASES = (Shape("nano-neox"), Shape("gpt2-small", GPT2Config), Shape("qwen2.5-1.5b, 3 blocks", qwen25_15b))


def run(shape: Shape, rounds: int, n: int = 16) -> dict[str, Any]:
    """Measure a case."""
    model, times = shape.build(), {"loading": [], "load": [], "central": [], "bare": [], "hooked": []}
    ids = prompt_ids(model, n)
    for _ in range(rounds):
        times["loading"].append(timed(lambda: _load(shape, model))[0])
        with _timed_central() as central:
            times["load"].append(timed(lambda: validate(model.hf))[0])
        times["central"].append(sum(central))
        times["bare"].append(timed(lambda: _jacobians(model, ids))[0])
        norms = [next(m for m in block.modules() if "Norm" in type(m).__name__) for block in model.blocks.modules]
        hooks = [norm.register_forward_hook(_same) for norm in norms]
        times["hooked"].append(timed(lambda: _jacobians(model, ids))[0])
        for hook in hooks:
            hook.remove()
    least = {name: min(all_) for name, all_ in times.items()}
    added, share = least["hooked"] / least["bare"] - 1, least["central"] / (least["loading"] - least["central"])
    return {"shape": shape.name, "d": model.d_model, "seconds": least, "added": added, "slower": share}


def _load(shape: Shape, model: cl.Model) -> None:
    if shape.config is None:
        cl.load_model(shape.name)
    else:
        cl.wrap_model(model.hf)


@contextmanager
def _timed_central() -> Generator[list[float]]:
    """Record the seconds that central differences take inside the context."""
    taken: list[float] = []
    plain = central_differences.check

    def check(*given: Any) -> None:
        taken.append(timed(lambda: plain(*given))[0])

    with patch.object(central_differences, "check", check):
        yield taken


def _jacobians(model: cl.Model, ids: torch.Tensor) -> None:
    trace = cl.trace(model, ids)
    for block in range(trace.n_blocks):
        trace.jacobian(block).dense()


def _same(_: nn.Module, __: tuple, output: torch.Tensor) -> torch.Tensor:
    return output * 1.0


def main(argv: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, paths.ROOT / "benchmarks" / "latest_checks.json")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(argv)
    record = {"machine": machine.facts(), "cases": [run(shape, given.rounds) for shape in CASES]}
    machine.write(given.out, record)
    for case in record["cases"]:
        central, load = (case["seconds"][name] for name in ("central", "load"))
        print(
            f"{case['shape']}: check at load {load:.3f} s, of that central differences {central:.3f} s, which make "
            f"loading {case['slower']:.1%} slower; hooks add {case['added']:.1%}"
        )


if __name__ == "__main__":
    main()
