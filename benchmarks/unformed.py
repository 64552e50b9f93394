"""Coupling across depth by products with the Jacobians, against forming every one of them, in turns in one run.

    python -m benchmarks.unformed --out results/benchmarks/unformed.json

Each case takes a few blocks of a model and one prompt, and gives the seconds of one block of the whole model: its
triplets and its products with the vectors of all L blocks. Most have random weights; `smollm2-135m` is trained. A third
way forms every Jacobian with the two layers of a gate apart, one product each, as before they were merged.
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import PreTrainedConfig

import coupling_lib as cl
from benchmarks import machine
from benchmarks.machine import timed
from benchmarks.shapes import llama3_8b, llama32_1b, model_from, prompt_ids, small_llama
from coupling_lib import paths
from coupling_lib.blocks import rules
from coupling_lib.metrics.coupling import project_all_pairs
from coupling_lib.svd.krylov import golub_kahan
from coupling_lib.svd.operators import fewer_products

WAYS = ("apart", "formed", "products")
# The vocabulary is no part of a block.
_VOCABULARY = 4096
SHAPES = {"llama3-8b": llama3_8b, "llama3.2-1b": llama32_1b, "small": small_llama}
CASES = (
    *(("llama3-8b", k) for k in (10, 30, 50)),
    *(("llama3.2-1b", k) for k in (10, 30)),
    *(("smollm2-135m", k) for k in (10, 30)),
)


def run(name: str, k: int, rounds: int, blocks: int = 2, n: int = 32) -> dict[str, Any]:
    """Measure a case."""
    model, depth = _model(name, blocks)
    ids = prompt_ids(model, n)
    traced, d = cl.trace(model, ids), model.d_model
    V = torch.randn(depth - model.n_blocks, d, k, generator=torch.Generator().manual_seed(0))

    def measured(way: str) -> tuple[float, Any]:
        seconds, found = timed(lambda: cl.measure_depth(model, [ids], ks=(k,), formed=way != "products"))
        for J in map(traced.jacobian, range(model.n_blocks) if len(V) else ()):
            with J.held():
                # What has been timed above: to evaluate the block, and to form the matrix.
                _ = J @ V[0, :, :1] if way == "products" else J.dense()
                seconds += timed(lambda J=J: project_all_pairs([J], V, V))[0]
        return seconds / model.n_blocks, found

    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    found: dict[str, Any] = {}
    for _ in range(rounds):
        for way in WAYS:
            with patch.object(rules, "_merged", lambda *_: None) if way == "apart" else nullcontext():
                seconds, found[way] = measured(way)
            taken[way].append(seconds)
    medians = {way: statistics.median(each) for way, each in taken.items()}
    return {
        "shape": name,
        "d": d,
        "L": depth,
        "k": k,
        "seconds": medians,
        "ratio": medians["products"] / medians["formed"],
        "ratio_apart": medians["products"] / medians["apart"],
        "prefers": fewer_products(d, k, depth),
        "columns": [_columns(traced.jacobian(block), k) for block in range(model.n_blocks)],
        "difference": max(_difference(found["apart"], found[way]) for way in ("formed", "products")),
    }


def _columns(J: cl.BlockJacobian, k: int) -> int:
    with J.held():
        return golub_kahan(J, k).columns


def _model(name: str, blocks: int) -> tuple[cl.Model, int]:
    if name not in SHAPES:
        model = cl.load_model(name)
        return model, model.n_blocks
    config: PreTrainedConfig = SHAPES[name]()
    depth, config.num_hidden_layers, config.vocab_size = config.num_hidden_layers, blocks, _VOCABULARY
    return model_from(config, name), depth


def _difference(formed: Any, products: Any) -> float:
    values = [name for name in products.data_vars if products[name].dims[1:] == ("k", "block_1", "block_2")]
    return max(float(np.abs(formed[name] - products[name]).max() / np.abs(formed[name]).max()) for name in values)


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, paths.RESULTS / "benchmarks" / "unformed.json")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way")
    names = list(dict.fromkeys(name for name, _ in CASES))
    parser.add_argument("--shapes", nargs="+", choices=names, default=names, help="models that are measured")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to see that it works")
    given = parser.parse_args(arguments)
    cases = [("small", 4)] if given.quick else [case for case in CASES if case[0] in given.shapes]
    line = "{shape}, K = {k}: products take {ratio:.2f} of the time of forming, {ratio_apart:.2f} with gates apart"
    machine.write_each(given.out, (run(name, k, given.rounds) for name, k in cases), line.format_map)


if __name__ == "__main__":
    main()
