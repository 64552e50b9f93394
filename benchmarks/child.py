"""Measure in a process of its own, so that nothing earlier in this one changes the figure.

What a process did before stays in its heap, and decides how much of the memory that a measurement takes comes from the
system page by page, and how much was never given back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from coupling_lib import paths

# With these glibc takes all memory from its heap and keeps it, whatever the size of a piece.
MEMORY_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_TRIM_THRESHOLD_": str(2**40)}


def record(module: str, *words: object, memory_kept: bool = False) -> dict[str, Any]:
    """Run a module of this package in a child process and read the record it prints last."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]
    environment = os.environ | (MEMORY_KEPT if memory_kept else {})
    done = subprocess.run(command, cwd=paths.ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])
