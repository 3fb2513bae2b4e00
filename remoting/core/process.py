"""Run a server program: logging, signals, exit codes, fatal errors in one line.

A program passes its service to ``run_service``: ``async def service(*, task_status)``, which
reports a ``Ready`` when requests are answered and runs until it is stopped. SIGTERM or SIGINT calls
``Ready.stop`` (finish accepted requests, save, leave); a second one cancels the service at once.
SIGUSR1 writes to the log what each task waits for.
An error that the operator can fix ends the process with one line on standard error and its own exit
code; any other error is logged with its traceback and ends the process with code 1.
"""

from __future__ import annotations

import argparse
import enum
import errno
import itertools
import json
import logging
import logging.handlers
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

import attrs
import trio

from triomq.remoting.core import open_files
from triomq.remoting.core.garbage_pauses import GarbagePauses
from triomq.remoting.core.interrupt import interrupted
from triomq.remoting.core.printable import PrintableFormatter, printable, printable_lines
from triomq.remoting.core.properties_file import format_properties
from triomq.remoting.core.settings import ConfigError, Loaded, render
from triomq.remoting.core.task_dump import task_lines

_log = logging.getLogger(__name__)
C = TypeVar("C")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_FILE_BYTES = 64 * 1024 * 1024
LOG_FILES = 10
DUMP_TASKS_MAX = 10_000
"""lines of a task dump: about 0.3 s in which nothing else runs"""


class ExitCode(enum.IntEnum):
    """Why a process ended; docs/operations.md has the table."""

    OK = 0
    FAILED = 1
    CONFIGURATION = 2
    PORT_IN_USE = 3
    STORE_LOCKED = 4
    STORE_DAMAGED = 5


ExitCodes = Mapping[type[BaseException], ExitCode]


class Ready(Protocol):
    """What a service reports when it answers requests."""

    def stop(self) -> None:
        """Begin an orderly stop; may be called twice. Checkpoint: never."""

    def banner(self) -> str:
        """Return one line for standard output: what runs where."""


ServiceCall = Callable[..., Awaitable[None]]
"""A service: runs until it is stopped, and reports a Ready through its argument ``task_status``."""


def set_up_logging(
    program: str, directory: Path | None = None, level: str = "INFO", form: str = "text"
) -> None:
    """Send the log of this process to standard error or to ``DIRECTORY/PROGRAM.log``.

    ``form``: text, or json for one object in each line.

    Raises: ConfigError if that cannot be written.
    """
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise ConfigError(
            "option --log-level", f"unknown level {level}", "use DEBUG, INFO, WARNING or ERROR"
        )
    handler: logging.Handler = logging.StreamHandler()
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(
                directory / f"{program}.log",
                maxBytes=LOG_FILE_BYTES,
                backupCount=LOG_FILES,
                encoding="utf-8",
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                "option --log-dir",
                f"cannot write to {directory}: {reason}",
                "name a directory that this user may write",
            ) from None
    handler.setFormatter(JsonFormatter() if form == "json" else PrintableFormatter(LOG_FORMAT))
    logging.basicConfig(level=number, handlers=[handler], force=True)


def run_program(
    program: str,
    parsed: argparse.Namespace,
    load_config: Callable[[], Loaded[C]],
    run: Callable[[C], ServiceCall],
    *,
    exit_codes: ExitCodes,
) -> ExitCode:
    """Do what a command line asks for: print the configuration, or run the service with it.

    ``load_config`` may raise ConfigError. ``run`` returns the service for a configuration.
    """
    try:
        loaded = load_config()
        if parsed.print_config:
            print(format_properties(render(loaded.config)), end="")
            return ExitCode.OK
        set_up_logging(program, parsed.log_dir, parsed.log_level, parsed.log_format)
    except ConfigError as error:
        return report_fatal(program, error)
    for warning in loaded.warnings:
        _log.warning("%s", warning)
    return run_service(program, run(loaded.config), exit_codes=exit_codes)


