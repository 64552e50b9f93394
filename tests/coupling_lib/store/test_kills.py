"""Sweeps are killed at random moments, resumed, and compared with one that nobody disturbed: `make faults KILLS=25`.

Each run is a forked child, so that what is killed is measuring and writing and not loading. A kill (SIGKILL) comes at a
moment drawn evenly over the duration of the undisturbed run. Kills in the middle of a write leave a file with the
ending `.partial`, which nothing reads.
"""

import functools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coupling_lib as cl
from coupling_lib import paths
from coupling_lib.inputs.prompt_arguments import prompt_inputs, prompt_name
from coupling_lib.store import files

KILLS = int(os.environ.get("COUPLING_KILLS", 1))
CASES = {cl.measure_trajectories: {}, cl.measure_depth: {"ks": (5,)}}


def noted(measure: Callable[..., Any], log: Path) -> Callable[..., Any]:
    """A measure that writes down which prompts it is called with, and is the same to the store."""

    @functools.wraps(measure)
    def noting(model: Any, prompts: Any, **settings: Any) -> Any:
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"{prompt_name(prompt)}\n" for prompt in prompt_inputs(prompts))
        return measure(model, prompts, **settings)

    return noting


def killed(sweep: Callable[[], Any], moment: float | None = None) -> bool:
    """Run a sweep in a forked child, and kill it after so many seconds; whether it was still running."""
    if not (child := os.fork()):
        try:
            sweep()
            os._exit(0)
        finally:
            os._exit(1)
    if moment is not None:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def kept(root: Path) -> dict[str, tuple[int, str, str]]:
    """When each file of a store was changed and made, and its prompt; each is read, and none is damaged."""
    assert not list(root.rglob(f"*{files.DAMAGED}"))
    found = {path: files.open_file(path) for path in root.rglob(f"*{files.SUFFIX}")}
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, record["made"], str(ds["prompt"].item()))
        for path, (record, ds) in found.items()
    }


@pytest.mark.parametrize("measure", CASES, ids=lambda measure: measure.__name__)
def test_killed_sweep_loses_and_repeats_nothing(measure, tmp_path):
    model, draw, log = cl.load_model("nano-neox"), random.Random(0), tmp_path / "log"
    prompts = [prompt.text for prompt in cl.load_prompts(n=8)]

    def into(root: Path) -> Callable[[], Any]:
        return lambda: cl.sweep(noted(measure, log), model, prompts, store=root, **CASES[measure])

    undisturbed, start = tmp_path / "undisturbed", time.monotonic()
    assert not killed(into(undisturbed))
    duration, wanted, kills = time.monotonic() - start, kept(undisturbed), 0
    assert {prompt for *_, prompt in wanted.values()} == set(prompts)
    while kills < KILLS:
        root, before, again = Path(tempfile.mkdtemp(dir=tmp_path)), {}, True
        while again:
            log.unlink(missing_ok=True)
            again = killed(into(root), draw.uniform(0, duration) if kills < KILLS else None)
            kills += again
            now, measured = kept(root), log.read_text(encoding="utf-8").splitlines() if log.exists() else []
            assert {name: now.get(name) for name in before} == before, "what was there is gone, or was written again"
            assert not {prompt for *_, prompt in before.values()} & set(measured), "what was there was measured again"
            for partial in root.rglob(f"*{paths.PARTIAL}"):
                partial.unlink()
            before = now
        assert now.keys() == wanted.keys()
        for name in wanted:
            (_, ours), (_, theirs) = files.open_file(root / name), files.open_file(undisturbed / name)
            assert ours.identical(theirs) and ours.dtypes == theirs.dtypes
