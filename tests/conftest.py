"""What every test shares: the feature ledger, and the rules of CI: no peer test may be skipped, and a slow or foreign one gets a second try."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ("compatibility_record",)

_proven: dict[int, set[str]] = {}
_failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--features", metavar="FILE", help="write which rows of docs/features.md the passed tests prove")
    parser.addoption("--again", action="store_true", help="tests marked compat or slow get a second try; the first failure is printed at the end")
    parser.addoption("--no-skips", action="store_true", help="a skipped test is a failure (CI: the peers must be there)")


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts us in the background has SIGINT ignored, and our children would inherit that: they are told to stop by it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Java's clients and servers have races of their own, and one of them in 5,000 tests must not hide the state of the rest."""
    if config.getoption("--again"):
        for item in items:
            if item.get_closest_marker("compat") or item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    # Nobody can install another kernel; such a skip stays visible, and stays a skip.
    if item.config.getoption("--no-skips") and report.skipped and not hasattr(report, "wasxfail") and "this kernel " not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and --no-skips forbids it: {report.longrepr}"
    if report.when == "setup":
        _failed.discard(item.nodeid)  # its second try begins
    if report.failed:
        _failed.add(item.nodeid)
    if report.when == "call" and report.passed:
        for marker in item.iter_markers("feature"):
            for row in marker.args:
                _proven.setdefault(row, set()).add(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first try: {report.nodeid}")
        terminalreporter.write_line(str(report.longrepr))


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--features")
    if target:
        rows = {row: sorted(tests - _failed) for row, tests in sorted(_proven.items()) if tests - _failed}
        Path(target).write_text(json.dumps(rows, indent=1) + "\n")
