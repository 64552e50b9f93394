"""The machine: its description and records of it, its matrix products' speed, and timers of code and of memory."""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from coupling_lib import paths, provenance
from coupling_lib.memory import give_back

T = TypeVar("T")


def facts() -> dict[str, Any]:
    """Describe the hardware and the software of a run."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    program = Path(sys.argv[0])
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": provenance.processor(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu,
        "versions": provenance.versions(),
        "command": shlex.join(["python", "-m", f"{program.parent.name}.{program.stem}", *sys.argv[1:]]),
    }


def write(out: Path, record: Any) -> None:
    """Write a record atomically."""
    out.parent.mkdir(parents=True, exist_ok=True)
    paths.write_text(out, json.dumps(record, indent=1) + "\n")


def write_each(out: Path, cases: Iterable[dict[str, Any]], line: Callable[[dict[str, Any]], str]) -> None:
    """Write a record anew after each of its cases, and print a line about the case."""
    record: dict[str, Any] = {"machine": facts(), "cases": []}
    for case in cases:
        record["cases"].append(case)
        write(out, record)
        print(line(case), flush=True)


def parser(description: str, out: Path) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line, with the file that its record goes to."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=out, help="the JSON to write")
    return made


def timed(work: Callable[[], T], device: torch.device | str = "cpu") -> tuple[float, T]:
    """Call a function once, and return its seconds and its result."""
    _wait(device)
    start = time.perf_counter()
    result = work()
    _wait(device)
    return time.perf_counter() - start, result


def _wait(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def matrix_rate(size: int, dtype: torch.dtype = torch.float32, device: str = "cpu", repeats: int = 5) -> float:
    """Measure the speed of the product of two square matrices: the machine's matrix peak."""
    generator = torch.Generator(device).manual_seed(0)
    A, B = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(A)
    timed(lambda: torch.mm(A, B, out=out), device)
    return 2 * size**3 / min(timed(lambda: torch.mm(A, B, out=out), device)[0] for _ in range(repeats))


class MemoryPeak:
    """The largest resident set of this process inside a `with`, above the one at its start."""

    # It is the whole process's, so what other threads and the C libraries hold counts. Memory that was freed earlier
    # is given back to the system first; otherwise it would hide what is taken anew. Linux keeps the peak itself;
    # elsewhere a thread reads the resident set every millisecond.

    above = 0

    def __enter__(self) -> MemoryPeak:
        gc.collect()
        give_back()
        self._process, self._done = psutil.Process(), threading.Event()
        self._start = self._process.memory_info().rss
        self._kept_by_system = _forget_peak()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if not self._kept_by_system:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch()
        self._done.set()
        if self._kept_by_system:
            self.above = max(self.above, _peak() - self._start)
        else:
            self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.001):
            self._watch()

    def _watch(self) -> None:
        self.above = max(self.above, self._process.memory_info().rss - self._start)


def _forget_peak() -> bool:
    """Reset Linux's peak of the resident set, and return whether that worked."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
