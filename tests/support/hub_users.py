"""Users of a hub: processes of their own, each with an environment that knows one hub and no token."""

import os
import socket
from pathlib import Path
from subprocess import CompletedProcess

import forked
import tiny

ROOT = Path(__file__).resolve().parents[2]
# Held, so that no other server is given its port; it does not listen.
_CLOSED = socket.socket()
_CLOSED.bind(("127.0.0.1", 0))


def user(home: Path, endpoint: str, **settings: str) -> dict[str, str]:
    """Environment of a user whose only hub is the given one and who has no token."""
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return kept | own | settings


def run(code: str, environment: dict[str, str], *arguments: str) -> CompletedProcess[str]:
    """Run a program as this user."""
    return forked.run(code, environment, *arguments, cwd=ROOT)


def closed_port() -> str:
    """An address at which nothing answers."""
    return f"http://127.0.0.1:{_CLOSED.getsockname()[1]}"


def sums(seed: int) -> dict[str, float]:
    """What every weight of the tiny model of this seed adds up to."""
    return {name: p.double().sum().item() for name, p in tiny.llama(seed).named_parameters()}


def last_line(done: CompletedProcess[str]) -> str:
    """The last line a user sees of a process that failed."""
    assert done.returncode == 1, done.stderr
    line = done.stderr.rstrip().splitlines()[-1]
    return line.removeprefix("coupling_lib.errors.ModelUnavailableError: ")