def run_service(
    program: str, service: ServiceCall, *, exit_codes: ExitCodes | None = None
) -> ExitCode:
    """Run a service until it ends or a signal stops it; return the exit code of the process.

    *exit_codes*: the codes of the program's own errors; ConfigError and the errors of listening
    sockets are known.
    """
    open_files.raise_limit()
    pauses = GarbagePauses()
    pauses.begin()
    try:
        trio.run(_serve, program, service, pauses)
    except BaseException as error:  # the outermost frame: every error becomes an exit code
        if interrupted(error):  # Ctrl-C before the signal handlers: the service has not begun
            return ExitCode.OK
        return report_fatal(program, error, exit_codes)
    finally:
        pauses.end()
    return ExitCode.OK


def report_fatal(
    program: str, error: BaseException, exit_codes: ExitCodes | None = None
) -> ExitCode:
    """Print why the process ends, in one line on standard error; log unknown errors in full.

    Returns: the exit code of the process.
    """
    found = None
    for leaf in _leaves(error):
        code = exit_code_of(leaf, exit_codes or {})
        if code is None:
            _log.error("%s ends because of an unexpected error", program, exc_info=error)
            print(
                f"{program}: unexpected error {type(leaf).__name__}: {_one_line(leaf)}; the log has"
                " the details",
                file=sys.stderr,
            )
            return ExitCode.FAILED
        found = found or (code, leaf)
    assert found is not None
    if any(isinstance(handler, logging.FileHandler) for handler in logging.root.handlers):
        _log.error("%s", _one_line(found[1]))
    print(f"{program}: {_one_line(found[1])}", file=sys.stderr)
    return found[0]


def exit_code_of(error: BaseException, exit_codes: ExitCodes) -> ExitCode | None:
    """Return the exit code of an error that an operator can fix, None for any other error."""
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


@attrs.define(eq=False)
class _Stop:
    """Reacts to signals: the first stops a running service, every other signal cancels it."""

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


async def _serve(program: str, service: ServiceCall, pauses: GarbagePauses) -> None:
    async with trio.open_nursery() as nursery:
        stop = _Stop(nursery.cancel_scope)
        await nursery.start(_watch_signals, stop)

        async def run(*, task_status: trio.TaskStatus[Ready]) -> None:
            await service(task_status=task_status)
            nursery.cancel_scope.cancel()

        ready: Ready = await nursery.start(run)
        stop.ready = ready
        pauses.started()
        banner = ready.banner()
        _log.info("%s", banner)
        print(f"{program}: {banner}", flush=True)


async def _watch_signals(stop: _Stop, *, task_status: trio.TaskStatus[None]) -> None:
    dump = getattr(signal, "SIGUSR1", None)  # Windows has none
    numbers = (signal.SIGTERM, signal.SIGINT, *(() if dump is None else (dump,)))
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            if number == dump:
                _log_tasks()
            else:
                stop.signalled(signal.Signals(number).name)


def _log_tasks() -> None:
    """Log the task dump that an operator asked for, as warnings: most log levels show them."""
    _log.warning("SIGUSR1: each task, and what it waits for")
    lines = task_lines(trio.lowlevel.current_root_task() or trio.lowlevel.current_task())
    for line in itertools.islice(lines, DUMP_TASKS_MAX):
        _log.warning("task %s", line)
    if next(lines, None) is not None:
        _log.warning("more tasks than %d: the others are left out", DUMP_TASKS_MAX)


class JsonFormatter(logging.Formatter):
    """Writes time (UTC), level, logger, message, and fields and exception where there are any.

    Everything but ASCII is escaped, so no text of a peer reaches a terminal as it is.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if fields:
            entry["fields"] = dict(fields)
        if record.exc_info:
            entry["exception"] = printable_lines(self.formatException(record.exc_info))
        return json.dumps(entry, default=str).replace("\x7f", "\\u007f")
