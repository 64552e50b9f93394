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


def started(sweep: Callable[[], Any]) -> int:
    """Run a sweep in a forked child."""
    if not (child := os.fork()):
        try:
            sweep()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def killed(sweep: Callable[[], Any], moment: float | None = None) -> bool:
    """Kill a sweep after so many seconds; whether it was still running."""
    child = started(sweep)
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

    @functools.wraps(measure)
    def noting(model: Any, given: Any, **settings: Any) -> Any:
        """The same measure to the store, which writes down the prompts that it is called with."""
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"{prompt_name(prompt)}\n" for prompt in prompt_inputs(given))
        return measure(model, given, **settings)

    def into(root: Path) -> Callable[[], Any]:
        return lambda: cl.sweep(noting, model, prompts, store=root, **CASES[measure])

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
            assert before.items() <= now.items(), "what was there is gone, or was written again"
            assert not {prompt for *_, prompt in before.values()} & set(measured), "what was there was measured again"
            for partial in root.rglob(f"*{paths.PARTIAL}"):
                partial.unlink()
            before = now
        assert now.keys() == wanted.keys()
        for name in wanted:
            (_, ours), (_, theirs) = files.open_file(root / name), files.open_file(undisturbed / name)
            assert ours.identical(theirs) and ours.dtypes == theirs.dtypes


@pytest.mark.thorough
def test_two_processes_share_a_store_without_damage(model, tmp_path):
    texts = [f"prompt {number}" for number in range(8)]
    scores = cl.measure_trajectories(model, texts).line_shape_score.values.tolist()

    @cl.measurement(version=1)
    def measure_slowly(model: cl.Model, prompts: Any) -> Any:
        time.sleep(0.02)
        return cl.measure_trajectories(model, prompts)

    def sweep() -> None:
        assert cl.sweep(measure_slowly, model, texts, store=tmp_path).line_shape_score.values.tolist() == scores

    children = [started(sweep), started(sweep)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert {prompt for *_, prompt in kept(tmp_path).values()} == set(texts)
    assert cl.sweep(measure_slowly, model, texts, store=tmp_path).line_shape_score.values.tolist() == scores
    assert not list(tmp_path.rglob(f"*{paths.PARTIAL}"))
