"""Kill sweeps at random moments, resume them, and compare what is kept with sweeps that nobody disturbed.

    python workflow/faults.py [--kills 50] [--seed 0]

An embedded model is loaded once; each run is a forked child, so that what is killed is measuring and writing. A kill
(SIGKILL) comes at a moment drawn evenly over the duration of the undisturbed run. A sweep that was killed is started
again on the same store until it is done, and then another one begins, until all kills are made. After each kill and at
the end the store is looked through:

- **repeats**: measurements that were there and were written or measured once more;
- **losses**: measurements that were there and are gone, or that a finished sweep lacks;
- **corrupt**: files that cannot be read;
- **off**: the largest difference from the undisturbed run, relative to the largest value; 0 is equal to the last bit.

Kills in the middle of a write leave a file with the ending `.partial`, which nothing reads; they are counted. The exit
code is 1 if there is any repeat, loss or corrupt file, or a number differs.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import coupling_lib as cl
from coupling_lib import paths
from coupling_lib.inputs.given import prompt_inputs, prompt_name
from coupling_lib.store import files

MODEL = "nano-neox"


@dataclass(frozen=True)
class Case:
    """A sweep that is killed: what is measured, and of how many prompts."""

    name: str
    measure: Callable[..., Any]
    settings: dict[str, Any]
    n_prompts: int


@dataclass
class Count:
    """What became of the killed runs of one case."""

    kills: int = 0
    repeats: int = 0
    losses: int = 0
    corrupt: int = 0
    sweeps: int = 0
    in_a_write: int = 0
    off: float = 0.0


def noted(measure: Callable[..., Any], log: Path) -> Callable[..., Any]:
    """Give a measure that writes down which prompts it is called with, and is the same to the store."""

    @functools.wraps(measure)
    def noting(model: Any, prompts: Any, **settings: Any) -> Any:
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"{prompt_name(prompt)}\n" for prompt in prompt_inputs(prompts))
        return measure(model, prompts, **settings)

    return noting


def run(sweep: Callable[[], Any], moment: float | None = None) -> bool:
    """Run a sweep in a forked child, and kill it after so many seconds; whether it was."""
    if not (child := os.fork()):
        try:
            sweep()
            os._exit(0)
        finally:
            os._exit(1)
    if moment is not None:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("a sweep failed by itself; run it without kills")
    return os.WIFSIGNALED(status)


def kept(root: Path, count: Count | None = None) -> dict[Path, tuple[int, str, str]]:
    """Look through a store: when each file was changed and made, and its prompt; what is damaged is counted."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.name.endswith(files.SUFFIX):
            try:
                record, ds = files.open_file(path)
                found[path] = (path.stat().st_mtime_ns, record["made"], str(ds["prompt"].item()))
                continue
            except files.DamagedError:
                pass
        if count is not None and path.name.endswith((files.SUFFIX, files.DAMAGED)):
            count.corrupt += 1
    return found


def difference(path: Path, other: Path) -> float:
    """Say how far two measurements are apart, relative to the largest value of a variable; 0 for the same bits."""
    (_, a), (_, b) = files.open_file(path), files.open_file(other)
    if list(a.variables) != list(b.variables) or a.attrs != b.attrs:
        return np.inf
    apart = 0.0
    for name in a.variables:
        x, y = a[name].values, b[name].values
        if x.dtype != y.dtype or x.shape != y.shape or (x.dtype.kind not in "fiub" and x.tolist() != y.tolist()):
            return np.inf
        if x.dtype.kind in "fiub" and x.tobytes() != y.tobytes():
            if not np.array_equal(np.isnan(x), np.isnan(y)):
                return np.inf
            # A residual is relative already, and nothing but rounding.
            scale = 1.0 if name == "residual" else max(np.nanmax(np.abs(y.astype(float))), 1e-300)
            apart = max(apart, float(np.nanmax(np.abs(x.astype(float) - y)) / scale))
    return apart


def kill(case: Case, model: cl.Model, kills: int, draw: random.Random, folder: Path) -> Count:
    """Kill the sweeps of one case so many times, and count what became of them."""
    prompts = [prompt.text for prompt in cl.load_prompts(n=case.n_prompts)]
    log = folder / "log"

    def begin(root: Path) -> Callable[[], Any]:
        measure = noted(case.measure, log)
        return lambda: cl.sweep(measure, model, prompts, store=root, **case.settings)

    start = time.monotonic()
    run(begin(folder / "undisturbed"))
    duration = time.monotonic() - start
    wanted = {path.relative_to(folder / "undisturbed"): path for path in kept(folder / "undisturbed")}
    if len(wanted) != len(set(prompts)):
        raise RuntimeError(f"the undisturbed sweep kept {len(wanted)} measurements of {len(set(prompts))} prompts")
    count = Count()
    while count.kills < kills:
        count.sweeps, root, before, killed = count.sweeps + 1, folder / str(count.sweeps), {}, True
        while killed:
            log.unlink(missing_ok=True)
            killed = run(begin(root), draw.uniform(0, duration) if count.kills < kills else None)
            count.kills += killed
            now = kept(root, count)
            measured = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
            there = {prompt for _, _, prompt in before.values()}
            rewritten = {was[2] for path, was in before.items() if path in now and now[path] != was}
            count.repeats += len(rewritten) or len(there.intersection(measured))
            count.losses += len(before.keys() - now.keys())
            partial = [path for path in root.rglob(f"*{paths.PARTIAL}")]
            count.in_a_write += len(partial)
            for path in partial:
                path.unlink()
            before = now
        count.losses += sum(not (root / name).exists() for name in wanted)
        off = [difference(root / name, path) for name, path in wanted.items() if (root / name) in before]
        count.off = max([count.off, *off])
    return count


CASES = (
    Case("trajectories", cl.measure_trajectories, {}, 12),
    Case("depth", cl.measure_depth, {"ks": (5,)}, 12),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill every case its share of times, and print the table."""
    parser = argparse.ArgumentParser(description="Kill sweeps at random moments and compare what is kept.")
    parser.add_argument("--kills", type=int, default=50, help="how many in all (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    given = parser.parse_args(arguments)
    model, draw = cl.load_model(MODEL), random.Random(given.seed)
    names = [field.name.replace("_", " ") for field in fields(Count)]
    print(f"{'':<28}" + "".join(f"{name:>12}" for name in names), flush=True)
    counts = []
    for number, case in enumerate(CASES):
        share = given.kills // len(CASES) + (number < given.kills % len(CASES))
        with tempfile.TemporaryDirectory() as folder:
            counts.append(kill(case, model, share, draw, Path(folder)))
        _print(case.name, counts[-1])
    wrong = any(count.repeats or count.losses or count.corrupt or count.off for count in counts)
    sums = {field.name: sum(getattr(count, field.name) for count in counts) for field in fields(Count)}
    _print("all", Count(**(sums | {"off": max(count.off for count in counts)})))
    return int(wrong)


def _print(name: str, count: Count) -> None:
    values = [getattr(count, field.name) for field in fields(Count)]
    print(f"{name:<28}" + "".join(f"{value:>12.3g}" for value in values), flush=True)


if __name__ == "__main__":
    sys.exit(main())
