"""The pytest plugin that records which clauses of docs/features.md the passed tests prove
(``--features=FILE``), and which tests needed a second try.

A clause counts only when its test passed at the first try.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from feature_ledger import Ledger, LedgerError, load_ledger

_clauses: dict[str, list[str]] = {}
_passed: set[str] = set()
_failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--features",
        metavar="FILE",
        help="write which clauses of docs/features.md the passed tests prove",
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--features")
    if target:
        Path(target).unlink(
            missing_ok=True
        )  # an interrupted run must not leave the record of the one before


def clauses_of(ledger: Ledger, item: pytest.Item) -> list[str]:
    """Return the names of the clauses that a test's marks name."""
    try:
        return sorted(
            {
                ledger.clause(argument)
                for mark in item.iter_markers("feature")
                for argument in mark.args
            }
        )
    except LedgerError as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from error


def pytest_collection_finish(session: pytest.Session) -> None:
    ledger = load_ledger()
    _clauses.update(
        {item.nodeid: clauses for item in session.items if (clauses := clauses_of(ledger, item))}
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed:
        _failed.add(item.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    again = terminalreporter.stats.get("rerun", ())
    for report in again:
        terminalreporter.section(f"first try: {report.nodeid}")
        terminalreporter.write_line(str(report.longrepr))
    if again:
        terminalreporter.section(f"second tries: {len(again)}")
        for report in again:
            terminalreporter.write_line(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--features")
    if target:
        proven: dict[str, list[str]] = {}
        for test in sorted(_passed - _failed):
            for clause in _clauses.get(test, ()):
                proven.setdefault(clause, []).append(test)
        Path(target).write_text(json.dumps(proven, indent=1, sort_keys=True) + "\n")
