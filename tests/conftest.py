"""What holds for every test: none reaches beyond this machine, and none leaves measurements among one's own results."""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from types import SimpleNamespace

import pytest

# Read when the library is imported, which is later: tests measure made-up models under names of real ones.
_RESULTS = tempfile.TemporaryDirectory(prefix="coupling-results-")
os.environ["COUPLING_RESULTS"] = _RESULTS.name

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
