"""What `make portable` runs: its table of settings, and that one which fails fails the whole, after all others ran."""

from __future__ import annotations

import re
import sys

import pytest

from coupling_lib.errors import CouplingError
from workflow import portable
from workflow.portable import Setting

PASSES = "import os\n\ndef test_it():\n    assert os.environ.get('TZ') == {zone!r}\n"


def test_its_settings_name_tests_that_exist_and_a_folder_that_is_odd():
    for setting in portable.SETTINGS:
        assert all((portable.ROOT / test).exists() for test in setting.tests) and setting.tests
    assert all((portable.ROOT / test).exists() for test in portable.OTHER_PYTHON)
    assert len(portable.ODD) == 120 and portable.ODD.startswith("- ") and "'" in portable.ODD and '"' in portable.ODD
    assert "make portable" in (portable.ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_a_setting_that_fails_fails_the_whole_with_all_results_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(portable, "ROOT", tmp_path)
    monkeypatch.setattr(portable, "pythons", lambda: iter(()))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    for zone in ("Asia/Tokyo", None):
        (tmp_path / f"test_{zone is None}.py").write_text(PASSES.format(zone=zone), encoding="utf-8")
    tokyo, none = ("test_False.py",), ("test_True.py",)
    settings = [
        Setting("of the user", none),
        Setting("given", tokyo, {"TZ": "Asia/Tokyo"}, odd=True, cores=1),
        Setting("empty", none, only=("PATH",)),
    ]
    monkeypatch.setattr(portable, "SETTINGS", settings)
    with pytest.raises(CouplingError, match=r"^1 of 3 settings failed in \d+ s: of the user$"):
        portable.portable([])
    said = capsys.readouterr().out
    results = re.findall(r"^(passed|FAILED) +\d+ s  ([a-z ]+?)(?:  .*)?$", said, re.M)
    assert sorted(results) == [("FAILED", "of the user"), ("passed", "empty"), ("passed", "given")]
    first = said.splitlines()[:4]
    assert [line.split()[0] for line in first] == ["processor", "vectors", "cores", "python"] and sys.executable in said
    assert re.fullmatch(r"2 settings passed in \d+ s", portable.portable(["given", "empty"]))
    with pytest.raises(CouplingError, match="no setting is called 'x'; there are: of the user; given; empty"):
        portable.portable(["x"])


def test_other_pythons_are_those_the_project_takes():
    found = dict(portable.pythons())
    assert set(found) <= {"3.11", "3.12", "3.13"} - {f"3.{sys.version_info.minor}"}
