"""The pytest plugin that records which clauses of docs/features.md the passed tests prove
(``--features=FILE``), and which tests needed a second try.

FILE has two tables, clause -> tests: "proven", at the first try, and "again", at the second. With
pytest-xdist the tests run in workers: each report carries the clauses of its test to the process
that writes the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ci_rules import is_worker
from feature_ledger import FIGURES, Ledger, LedgerError, load_ledger

_clauses: dict[str, list[str]] = {}
_passed: dict[str, list[str]] = {}
_failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--features",
        metavar="FILE",
        help="write which clauses of docs/features.md the passed tests prove",
    )
    parser.addoption(
        "--record",
        metavar="FILE",
        nargs="?",
        const=FIGURES,
        type=Path,
        help="a test that measures a clause writes its figure into tests/figures.json (or FILE)",
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--features")
    if target and not is_worker(config):
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
    report.clauses = _clauses.get(item.nodeid, [])
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or report.outcome == "rerun":
        _failed.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed[report.nodeid] = report.clauses


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
    if target and not is_worker(session.config):
        record: dict[str, dict[str, list[str]]] = {"proven": {}, "again": {}}
        for test, clauses in sorted(_passed.items()):
            for clause in clauses:
                kind = "again" if test in _failed else "proven"
                record[kind].setdefault(clause, []).append(test)
        Path(target).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
