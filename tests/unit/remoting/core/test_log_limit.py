"""One entry of a kind in a period; the others are counted."""

from __future__ import annotations

import logging

import pytest

from triomq.remoting.core.log_limit import LogLimit

_log = logging.getLogger("triomq.test_log_limit")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_suppressed_entries_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    limit = LogLimit(10.0, clock)
    for number in range(1000):
        limit.log(_log, logging.WARNING, "closing %s: %s", number, "bad")
    limit.log(_log, logging.WARNING, "another kind, 100%%")
    clock.now += 9.9
    limit.log(_log, logging.WARNING, "closing %s: %s", 1000, "bad")
    clock.now += 0.2
    limit.log(_log, logging.WARNING, "closing %s: %s", 1001, "bad")
    clock.now += 10
    limit.log(_log, logging.WARNING, "closing %s: %s", 1002, "bad")
    assert [record.getMessage() for record in caplog.records] == [
        "closing 0: bad",
        "another kind, 100%%",
        "closing 1001: bad (and 1000 more like this)",
        "closing 1002: bad",
    ]


def test_what_is_not_logged_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, _log.name)
    limit = LogLimit()
    limit.log(_log, logging.DEBUG, "quiet")
    caplog.set_level(logging.DEBUG, _log.name)
    limit.log(_log, logging.DEBUG, "quiet")
    assert [record.getMessage() for record in caplog.records] == ["quiet"]


def test_an_error_comes_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    LogLimit().log(_log, logging.ERROR, "it failed", error=ValueError("why"))
    assert "ValueError: why" in caplog.text
