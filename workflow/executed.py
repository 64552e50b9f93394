"""A pytest plugin under `coverage run`: which test executes which line, and the seconds of a core that each test takes.

    EXECUTED=seconds.json python -m coverage run --data-file=lines -m pytest -p workflow.executed tests

What a fixture executes for several tests counts for the whole file of the test that asked first.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path

import coverage
import pytest

_seconds = defaultdict(float)


def function_of(test: str) -> str:
    """Return the identifier of a test's function: all its cases together."""
    return test.split("[")[0]


def pytest_runtest_logstart(nodeid):
    """Count what follows for the test that begins."""
    coverage.Coverage.current().switch_context(function_of(nodeid))
    _seconds[function_of(nodeid)] -= time.process_time()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Count what a fixture of a wider scope executes for the whole file."""
    if fixturedef.scope == "function":
        return (yield)
    test = function_of(os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0])
    coverage.Coverage.current().switch_context(test.split("::")[0])
    try:
        return (yield)
    finally:
        coverage.Coverage.current().switch_context(test)


def pytest_runtest_logfinish(nodeid):
    """Add the seconds of a test's set-up, body and end."""
    _seconds[function_of(nodeid)] += time.process_time()


def pytest_sessionfinish():
    """Write the seconds of every test."""
    coverage.Coverage.current().switch_context("")
    Path(os.environ["EXECUTED"]).write_text(json.dumps(_seconds), encoding="utf-8")
