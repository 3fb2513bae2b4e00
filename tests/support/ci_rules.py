"""The pytest plugin with the rules of CI: `--no-skips` makes a skipped test a failure, and with `--again` a test with a foreign peer, and no other, gets a second try."""

from __future__ import annotations

import signal

import pytest

MAY_BE_SKIPPED = {
    # Nobody can install another kernel: the file systems that a loop device may lack.
    f"tests/integration/test_full_disk.py::{test}": "this kernel has no "
    for test in ("test_a_disk_that_is_really_full_kills_nobody[ext4]", "test_a_key_index_on_a_full_disk_that_copies_on_write_is_written_where_it_lies")
}
"""The start of a test's node id -> the start of the only reason for which `--no-skips` lets it be skipped."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--again", action="store_true", help="tests marked compat get a second try; each first failure is printed at the end")
    parser.addoption("--no-skips", action="store_true", help="a skipped test is a failure (CI: the peers must be there)")


def pytest_configure(config: pytest.Config) -> None:
    """A shell that starts us in the background has SIGINT ignored, and our children would inherit that: they are told to stop by it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Java's clients and servers have races of their own, and one of them in 5,000 tests must not hide the state of the rest.

    Our own programs get no second try, nor do tests marked `loss`: a loss that is seen once is a loss.
    """
    if config.getoption("--again"):
        for item in items:
            if item.get_closest_marker("compat") and not item.get_closest_marker("loss"):
                item.add_marker(pytest.mark.flaky(reruns=1))


def skip_reason(report: pytest.TestReport) -> str:
    """Return what a skipped test gave as its reason."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def may_be_skipped(nodeid: str, reason: str) -> bool:
    return any(nodeid.startswith(test) and reason.startswith(start) for test, start in MAY_BE_SKIPPED.items())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if item.config.getoption("--no-skips") and report.skipped and not hasattr(report, "wasxfail") and not may_be_skipped(item.nodeid, skip_reason(report)):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and --no-skips forbids it: {report.longrepr}"
    return report
