"""A full disk, a folder that cannot be written, Ctrl-C, a clock that goes backwards: nothing finished is lost."""

import os
import resource
import subprocess
import tempfile
import warnings
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from counted import Counted

import coupling_lib as cl
from companion.training import __main__ as training
from coupling_lib import paths, store
from coupling_lib.store import files

TEXTS = [f"It was the best of times{', or worse' * number}" for number in range(8)]


@pytest.fixture(scope="module")
def wanted(model):
    return cl.measure_trajectories(model, TEXTS).line_shape_score


def sound(root) -> set[str]:
    """The prompts of all measurements that are kept; each is read and checked, and nothing else lies beside them."""
    with warnings.catch_warnings(action="error"):
        found = [files.open_file(path)[1] for path in root.rglob(f"*{files.SUFFIX}")]
    assert not [path for path in root.rglob("*") if path.suffix in (paths.PARTIAL, files.DAMAGED)]
    return {str(ds.prompt.item()) for ds in found}


def test_full_disk_loses_no_measurement(model, wanted, tmp_path):
    whole, root = tmp_path / "whole", tmp_path / "disk"
    cl.sweep(cl.measure_trajectories, model, TEXTS, store=whole)
    # The most that one file may hold stands in for the size of the disk: longer prompts make larger files.
    sizes, unlimited = store.listing(root=whole).set_index("prompt").bytes, resource.getrlimit(resource.RLIMIT_FSIZE)
    most = int(sizes.median())
    with ExitStack() as limit, pytest.warns(store.StoreWarning) as caught:
        limit.callback(resource.setrlimit, resource.RLIMIT_FSIZE, unlimited)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, unlimited[1]))
        assert cl.sweep(cl.measure_trajectories, model, TEXTS, store=root).line_shape_score.equals(wanted)
    (message,) = (str(warning.message) for warning in caught)
    assert message.startswith(f"measurements are not kept in {root}: File too large; measuring goes on")
    assert sound(root) == set(sizes.index[sizes <= most])
    assert cl.sweep(cl.measure_trajectories, model, TEXTS, store=root).line_shape_score.equals(wanted)
    assert sound(root) == set(TEXTS)


@pytest.mark.thorough
def test_full_file_system_loses_no_measurement(model, wanted, tmp_path):
    small = store.write(tmp_path, {"model": "m", "measure": "x"}, cl.measure_trajectories(model, TEXTS[:1]))
    (root := tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4 * small.stat().st_size}", "none", root]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only the super-user mounts")
    with ExitStack() as mounted:
        mounted.callback(subprocess.run, ["umount", root], check=True)
        with pytest.warns(store.StoreWarning, match=f"are not kept in {root}: No space left on device; measuring goes"):
            assert cl.sweep(cl.measure_trajectories, model, TEXTS, store=root).line_shape_score.equals(wanted)
        assert 0 < len(sound(root)) < len(TEXTS)
        subprocess.run(["mount", "-o", "remount,size=1m", root], check=True)
        assert cl.sweep(cl.measure_trajectories, model, TEXTS, store=root).line_shape_score.equals(wanted)
        assert sound(root) == set(TEXTS)


def test_read_only_store_is_still_read(model, wanted):
    with tempfile.TemporaryDirectory() as name, ExitStack() as forbidden:
        root = Path(name)
        cl.sweep(cl.measure_trajectories, model, TEXTS[:3], store=root)
        os.truncate(store.listing(root=root).set_index("prompt").path[TEXTS[1]], 100)
        before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        for path in [root, *before]:
            forbidden.callback(path.chmod, 0o755)
            path.chmod(0o555)
        with ExitStack() as nobody, pytest.warns(store.StoreWarning) as caught:
            if os.geteuid() == 0:  # what is forbidden to others binds the super-user only when he is one of them
                nobody.callback(os.seteuid, 0)
                os.seteuid(65534)
            assert cl.sweep(cl.measure_trajectories, model, TEXTS, store=root).line_shape_score.equals(wanted)
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    damaged, message = (str(warning.message) for warning in caught)
    assert "is damaged" in damaged and "could not be renamed (Permission denied)" in damaged
    assert message.startswith(f"measurements are not kept in {root}: Permission denied; measuring goes on, and a later")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_interrupted_training_exits_with_130(monkeypatch, capsys):
    monkeypatch.setattr(training.experiment, "run", interrupt)
    with pytest.raises(SystemExit) as ended:
        training.main(["suite"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on from the last checkpoint\n"


def test_interrupted_write_leaves_finished_measurements(model, tmp_path, monkeypatch):
    cl.sweep(cl.measure_trajectories, model, TEXTS[:2], store=tmp_path)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "fsync", interrupt)
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
    counted = Counted()
    for version in (1, 1, 2, 2):
        counted.version = version
        cl.sweep(counted, model, TEXTS[:3], store=tmp_path)
    assert counted.seen == TEXTS[:3] * 2
    # Version 2 was made later, and says that it was made earlier.
    assert list(store.listing(root=tmp_path).version) == [2, 2, 2, 1, 1, 1]
