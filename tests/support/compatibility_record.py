"""The pytest plugin behind docs/compatibility.md: which cells the run's tests stand for, and how
each of these tests ended.

``@pytest.mark.compatible("tag filter", …, peer="java-client-{java_version}", only={"namesrv":
"ours"})``: rows, the column, and, for a parametrised test, the cases that count; ``{name}`` is the
value of a parameter. Names are those of ``compatibility_rows``. A cell counts only when its test
passed (neither skipped nor expected to fail), and such a test fails when no program of that peer
ran.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import foreign_peers
import pytest
from compatibility_rows import NOT_POSSIBLE, ROWS

PASSED, COLLECTED = "passed", "collected"

_cells: dict[str, list[list[str]]] = {}
_outcomes: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compatibility",
        metavar="FILE",
        help=(
            "write which cells of docs/compatibility.md the run's tests stand for, and how they"
            " ended"
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "compatible(row, ..., peer, only={}): cells of docs/compatibility.md that the test fills;"
        " see tests/support/compatibility_record.py",
    )


def cells_of(item: pytest.Item) -> list[list[str]]:
    """The [row, column] pairs that a test's marks name. Errors: ``UsageError`` for names that the
    page does not have.
    """
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    cells = []
    for mark in item.iter_markers("compatible"):
        only = mark.kwargs.get("only", {})
        if (
            set(mark.kwargs) - {"peer", "only"}
            or not mark.args
            or "peer" not in mark.kwargs
            or set(only) - set(parameters)
        ):
            raise pytest.UsageError(
                f"{item.nodeid}: compatible(row, ..., peer=…, only={{parameter: value}}), not"
                f" {mark}"
            )
        if any(parameters[name] != value for name, value in only.items()):
            continue
        peer = mark.kwargs["peer"].format(**parameters)
        for row in (text.format(**parameters) for text in mark.args):
            if row not in ROWS or peer not in ROWS[row].columns:
                raise pytest.UsageError(
                    f"{item.nodeid} is marked for a cell that docs/compatibility.md does not have:"
                    f" {row!r}, {peer!r}"
                )
            if (row, peer) in NOT_POSSIBLE:
                raise pytest.UsageError(
                    f"{item.nodeid} fills a cell that compatibility_rows calls impossible: {row!r},"
                    f" {peer!r}"
                )
            cells.append([row, peer])
    return sorted(cells)


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        if cells := cells_of(item):
            _cells[item.nodeid] = cells
            _outcomes[item.nodeid] = COLLECTED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if item.nodeid not in _cells:
        return report
    if report.when == "setup":
        _outcomes[item.nodeid] = COLLECTED
    if report.failed:
        _outcomes[item.nodeid] = "failed"
    elif hasattr(report, "wasxfail"):
        _outcomes[item.nodeid] = "expected to fail"
    elif report.skipped:
        _outcomes[item.nodeid] = "skipped"
    elif report.when == "call" and _outcomes[item.nodeid] == COLLECTED:
        _outcomes[item.nodeid] = PASSED
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    result = yield
    missing = {peer for _, peer in _cells.get(item.nodeid, ())} - foreign_peers.seen()
    if missing:
        pytest.fail(
            f"it is marked compatible with {', '.join(sorted(missing))}, and no such program ran",
            pytrace=False,
        )
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item):
    foreign_peers.begin()
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--compatibility")
    if target:
        tests = {
            test: {"outcome": _outcomes[test], "cells": cells}
            for test, cells in sorted(_cells.items())
        }
        Path(target).write_text(json.dumps(tests, indent=1) + "\n")
