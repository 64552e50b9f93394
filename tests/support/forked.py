"""Programs in processes of their own, forked by `workflow/warm.py` from one that has imported what all of them import.

A fresh Python takes four seconds of a core until a model is loaded, nearly all of it imports of torch, its compilers
and bitsandbytes. What reads the environment when it is imported (`transformers`, `huggingface_hub`, the library itself)
is left to each program, so that it sees its own.
"""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

WARM = [sys.executable, str(Path(__file__).resolve().parents[2] / "workflow" / "warm.py")]
LARGE = "torch._dynamo torch._inductor.compile_fx torch.distributed.tensor bitsandbytes pandas xarray"


@functools.cache
def _server() -> tuple[subprocess.Popen[str], str]:
    """The process that forks, which ends when its input does, and so with this one; and its address."""
    command = [*WARM, "over", LARGE, "sh", "-c", 'echo "$WARM_PYTHON"; exec cat']
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def run(
    code: str, environment: Mapping[str, str], *arguments: str, cwd: Path, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c CODE ARGUMENT ...` would, and wait for its end."""
    path = os.pathsep.join(filter(None, [str(cwd), environment.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(code, encoding="utf-8")
        return subprocess.run(
            [*WARM, "run", str(program), *arguments],
            env=dict(environment) | {"PYTHONPATH": path, "WARM_PYTHON": _server()[1]},
            cwd=cwd,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
