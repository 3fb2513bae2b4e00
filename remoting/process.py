"""What the console scripts that serve have in common: logging, exit codes, one-line fatal errors, signals.

A program hands `run_service` its service, ``async def service(*, task_status)``, which reports a `Ready` when requests are
answered and runs until it is told to stop.  SIGTERM or SIGINT calls ``Ready.stop`` (finish what was accepted, save, leave);
a second signal cancels the service at once.  An error that the operator can mend ends the process with one line on
standard error and its own exit code; anything else is logged with its traceback and ends it with code 1.
"""

from __future__ import annotations

import enum
import errno
import logging
import logging.handlers
import signal
import sys
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import attrs
import trio

from triomq.remoting import open_files
from triomq.remoting.printable import PrintableFormatter, printable
from triomq.remoting.settings import ConfigError

_log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_FILE_BYTES = 64 * 1024 * 1024
LOG_FILES = 10


class ExitCode(enum.IntEnum):
    """Why a process ended; the table in docs/operations.md."""

    OK = 0
    FAILED = 1
    CONFIGURATION = 2
    PORT_IN_USE = 3
    STORE_LOCKED = 4
    STORE_DAMAGED = 5
    NO_NAME_SERVER = 6


ExitCodes = Mapping[type[BaseException], ExitCode]


class Ready(Protocol):
    """What a service reports when it answers requests."""

    def stop(self) -> None:
        """Begin an orderly stop. No checkpoint; calling it twice does no harm."""

    def banner(self) -> str:
        """One line for standard output: what runs where."""


_Ready_co = TypeVar("_Ready_co", bound=Ready, contravariant=True)


class ServiceCall(Protocol):
    """A service as `run_service` starts it."""

    def __call__(self, *, task_status: trio.TaskStatus[Ready]) -> Awaitable[None]:
        """Run until stopped; report a Ready through `task_status`."""


@attrs.frozen
class LogSettings:
    """Where log lines go: standard error, or rotating files of a directory."""

    directory: Path | None = None
    level: str = "INFO"


def set_up_logging(program: str, settings: LogSettings) -> None:
    """Send the log of this process to standard error or to ``DIRECTORY/PROGRAM.log``; ConfigError if that cannot be written."""
    level = logging.getLevelName(settings.level.upper())
    if not isinstance(level, int):
        raise ConfigError("option --log-level", f"unknown level {settings.level}", "use DEBUG, INFO, WARNING or ERROR")
    handler: logging.Handler = logging.StreamHandler()
    if settings.directory is not None:
        try:
            settings.directory.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(
                settings.directory / f"{program}.log", maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILES, encoding="utf-8"
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError("option --log-dir", f"cannot write to {settings.directory}: {reason}", "name a directory that this user may write") from None
    handler.setFormatter(PrintableFormatter(LOG_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)


def run_service(program: str, service: ServiceCall, *, exit_codes: ExitCodes | None = None) -> ExitCode:
    """Run a service until it ends or a signal stops it; return the exit code of the process.

    `exit_codes` tells the program's own errors with a code; ConfigError and the errors of listening sockets are known.
    """
    open_files.raise_limit()
    try:
        trio.run(_serve, program, service)
    except KeyboardInterrupt:
        return ExitCode.FAILED
    except BaseException as error:  # the outermost frame: every error becomes a line and an exit code
        return report_fatal(program, error, exit_codes)
    return ExitCode.OK


def report_fatal(program: str, error: BaseException, exit_codes: ExitCodes | None = None) -> ExitCode:
    """Say in one line on standard error why the process ends; return its exit code. Unknown errors are logged in full."""
    found = None
    for leaf in _leaves(error):
        code = exit_code_of(leaf, exit_codes or {})
        if code is None:
            _log.error("%s ends because of an unexpected error", program, exc_info=error)
            print(f"{program}: unexpected error {type(leaf).__name__}: {_one_line(leaf)}; the log has the details", file=sys.stderr)
            return ExitCode.FAILED
        found = found or (code, leaf)
    assert found is not None
    if _logs_to_files():
        _log.error("%s", _one_line(found[1]))
    print(f"{program}: {_one_line(found[1])}", file=sys.stderr)
    return found[0]


def exit_code_of(error: BaseException, exit_codes: ExitCodes) -> ExitCode | None:
    """The exit code of an error that an operator can mend, None for any other."""
    for known, code in exit_codes.items():
        if isinstance(error, known):
            return code
    if isinstance(error, ConfigError):
        return ExitCode.CONFIGURATION
    if isinstance(error, OSError):
        if error.errno == errno.EADDRINUSE:
            return ExitCode.PORT_IN_USE
        if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
            return ExitCode.CONFIGURATION
    return None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _one_line(error: BaseException) -> str:
    return printable(" ".join(str(error).split())) or type(error).__name__


def _logs_to_files() -> bool:
    return any(isinstance(handler, logging.FileHandler) for handler in logging.root.handlers)


@attrs.define(eq=False)
class _Stop:
    """What a signal does: nothing to stop yet -> cancel; running -> ask; asked already -> cancel."""

    scope: trio.CancelScope
    ready: Ready | None = None

    def signalled(self, name: str) -> None:
        if self.ready is None:
            _log.info("%s: leaving", name)
            self.scope.cancel()
        else:
            _log.info("%s: stopping; a second signal ends the process at once", name)
            ready, self.ready = self.ready, None
            ready.stop()


async def _serve(program: str, service: ServiceCall) -> None:
    async with trio.open_nursery() as nursery:
        stop = _Stop(nursery.cancel_scope)
        await nursery.start(_watch_signals, stop)

        async def run(*, task_status: trio.TaskStatus[Ready]) -> None:
            await service(task_status=task_status)
            nursery.cancel_scope.cancel()

        ready: Ready = await nursery.start(run)
        stop.ready = ready
        banner = ready.banner()
        _log.info("%s", banner)
        print(f"{program}: {banner}", flush=True)


async def _watch_signals(stop: _Stop, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            stop.signalled(signal.Signals(number).name)
