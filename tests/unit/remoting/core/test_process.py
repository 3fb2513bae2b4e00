"""How a serving process ends: exit codes, one line, logs, and stopping in the middle of a start."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio

from triomq.broker.serve import EXIT_CODES
from triomq.broker.store.core.errors import StoreDamaged, StoreLocked
from triomq.remoting.core.process import ExitCode, Ready, report_fatal, run_service, set_up_logging
from triomq.remoting.core.settings import ConfigError
from triomq.remoting.server.listen import AddressInUse, ListenFailed


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@attrs.frozen
class _Service:
    """A service that runs until stopped; raises ``before`` or ``after`` it is ready."""

    events: list[str] = attrs.field(factory=list)
    before: BaseException | None = None
    after: BaseException | None = None
    begin: Callable[[], None] = lambda: None
    wait: bool = False

    async def __call__(self, *, task_status: trio.TaskStatus[Ready]) -> None:
        self.begin()
        if self.before is not None:
            raise self.before
        if self.wait:
            await trio.sleep_forever()
        with trio.CancelScope() as scope:
            task_status.started(_Ready(scope, self.events, signalled=self.after is None))
            if self.after is not None:
                raise self.after
            await trio.sleep_forever()
        self.events.append("saved")


@attrs.frozen
class _Ready:
    scope: trio.CancelScope
    events: list[str]
    signalled: bool

    def stop(self) -> None:
        self.events.append("stop")
        self.scope.cancel()

    def banner(self) -> str:
        if self.signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        return "running"


def test_a_signal_stops_the_service_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    service = _Service()
    assert run_service("mqtest", service) is ExitCode.OK
    assert service.events == ["stop", "saved"]
    assert capsys.readouterr().out == "mqtest: running\n"


def test_a_signal_during_the_start_leaves_at_once() -> None:
    service = _Service(begin=lambda: os.kill(os.getpid(), signal.SIGINT), wait=True)
    assert run_service("mqtest", service) is ExitCode.OK
    assert service.events == []


def test_a_task_dump_has_a_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def service(*, task_status: trio.TaskStatus[Ready]) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        await trio.testing.wait_all_tasks_blocked(0.01)  # the dump is written
        await _Service()(task_status=task_status)

    monkeypatch.setattr("triomq.remoting.core.process.DUMP_TASKS_MAX", 2)
    assert run_service("mqtest", service) is ExitCode.OK
    first, *tasks, left_out = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert first.startswith("SIGUSR1")
    assert [line.split()[0] for line in tasks] == ["task", "task"]
    assert left_out == "more tasks than 2: the others are left out"


def test_control_c_before_it_is_watched_for_is_an_orderly_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    receive = trio.open_signal_receiver

    def interrupted(*signals: int) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return receive(*signals)

    monkeypatch.setattr(trio, "open_signal_receiver", interrupted)
    service = _Service()
    assert run_service("mqtest", service) is ExitCode.OK
    assert (service.events, capsys.readouterr().err) == ([], "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("a.conf:1", "x=1: bad", "write x=2"), 2, "a.conf:1: x=1: bad; write x=2"),
        (
            AddressInUse("0.0.0.0:1"),
            3,
            (
                "cannot listen on 0.0.0.0:1: the port is in use; stop the process that holds it or"
                " configure another port"
            ),
        ),
        (
            ListenFailed("0.0.0.0:1", errno.EACCES, "permission denied", "use a higher port"),
            2,
            "cannot listen on 0.0.0.0:1: permission denied; use a higher port",
        ),
        (
            StoreLocked("/s", 7),
            4,
            (
                "/s: the store is locked by process 7; stop that broker first, or give this one"
                " another storePathRootDir"
            ),
        ),
        (StoreDamaged("/s", "bad", "mend it"), 5, "/s: bad; mend it"),
        (
            ExceptionGroup(
                "two", [ExceptionGroup("one", [StoreLocked("/s", None)]), ConfigError("", "p", "f")]
            ),
            4,
            "/s: the store is locked by another process",
        ),
    ],
)
def test_known_errors_are_one_line_and_a_code(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for service in (_Service(before=error), _Service(after=error)):
        assert run_service("mqtest", service, exit_codes=EXIT_CODES) == code
        errors = capsys.readouterr().err
        assert errors.startswith(f"mqtest: {line}")
        assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\nb"),
        ExceptionGroup("g", [StoreLocked("/s", 7), ValueError("a\nb")]),
        OSError(errno.EIO, "a b"),
    ],
)
def test_unknown_errors_are_logged_in_full_and_end_with_one(
    error: Exception, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert report_fatal("mqtest", error, EXIT_CODES) is ExitCode.FAILED
    line = capsys.readouterr().err
    assert line.startswith("mqtest: unexpected error ")
    assert "a b; the log has the details" in line
    assert line.count("\n") == 1
    assert caplog.records[0].exc_info is not None


def test_logs_go_to_a_file_of_the_program(tmp_path: Path) -> None:
    set_up_logging("mqtest", tmp_path / "logs", "warning")
    logging.getLogger("triomq.x").info("quiet")
    logging.getLogger("triomq.x").warning("loud %d", 1)
    assert report_fatal("mqtest", ConfigError("", "p", "f")) == 2
    lines = (tmp_path / "logs" / "mqtest.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "WARNING triomq.x: loud 1",
        "ERROR triomq.remoting.core.process: p; f",
    ]


def test_log_files_are_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triomq.remoting.core.process.LOG_FILE_BYTES", 500)
    set_up_logging("mqtest", tmp_path)
    for number in range(20):
        logging.getLogger("triomq.x").info("line %d of a log that is soon too long", number)
    assert {"mqtest.log", "mqtest.log.1", "mqtest.log.2"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert all(path.stat().st_size <= 500 for path in tmp_path.iterdir())
