"""The library beside its peers: ways of doing the same that take turns in one process, with the memory of each.

    python -m benchmarks.peers --out results/benchmarks/peers.json

`make bench` runs it in .venv-bench, an environment that holds the library and its peers (the extra `peers` of
pyproject.toml). All values are compared before anything is timed.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import coupling_lib as cl
from benchmarks import machine, released, stages
from benchmarks.machine import MemoryPeak, timed
from benchmarks.shapes import SHAPES, prompt_ids
from coupling_lib import paths
from coupling_lib.store.lens_files import read_lens

ROUNDS, N_TOKENS, SKIP, TEXTS = 5, 64, 16, 4

Way = Callable[[], tuple[float, Tensor]]
"""A way of computing something: its seconds and its result."""


def in_turns(ours: Way, theirs: Way, rounds: int = ROUNDS) -> dict[str, Any]:
    """Compare two ways of computing one tensor, and time them in turns; the first run of each is for memory alone."""
    memory, found = {}, {}
    for name, way in (("ours", ours), ("theirs", theirs)):
        with MemoryPeak() as peak:
            found[name] = way()[1]
        memory[name] = peak.above
    difference = float((found["ours"] - found["theirs"]).norm() / found["theirs"].norm())
    runs = [(theirs()[0], ours()[0]) for _ in range(rounds)]
    ratios = [of_theirs / of_ours for of_theirs, of_ours in runs]
    seconds = dict(zip(("theirs", "ours"), map(statistics.median, zip(*runs, strict=True)), strict=True))
    return {"seconds": seconds, "ratios": ratios, "memory": memory, "difference": difference}


def jacobian_by_curvlinops(shape: str, rounds: int) -> dict[str, Any]:
    """Form one block's Jacobian: `dense()` against curvlinops' operator, the state of the token as its parameter."""
    from curvlinops import JacobianLinearOperator

    model = SHAPES[shape].build()
    ids, middle = prompt_ids(model, N_TOKENS), model.n_blocks // 2
    trace = cl.trace(model, ids)
    block, x = model.blocks.modules[middle], trace.hidden[middle]

    class OfToken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Parameter(x[-1].clone())

        def forward(self, earlier: Tensor) -> Tensor:
            after = block(torch.cat([earlier, self.token.expand(1, 1, -1)], dim=1))
            return (after[0] if isinstance(after, tuple) else after)[:, -1] - self.token

    function, earlier = OfToken(), x[None, :-1]
    data = [(earlier, torch.zeros(1, model.d_model))]
    # `check_deterministic` multiplies before anything is asked for.
    operator = JacobianLinearOperator(function, [function.token], data, check_deterministic=False)
    unit = torch.eye(model.d_model)
    last = [(N_TOKENS - 1, N_TOKENS - 1)]
    what = {"what": "one Jacobian", "peer": f"curvlinops {version('curvlinops-for-pytorch')}", "shape": shape}
    return what | in_turns(
        lambda: timed(lambda: cl.block_jacobians(trace, middle, last)[0]),
        lambda: timed(lambda: operator @ unit),
        rounds,
    )


def lens_by_transformer_lens(name: str, rounds: int) -> dict[str, Any]:
    """Fit a lens with later targets: `cl.lens` against `JacobianLens.fit`, on the same texts."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.tools.analysis import JacobianLens

    model = cl.load_model(name)
    texts = [prompt.text for prompt in cl.load_prompts()]
    texts = [text for text in texts if len(model.tokenizer(text)["input_ids"]) > SKIP + 8][:TEXTS]
    theirs = cl.load_model(name)
    theirs.hf.set_attn_implementation("eager")
    bridge = TransformerBridge.boot_transformers(
        name, hf_model=theirs.hf, tokenizer=theirs.tokenizer, device="cpu"
    ).eval()
    ids = [bridge.to_tokens(text) for text in texts]

    def fit() -> JacobianLens:
        return JacobianLens.fit(bridge, texts, corpus="texts", skip_first_positions=SKIP, show_progress=False)

    def matrices(lens: JacobianLens) -> Tensor:
        return torch.stack([lens.jacobians[layer].float() for layer in sorted(lens.jacobians)])

    def same(lens: JacobianLens) -> float:
        """Save their lens, read it as any foreign one, and compare the five strongest tokens at every depth."""
        with tempfile.TemporaryDirectory() as folder:
            lens.save(str(file := Path(folder) / "lens.pt"), dtype=torch.float32)
            found = read_lens(file).readout(cl.trace(model, ids[0]), k=5)
        theirs = lens.readout(bridge, texts[0], positions=[-1], top_k=5).lens_topk_indices
        pairs = zip(found.ids.tolist(), (theirs[depth - 1][0].tolist() for depth in found.depths), strict=True)
        agree = [own == other for own, other in pairs]
        return sum(agree) / len(agree)

    def own() -> Tensor:
        lenses = [cl.lens(cl.trace(model, one), targets="later", skip=SKIP).dense() for one in ids]
        return torch.stack(lenses).mean(dim=0)[1 : model.n_blocks]

    what = {"what": "lens with later targets", "peer": f"TransformerLens {version('transformer-lens')}", "shape": name}
    return (
        what
        | in_turns(lambda: timed(own), lambda: timed(lambda: matrices(fit())), rounds)
        | {"same_tokens": same(fit())}
    )


def depth_by_released(shape: str, rounds: int, count: int = 4) -> dict[str, Any]:
    """Measure coupling across depth: `measure_depth`, traceless part included, against the released method."""
    model = SHAPES[shape].build()
    ids = prompt_ids(model, N_TOKENS)
    kind, blocks = stages.faster_attention(model, ids), stages.some_blocks(model.n_blocks, count)
    J = stages.ours(model, ids).J  # stands for the blocks whose Jacobians the released method does not form
    inner = [block for block in blocks if block != model.n_blocks - 1]  # their last one ends after the final norm
    pairs = torch.tensor([(one, other) for one in inner for other in inner if one != other]).T

    def own() -> tuple[float, Tensor]:
        seconds, measured = timed(lambda: cl.measure_depth(model, [ids], ks=released.KS))
        return seconds, torch.from_numpy(measured["released_norm"].values[0])[:, *pairs]

    def theirs() -> tuple[float, Tensor]:
        run = stages.theirs(model, ids, kind, blocks, J)
        return sum(run.seconds.values()), run.values["released_norm"][:, *pairs]

    what = f"coupling across depth, scaled from {len(blocks)} of {model.n_blocks} blocks"
    return {"what": what, "peer": "released method", "shape": shape} | in_turns(own, theirs, rounds)


def cases(quick: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure every case."""
    shape = "tiny" if quick else "gpt2-small"
    yield depth_by_released(shape, rounds)
    yield jacobian_by_curvlinops(shape, rounds)
    yield lens_by_transformer_lens("nano-neox", rounds)


def line(case: dict[str, Any]) -> str:
    """Format the outcome of a case for the terminal."""
    ratios = ", ".join(f"{ratio:.1f}" for ratio in case["ratios"])
    return f"{case['what']}, {case['shape']}: {case['peer']} takes {ratios} times as long"


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line."""
    parser = machine.parser(__doc__, paths.RESULTS / "benchmarks" / "peers.json")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each way is timed")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to see that it works")
    given = parser.parse_args(arguments)
    machine.write_each(given.out, cases(given.quick, given.rounds), line)


if __name__ == "__main__":
    main()
