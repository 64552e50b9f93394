"""Every model type of transformers, tiny and random, loaded by the library and compared with plain autograd.

    python tests/support/every_family.py [TYPE ...]

A type's model is built by `tiny_families`, saved, and loaded twice: by the library in float32, and by transformers as
it does by default, for autograd through the whole model in float64. Compared are the states after every block, and of
the first and the last block the Jacobians at one token and from an earlier one. Untrained weights are compared with
those of a model that transformers builds anew: `fresh` is their largest difference, 1 being what is accepted.

Each type has a process of its own with a time limit. Answers are kept in `results/families.jsonl` while library,
program and transformers are the same, so that a run that was stopped goes on. Once all have one, the table is written.
"""

import copy
import csv
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import transformers
from reference import brute_force_jacobian, central_difference, relative_error
from tiny_families import MAPPINGS, build
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

import coupling_lib as cl
from coupling_lib import errors, paths, progress

TABLE, KEPT = paths.ROOT / "data" / "families.csv", paths.RESULTS / "families.jsonl"
COLUMNS = (
    *("mapping", "type", "class", "outcome", "route", "exact_to", "states_to", "central_to", "fresh", "why"),
    "transformers",
)
TYPES = [(mapping, kind) for mapping, names in MAPPINGS.items() for kind in names]
EXACT, SAME = 1e-4, 1e-5  # of Jacobians and of states: relative, float32 against float64
STEPS = (1e-3, 1e-4, 1e-5)  # of central differences: a smaller one where a kink of ReLU or of a choice lies within
SECONDS, TOKENS = 120, 12


def default(hf: PreTrainedModel, folder: str) -> PreTrainedModel:
    """Load a model as transformers does where nothing is asked for, but for the cache."""
    hf = type(hf).from_pretrained(folder).eval().requires_grad_(False)
    hf.config.use_cache = hf.config.get_text_config().use_cache = False
    return hf


