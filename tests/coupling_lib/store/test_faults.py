"""A full disk, a folder that cannot be written, Ctrl-C, a clock that goes backwards: nothing finished is lost."""

import json
import os
import signal
import subprocess
import tempfile
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import forked
import pytest
import xarray as xr

import coupling_lib as cl
from companion.training import __main__ as training
from coupling_lib import paths, store
from coupling_lib.paths import ROOT
from coupling_lib.store import files

TEXTS = [f"It was the best of times, it was number {number}" for number in range(8)]


def mount(*words: str) -> bool:
    """Mount something; whether that is allowed here."""
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def unmount(place) -> None:
    subprocess.run(["umount", str(place)], capture_output=True, check=False)


def sound(root) -> set[str]:
    """The prompts of all measurements that are kept; each is read and checked, and nothing else lies beside them."""
    with warnings.catch_warnings(action="error"):
        found = [files.open_file(path)[1] for path in root.rglob(f"*{files.SUFFIX}")]
    assert not [path for path in root.rglob("*") if path.suffix in (paths.PARTIAL, files.DAMAGED)]
    return {str(ds.prompt.item()) for ds in found}


# The most that one file may hold stands in for the size of the disk where none can be mounted. What is forbidden to
# others binds the super-user only when he is one of them.
SWEEP = """
import json, os, resource, sys, tempfile, warnings
import coupling_lib as cl
folder, root, most, nobody, texts = sys.argv[1:]
model, texts = cl.load_model(folder), json.loads(texts)
with tempfile.TemporaryDirectory() as first:
    cl.sweep(cl.measure_trajectories, model, texts[:1], store=first)  # all that is needed is imported now
if int(most):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), resource.RLIM_INFINITY))
if int(nobody) and os.geteuid() == 0:
    os.seteuid(65534)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ds = cl.sweep(cl.measure_trajectories, model, texts, store=root)
print(json.dumps([ds.line_shape_score.values.tolist(), [str(warning.message) for warning in caught]]))
"""


def swept(folder, root, most: int = 0, nobody: bool = False) -> tuple[list[float], list[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = str(folder), str(root), str(most), str(int(nobody)), json.dumps(TEXTS)
    done = forked.run(SWEEP, environment, *arguments, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_full_disk_loses_no_measurement(folder, model, tmp_path):
    wanted = cl.measure_trajectories(model, TEXTS).line_shape_score.values.tolist()
    size = store.write(tmp_path / "size", {"model": "m", "measure": "x"}, cl.measure_trajectories(model, TEXTS[:1]))
    root, most = tmp_path / "disk", 0
    root.mkdir()
    # Room for a third of the measurements; without a disk of its own, for none.
    mounted = mount("-t", "tmpfs", "-o", f"size={3 * max(4096, 2 * size.stat().st_size)}", "none", str(root))
    try:
        if not mounted:
            most = size.stat().st_size // 2
        found, messages = swept(folder, root, most)
        assert found == wanted and len(messages) == 1
        reason = "No space left on device" if mounted else "File too large"
        assert messages[0].startswith(f"measurements are not kept in {root}: {reason}; measuring goes on")
        kept = sound(root)
        assert len(kept) < len(TEXTS) and bool(kept) == mounted
        if mounted:
            assert mount("-o", "remount,size=1m", str(root))
        assert swept(folder, root) == [wanted, []] and sound(root) == set(TEXTS)
    finally:
        if mounted:
            unmount(root)


def test_read_only_store_is_still_read(folder, model):
    wanted = cl.measure_trajectories(model, TEXTS).line_shape_score.values.tolist()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        cl.sweep(cl.measure_trajectories, model, TEXTS[:3], store=root)
        spoilt = store.listing(root=root).set_index("prompt").path[TEXTS[1]]
        os.truncate(spoilt, 100)
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        for path in [root, *before]:
            path.chmod(0o555)
        try:
            found, messages = swept(folder, root, nobody=True)
        finally:
            for path in [root, *before]:
                path.chmod(0o755)
        assert found == wanted and {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    assert "is damaged" in messages[0] and "could not be renamed (Permission denied)" in messages[0]
    message = f"measurements are not kept in {root}: Permission denied; measuring goes on, and a later"
    assert messages[1].startswith(message) and len(messages) == 2


def interrupt(*_: object, **__: object) -> None:
    # A shell that starts tests in the background lets them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_interrupted_training_exits_with_130(monkeypatch, capsys):
    monkeypatch.setattr(training.experiment, "run", interrupt)
    with pytest.raises(SystemExit) as ended:
        training.main(["suite"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on from the last checkpoint\n"


def test_interrupted_write_leaves_finished_measurements(model, tmp_path, monkeypatch):
    cl.sweep(cl.measure_trajectories, model, TEXTS[:2], store=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cl.sweep(cl.measure_trajectories, model, TEXTS, store=tmp_path)
    assert sound(tmp_path) == set(TEXTS[:2])
    cl.sweep(cl.measure_trajectories, model, TEXTS, store=tmp_path)
    assert sound(tmp_path) == set(TEXTS)


class Backwards(datetime):
    """A clock that is a day earlier each time it is read."""

    reads = 0

    @classmethod
    def now(cls, tz=None) -> datetime:
        cls.reads += 1
        return datetime(2026, 1, 1, tzinfo=UTC) - timedelta(days=cls.reads)


def test_clock_going_backwards_repeats_no_measurement(model, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "datetime", Backwards)
    seen = []

    def measure_noted(model, prompts) -> xr.Dataset:
        seen.append(prompts[0])
        return cl.measure_trajectories(model, prompts)

    for version in (1, 2):
        measure_noted.version = version
        for _ in range(2):
            cl.sweep(measure_noted, model, TEXTS[:3], store=tmp_path)
    assert seen == [*TEXTS[:3], *TEXTS[:3]]
    # Version 2 was made later, and says that it was made earlier.
    assert list(store.listing(root=tmp_path).version) == [2, 2, 2, 1, 1, 1]
