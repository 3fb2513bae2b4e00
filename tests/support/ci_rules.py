"""The pytest plugin with the rules of CI: ``--no-skips`` makes a skipped test a failure, and with
``--again`` a test with a foreign peer, and no other, gets a second try; a test with Spark only if
a known fault of Spark ended it. ``--failures=FILE`` writes which tests failed, for a run of these
without others beside them. Seeds that find no broken program any more are named at the end.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

LOSS = "loss"
_failures: dict[str, bool] = {}
"""Failed test -> whether it is marked ``loss``. It is the module, if what the test needs failed: a
fixture of a module is one failure, however many tests want it.
"""
STALE_SEED = "stale seed"
"""The name under which a test records the seed of a broken program that finds it no more."""

MAY_BE_SKIPPED = {
    # Delta and Iceberg come months after a version of Spark.
    "tests/compat/test_lake_formats.py::": "there is no ",
    # File systems that the kernel may lack: no test can install another kernel.
    **{
        f"tests/integration/broker/test_full_disk.py::{test}": "this kernel has no "
        for test in (
            "test_a_disk_that_is_really_full_ends_no_process[ext4]",
            "test_a_key_index_on_a_full_disk_that_copies_on_write_is_written_where_it_lies",
        )
    },
}
"""The start of a test's node id -> the start of the only reason for which ``--no-skips`` lets it be
skipped.
"""


SPARK_FAULTS = ["connect back", "CANNOT_OPEN_SOCKET", r"Illegal size \d+ of collection"]
"""What a test says if Spark did not wait for its own Python process (10 seconds, which no setting
changes), or if two flows of its declarative pipelines have filled one Java map at once: it has
counted nothing yet.
"""
SPARK_HANGS = ["spark-[a-z]+'.* timed out after"]
"""What a test says if a program of Spark did not end, which may be because it waits for a message
that is lost.
"""


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--again",
        action="store_true",
        help=(
            "tests marked compat, and tests that end by a fault of Spark, get a second try; each"
            " first failure is printed at the end"
        ),
    )
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="a skipped test is a failure (CI: the peers must be there)",
    )
    parser.addoption(
        "--failures",
        metavar="FILE",
        help=(
            "write the failed tests, or modules, a line each; nothing if one of them looks for lost"
            " messages: a loss that is seen once is a loss"
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT: a shell that starts pytest in the background ignores it, the children would
    inherit that, and tests stop them by SIGINT.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Java's clients and servers have races of their own, and one of them in 5,000 tests must not
    hide the state of the rest.

    Our own programs get no second try, nor do tests marked ``loss``: a loss that is seen once is a
    loss. One with Spark is tried again where Spark failed before anything was counted.

    Lanes find their modules by the text of a mark (``modules_naming`` of ``tests/lanes.py``).
    """
    marked = {
        (item.path, mark)
        for item in items
        for mark in ("compat", "slow", "spark")
        if item.get_closest_marker(mark) and item.path.parent.name != "compat"
    }
    for path, mark in marked:
        if f"mark.{mark}" not in path.read_text():
            raise pytest.UsageError(f"{path} does not name pytest.mark.{mark}: no lane finds it")
    if config.getoption("--again"):
        for item in items:
            loss = item.get_closest_marker(LOSS) is not None
            if item.get_closest_marker("compat") and not loss:
                item.add_marker(pytest.mark.flaky(reruns=1))
            elif item.get_closest_marker("spark"):
                faults = SPARK_FAULTS if loss else SPARK_FAULTS + SPARK_HANGS
                item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=faults))


def skip_reason(report: pytest.TestReport) -> str:
    """Return what a skipped test gave as its reason."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def may_be_skipped(nodeid: str, reason: str) -> bool:
    return any(
        nodeid.startswith(test) and reason.startswith(start)
        for test, start in MAY_BE_SKIPPED.items()
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    report.sections = [  # workers of pytest-xdist send reports as UTF-8
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    report.counts_messages = item.get_closest_marker(LOSS) is not None
    if (
        item.config.getoption("--no-skips")
        and report.skipped
        and not hasattr(report, "wasxfail")
        and not may_be_skipped(item.nodeid, skip_reason(report))
    ):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and --no-skips forbids it: {report.longrepr}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:  # a worker that died has made no report: nobody knows what it lost
        failed = report.nodeid.split("::")[0] if report.when == "setup" else report.nodeid
        counts_messages = getattr(report, "counts_messages", True)
        _failures[failed] = counts_messages or _failures.get(failed, False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name stale seeds: the search for another one costs time in each run, until it is noted."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    notes = {
        text: None
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == STALE_SEED
    }
    for text in notes:
        terminalreporter.write_line(f"{STALE_SEED}: {text}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--failures")
    if target and not is_worker(session.config):
        ids = [] if any(_failures.values()) else list(_failures)
        Path(target).write_text("".join(f"{test}\n" for test in ids))