def example(hf: PreTrainedModel) -> dict[str, Tensor]:
    """Make an input: tokens none of which is special, or an image."""
    generator = torch.Generator().manual_seed(2)
    if hf.main_input_name == "pixel_values":
        config = hf.config if hasattr(hf.config, "image_size") else getattr(hf.config, "vision_config", hf.config)
        size = getattr(config, "image_size", 64)
        shape = (1, getattr(config, "num_channels", 3), *([size, size] if isinstance(size, int) else size))
        return {"pixel_values": torch.randn(shape, generator=generator)}
    most = min(400, hf.config.get_text_config().vocab_size)
    return {"input_ids": torch.randint(most // 2, most, (1, TOKENS), generator=generator)}


def built(mapping: str, kind: str, folder: str) -> PreTrainedModel:
    """Build and save a model, and see that transformers runs it: the whole, or else the text's stack."""
    reasons = []
    for alone in (False, True):
        doing = "not built"
        try:
            (hf := build(mapping, kind, alone)).save_pretrained(folder)
            doing = "does not run"
            if not getattr(hf.config, "is_encoder_decoder", False):
                with torch.no_grad():
                    (plain := default(hf, folder))(**example(hf))
                if not mixes_tokens(plain):
                    raise NotImplementedError("attention has no effect on this machine: no token changes the last")
            return hf
        except Exception as error:
            reasons.append(f"{doing} ({in_one_line(error, folder)})")
    raise RuntimeError(reasons[0])


class Wide(TorchFunctionMode):
    """Within it, what a family's own code casts to float32 becomes float64, and experts' products know float64."""

    def __enter__(self) -> "Wide":
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(torch.float32)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is torch._grouped_mm:
            *parts, rest = args[0].tensor_split(kwargs["offs"].cpu().long())
            return torch.cat([*(part @ W for part, W in zip(parts, args[1], strict=True)), rest @ args[1][0] * 0])
        func = Tensor.double if func is Tensor.float else func
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def compared(model: cl.Model, hf: PreTrainedModel) -> dict[str, str]:
    """Compare the library's states and Jacobians with those of the model as transformers loads it."""
    inputs = example(hf)
    trace = cl.trace(model, *(x.to(model.device) for x in inputs.values()))
    blocks, last, states, wanted = hf.double().get_submodule(model.blocks.path), trace.n_tokens - 1, [], {}
    hooks = [block.register_forward_hook(lambda *given: states.append(given[-1])) for block in blocks]
    with Wide():
        inputs = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
        hf(**inputs)
        for hook in hooks:
            hook.remove()
        for number in {0, len(blocks) - 1}:
            for pair in [(last, last), (last - 2, last)][:last]:
                rows = [trace.first + token for token in pair]
                wanted[number, *pair] = brute_force_jacobian(hf, blocks[number], inputs, *rows)
        first, d = blocks[0], trace.d_model
        directions = torch.randn(len(STEPS), d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        differences = [
            (v, central_difference(hf, first, inputs, trace.first + last, v, step) - v)
            for v, step in zip(directions / directions.norm(dim=1, keepdim=True), STEPS, strict=True)
        ]
    tokens = slice(trace.first, trace.first + trace.n_tokens)
    states = [(state if isinstance(state, Tensor) else state[0]).reshape(-1, d)[tokens] for state in states]
    off = [relative_error(x, y) for x, y in zip(trace.hidden[1:].cpu(), states, strict=True)]
    found = []
    for (block, t1, t2), J in wanted.items():
        try:
            found.append(relative_error(cl.block_jacobians(trace, block, [(t1, t2)])[0].cpu(), J))
        except errors.UntrustworthyResultError:
            # What is rounding may be refused, and nothing else.
            found.append(float(J.norm() > 1e-6 * wanted[block, t2, t2].norm()))
    # Autograd has no part in these; one direction that no kink lies on is enough.
    J = wanted[0, last, last]
    central = min(relative_error(J @ v, difference) for v, difference in differences)
    # Unlike Python's, this maximum is NaN if one is.
    exact, same = float(torch.tensor(found).max()), float(torch.tensor(off).max())
    outcome = "exact" if exact < EXACT and same < SAME and central < EXACT else "wrong"
    errors_ = {"exact_to": exact, "states_to": same, "central_to": central}
    return {"outcome": outcome, "route": model.blocks.route} | {name: f"{value:.0e}" for name, value in errors_.items()}


def fresh(folder: str) -> dict[str, str]:
    """Compare untrained weights with those of a model that transformers builds: each kind's spread and mean, pooled."""
    with warnings.catch_warnings(action="ignore"):
        try:
            ours = cl.load_model(folder, untrained=True, seed=11).hf
        except errors.UnsupportedModelError:
            return {"fresh": "refused"}  # of a weight that a constructor alone gives its value
    torch.manual_seed(12)
    kinds: dict[str, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    # Some families choose a class of attention by its name, and know not the one that is set here.
    plain = {"dtype": torch.float32, "attn_implementation": "eager"}
    for number, made in enumerate((ours, type(ours)._from_config(copy.deepcopy(ours.config), **plain))):
        for name, weight in made.named_parameters():
            kinds[re.sub(r"\d+", "#", name)][number].append(weight.detach().double().flatten())
    worst = 0.0
    for pair in kinds.values():
        x, y = map(torch.cat, pair)
        if not len(y):
            continue
        spread, off = x.std(correction=0) - y.std(correction=0), (x.mean() - y.mean()) / 2**0.5
        # Five per cent, or four standard errors of a difference.
        accepted = max(0.05, 4 * len(y) ** -0.5) * y.square().mean().sqrt()
        worst = max(worst, *(float(abs(each) / accepted) if each else 0.0 for each in (spread, off)))
    return {"fresh": f"{worst:.1g}"}


def mixes_tokens(hf: PreTrainedModel) -> bool:
    """Return whether any token but the last has an effect on the last state; on some machines attention has none."""
    inputs = example(hf)
    if "input_ids" not in inputs:
        return True
    changed = inputs["input_ids"].clone()
    changed[0, :-1] = changed[0, :-1].flip(0)
    with torch.no_grad():
        first, second = (hf(input_ids=ids)[0][0, -1] for ids in (inputs["input_ids"], changed))
    return not torch.equal(first, second)


def in_one_line(error: BaseException, folder: str) -> str:
    """Write an error in one line; the library's own needs no name of its class."""
    message = str(error) if isinstance(error, errors.CouplingError) else f"{type(error).__name__}: {error}"
    message = " ".join(message.replace(folder, "FOLDER").split())
    return message if len(message) <= 240 else f"{message[:236]} ..."


def tried(mapping: str, kind: str) -> dict[str, str]:
    """Build, load and compare the model of one type."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            hf = built(mapping, kind, folder)
        except RuntimeError as error:
            return {"outcome": "not tried", "why": str(error)}
        row = {"class": type(hf).__name__}
        try:
            model = cl.load_model(folder)
            row |= compared(model, default(model.hf, folder)) | fresh(folder)
            return row | ({"outcome": "wrong"} if row["fresh"] != "refused" and float(row["fresh"]) > 1 else {})
        except Exception as error:
            refused = isinstance(error, errors.CouplingError)
            return row | {"outcome": "refused" if refused else "error", "why": in_one_line(error, folder)}


def work(mapping: str, kind: str, sender: connection.Connection) -> None:
    """Try one type, in a process of its own."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        sender.send(tried(mapping, kind))


def run(wanted: list[tuple[str, str]], jobs: int) -> Iterator[dict[str, str]]:
    """Try types side by side, and yield each answer as it comes."""
    # A fork has at hand what was imported before it, which takes longer than most types do; much is at first use.
    tried("causal", "llama")
    context, waiting, running = multiprocessing.get_context("fork"), wanted[::-1], {}
    while waiting or running:
        while waiting and len(running) < jobs:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(*waiting[-1], sender), daemon=True)
            process.start()
            sender.close()
            running[receiver] = process, waiting.pop(), time.monotonic()
        ready = connection.wait(list(running), timeout=1)
        for receiver, (process, what, since) in list(running.items()):
            if receiver not in ready and time.monotonic() - since < SECONDS:
                continue
            try:
                answer = receiver.recv() if receiver in ready else {"outcome": "not tried", "why": "took too long"}
            except EOFError:
                answer = {"outcome": "error", "why": "the process ended without an answer"}
            process.kill()
            process.join()
            del running[receiver]
            yield dict(zip(COLUMNS, what, strict=False)) | answer


def write(found: dict[tuple[str, str], dict[str, str]]) -> None:
    """Write the table; a row that states the same as before keeps its digits, which differ between processors."""

    def stable_part(row: dict[str, str]) -> list[str]:
        kept = [row[name] for name in ("outcome", "class", "route", "transformers")]
        return kept + re.split(r"[\d.e+-]+", row["why"])

    lines = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.is_file() else []
    old = {(row["mapping"], row["type"]): row for row in csv.DictReader(lines)}
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for each in TYPES:
            row = dict.fromkeys(COLUMNS, "") | found[each] | {"transformers": transformers.__version__}
            table.writerow(old[each] if each in old and stable_part(old[each]) == stable_part(row) else row)


def main(names: list[str]) -> int:
    """Try all types, or those that are named, and write the table once all have an answer; 1 if one is not right."""
    if unknown := sorted(set(names) - {kind for _, kind in TYPES}):
        raise errors.ParameterError(f"transformers {transformers.__version__} has no type {', '.join(unknown)}")
    code = [*sorted(Path(__file__).parent.glob("*_families.*")), Path(__file__), *sorted(paths.PACKAGE.rglob("*.py"))]
    version = hashlib.sha256(b"".join(file.read_bytes() for file in code))
    version.update(transformers.__version__.encode())
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    for row in map(json.loads, KEPT.read_text(encoding="utf-8").splitlines() if KEPT.is_file() else ()):
        if row.pop("version") == version.hexdigest() and row["type"] not in names:
            found[row["mapping"], row["type"]] = row
    wanted = [each for each in TYPES if each not in found and (not names or each[1] in names)]
    with KEPT.open("a", encoding="utf-8") as kept:
        for number, row in enumerate(run(wanted, os.cpu_count() or 1), start=1):
            found[row["mapping"], row["type"]] = row
            print(json.dumps(row | {"version": version.hexdigest()}), file=kept, flush=True)
            print(f"{number}/{len(wanted)}", *row.values(), flush=True)
    if len(found) == len(TYPES):
        write(found)
    counted = Counter((row["mapping"], row["outcome"]) for row in found.values())
    print(*(f"{mapping}, {outcome}: {count}" for (mapping, outcome), count in sorted(counted.items())), sep="\n")
    return int(any(outcome in ("wrong", "error") for _, outcome in counted))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sys.exit(progress.in_one_line(lambda: main(sys.argv[1:]), "stopped; the same command goes on"))
