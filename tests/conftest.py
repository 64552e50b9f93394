"""What holds for every test: none reaches beyond this machine, and none leaves measurements among one's own results."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Read when the library is imported, which is later: tests measure made-up models under names of real ones.
_RESULTS = tempfile.TemporaryDirectory(prefix="coupling-results-")
os.environ["COUPLING_RESULTS"] = _RESULTS.name
# References are computed on the processor; `tests/support/on_a_card.py` compares a card with them.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

_resolve = socket.getaddrinfo


def _loopback_only(host: str | bytes | None, *arguments: object, **named: object) -> list:
    name = host.decode() if isinstance(host, bytes) else host
    try:
        local = name in (None, "", "localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local:
        raise socket.gaierror(socket.EAI_NONAME, f"tests use no network; {name!r} was asked for")
    return _resolve(host, *arguments, **named)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of other machines do not resolve, as on a machine without a network."""
    monkeypatch.setattr(socket, "getaddrinfo", _loopback_only)


# One browser for all tests of a process, and one tab for most: what pages share is read and compiled once, which
# halves the time of a load.


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    import browser  # where no browser is asked for, nothing of it need be installed

    with browser.launched() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def window(chromium: Browser) -> Page:
    import browser

    return browser.watched(chromium)


@pytest.fixture
def tab(window: Page) -> Iterator[Page]:
    """A tab as if it were new; `wrong` is what goes wrong in it."""
    import browser

    browser.renewed(window)
    yield window


@pytest.fixture
def plain_tab(chromium: Browser) -> Iterator[Page]:
    """A tab in which no script runs."""
    import browser

    page = browser.new_tab(chromium, java_script_enabled=False)
    yield page
    page.close()


@pytest.fixture
def family_table(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Collect one line per model family, printed at the end of the run."""
    # A property of the test reaches the end of the run from whichever process the test ran in.
    return SimpleNamespace(append=lambda row: request.node.user_properties.append(("family", row)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    rows = [row for report in reports for name, row in report.user_properties if name == "family"]
    if rows:
        terminalreporter.section("Jacobians against brute force: largest relative error by family")
        terminalreporter.write_line(f"{'family':<22}{'route':<12}{'float64':>10}{'float32':>10}")
        for name, route, wide, narrow in sorted(rows):
            terminalreporter.write_line(f"{name:<22}{route:<12}{wide:>10.1e}{narrow:>10.1e}")
