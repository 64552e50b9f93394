"""Programs in processes of their own, forked from one that has imported what all of them import.

A fresh Python takes four seconds of a core until a model is loaded, nearly all of it imports of torch, its compilers
and bitsandbytes. What reads the environment when it is imported (`transformers`, `huggingface_hub`, the library itself)
is left to each program, so that it sees its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.tensor", "bitsandbytes", "pandas", "xarray"]
)


def run(
    code: str, environment: Mapping[str, str], *arguments: str, cwd: Path, timeout: float = 300
) -> CompletedProcess[str]:
    """Run a program as `python -c CODE ARGUMENT ...` would, and wait for its end."""
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/stdout", f"{folder}/stderr"]
        process = _SERVER.Process(target=_program, args=(code, dict(environment), arguments, str(cwd), files))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"the program did not end within {timeout} s")
        out, err = (Path(file).read_text(encoding="utf-8") for file in files)
    return CompletedProcess(["python", "-c", code, *arguments], process.exitcode, out, err)


def _program(code: str, environment: dict[str, str], arguments: tuple[str, ...], cwd: str, files: list[str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = ["-c", *arguments]
    for stream, file in zip((sys.stdout, sys.stderr), files, strict=True):
        stream.flush()
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream.fileno())
    try:
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        sys.exit(1)
