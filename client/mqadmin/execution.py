"""Run a command of mqadmin: connect, call it, print text, JSON or CSV, return the exit code."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import attrs
import trio

from triomq.client.admin.access import given_access
from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import UsageError, Values
from triomq.client.admin.contexts import with_context
from triomq.client.admin.errors import CommandTimeout, NotConfirmed
from triomq.client.admin.times import request_seconds
from triomq.client.core.errors import NoNameServer, TrioMQError
from triomq.client.core.servers import namesrv_addresses
from triomq.client.mqadmin.command_line import Call, complaint
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.command_list import title
from triomq.client.mqadmin.core.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL
from triomq.client.mqadmin.core.output import line_printer, print_result, show_progress_on
from triomq.client.mqadmin.core.places import CONTROLLERS, naming_missing
from triomq.client.mqadmin.core.result import Document, Result
from triomq.remoting.core.interrupt import interrupted
from triomq.remoting.core.printable import printable

Run = Callable[[Admin, Values], Awaitable[Result]]

GRACE_SECONDS = 5.0
"""time beyond ``--timeout``, when all requests have ended, to print their results: with thousands
of topics that takes a while
"""
QUESTION_LINES_MAX = 200
"""lines of a dry run in front of a question"""
CLEAR_SCREEN = "\x1b[H\x1b[2J"
"""the terminal's cursor to the corner, and the screen empty"""


def perform_alone(call: Call, stdout: TextIO, stderr: TextIO) -> int:
    """Do as ``perform`` does, in a new Trio loop.

    Ctrl-C is the normal end of ``--watch``, and of commands that follow something.
    """
    # Ctrl-C can arrive between the creation of a task and its first step.
    warnings.filterwarnings(
        "ignore", message="coroutine .* was never awaited", category=RuntimeWarning
    )
    if (screen := call.command.screen) is not None and wants_screen(call, stdout):
        return screen(with_context(call.values))
    try:
        return trio.run(perform, call, stdout, stderr)
    except BaseException as error:
        endless = _pause(call, "watch") is not None or call.command.follow is not None
        if interrupted(error) and endless:
            return EXIT_OK
        raise


def wants_screen(call: Call, stdout: TextIO) -> bool:
    """Return whether the command's screen is shown instead of one printed result."""
    printed = any(call.values.flag(name) for name in ("once", "json", "csv"))
    if printed or _pause(call, "watch") is not None:
        return False
    return stdout.isatty() and sys.stdin.isatty()


async def perform(call: Call, stdout: TextIO, stderr: TextIO) -> int:
    """Run a command and print its result; return the exit code."""
    command = call.command
    values = call.values if command.own_access else with_context(call.values)
    seconds = whole_seconds(call)
    if values.flag("json") and values.flag("csv"):
        raise UsageError("give only one of --json and --csv")
    show_progress_on(stderr)
    asks = must_ask(call, sys.stdin)
    if command.local is not None:
        local = command.local
        if asks:
            confirm(command, sys.stdin, stderr)
        return await _repeat(call, lambda: local(values), stdout, stderr)
    tls, credentials = given_access(values)
    access: Document = {
        "timeout_seconds": request_seconds(values.number("timeout")),
        "tls": tls,
        "credentials": credentials,
    }
    namesrv = name_servers(command, values)
    if command.follow is not None:
        async with Admin(namesrv, **access) as admin:
            return await command.follow(admin, values, line_printer(values, stdout, stderr))
    assert command.run is not None
    run = naming_all(command.run) if command.names_places else command.run
    if asks or dry_run(call):
        # Only for these: start-up time.
        from triomq.client.admin.holding_admin import HoldingAdmin
        from triomq.client.mqadmin.core.dry_run import DRY_RUN_SHAPE, tried  # likewise

        async with HoldingAdmin(namesrv, **access) as holding:
            holding.limit_to(seconds)
            with at_most(seconds):
                trial = await tried(holding, run, values)
        if not asks:
            return _report(call, trial, stdout, stderr, DRY_RUN_SHAPE)
        print_result(shortened(trial), stderr, as_json=False)
        for note in trial.notes:
            print(f"mqadmin: warning: {printable(note)}", file=stderr)
        confirm(command, sys.stdin, stderr)
    async with Admin(namesrv, **access) as admin:

        async def once() -> Result:
            admin.limit_to(seconds)
            return await run(admin, values)

        return await _repeat(call, once, stdout, stderr)


def naming_all(run: Run) -> Run:
    """Return a command whose result names the brokers that are missing, too."""

    async def whole(admin: Admin, values: Values) -> Result:
        return await naming_missing(admin, values, await run(admin, values))

    return whole


def name_servers(command: AdminCommand, values: Values) -> str | tuple[()] | None:
    """Return the option -n as it is; ``()`` for a command that names its controllers without it.

    Raises: NoNameServer, SettingsError.
    """
    given = values.maybe_text("namesrvAddr")
    try:
        namesrv_addresses(given)
    except NoNameServer:
        if CONTROLLERS in command.options:
            return ()
        raise
    return given


async def _repeat(
    call: Call, once: Callable[[], Awaitable[Result]], stdout: TextIO, stderr: TextIO
) -> int:
    """Run ``once`` and print its result; with --watch and --interval forever.

    With --watch, a failure after the first round is shown, and the next round tries again.
    """
    watch = _pause(call, "watch")
    pause = watch or (_pause(call, "interval") if call.command.screen is None else None)
    in_place = watch is not None and stdout.isatty() and not call.values.flag("json")
    round_count = 0
    while True:
        failure: TrioMQError | None = None
        result: Result | None = None
        try:
            with at_most(whole_seconds(call)):
                result = await once()
        except TrioMQError as error:
            if watch is None or round_count == 0:
                raise
            failure = error
        round_count += 1
        if in_place:
            words = shlex.join(["mqadmin", *call.words])
            clock = time.strftime("%Y-%m-%d %H:%M:%S")
            stdout.write(f"{CLEAR_SCREEN}{printable(words)}  {clock}, every {watch} s\n\n")
        code = EXIT_FAILED
        if result is not None:
            code = _report(call, result, stdout, stderr, call.command.document)
        elif failure is not None:
            print(complaint(failure), file=stderr, flush=True)
        if pause is None:
            return code
        stdout.flush()
        await trio.sleep(pause)


def _report(call: Call, result: Result, stdout: TextIO, stderr: TextIO, shape: str) -> int:
    """Print a result in the form that the options name; ``shape`` is that of its document."""
    as_json, as_csv = call.values.flag("json"), call.values.flag("csv")
    csv_shape = shape if as_csv else None
    return report(result, stdout, stderr, as_json=as_json, csv_shape=csv_shape)


def _pause(call: Call, name: str) -> int | None:
    """Return the seconds of --watch or --interval; None if not given, or not an option."""
    known = any(option.name == name for option in call.command.accepted)
    return call.values.maybe_number(name) if known else None


def shortened(trial: Result) -> Result:
    """Return a dry run with the last lines only, so that a terminal keeps them in view."""
    left_out = len(trial.blocks) - QUESTION_LINES_MAX
    if left_out <= 0:
        return trial
    note = f"({left_out} lines are left out; --dry-run prints all)"
    return attrs.evolve(trial, blocks=[note, *trial.blocks[left_out:]])


def whole_seconds(call: Call) -> int:
    """Return the time limit of the whole command."""
    return call.values.number("timeout") + call.command.beyond_seconds(call.values)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Cancel the block when it takes longer than ``--timeout`` and a grace period.

    Requests of ``Admin`` end before that, by ``limit_to``, and the command prints the answers.

    Raises: CommandTimeout.
    """
    with trio.move_on_after(seconds + GRACE_SECONDS) as scope:
        yield
    if scope.cancelled_caught:
        raise CommandTimeout(seconds)


def report(
    result: Result, stdout: TextIO, stderr: TextIO, *, as_json: bool, csv_shape: str | None = None
) -> int:
    """Print a result and its warnings; return the exit code."""
    print_result(result, stdout, as_json=as_json, csv_shape=csv_shape)
    stdout.flush()
    for note in result.notes:
        print(f"mqadmin: warning: {printable(note)}", file=stderr)
    if not result.failures:
        incomplete = EXIT_PARTIAL if result.partial else EXIT_OK
        return EXIT_FAILED if result.bad_news else incomplete
    answered = max(result.asked - len(result.failures), 0)
    reasons = "; ".join(f"{server}: {reason}" for server, reason in result.failures.items())
    print(
        f"mqadmin: warning: {answered} of {result.asked} answered, the output is incomplete:"
        f" {printable(' '.join(reasons.split()))}",
        file=stderr,
    )
    return EXIT_PARTIAL if answered else EXIT_FAILED


def must_ask(call: Call, stdin: TextIO) -> bool:
    """Return whether the command needs a yes from the terminal.

    Raises: UsageError if the command needs one and no terminal is there to ask.
    """
    if not call.command.consequence or call.values.flag("yes"):
        return False
    if call.command.asks_with and not call.values.flag(call.command.asks_with):
        return False
    if dry_run(call):
        return False
    if not stdin.isatty():
        if call.command.effect is Effect.MOVES:
            return False  # scripts of RocketMQ's users move groups
        raise UsageError(
            f"{title(call.command.name)} {call.command.consequence}, and there is no terminal to"
            " ask: give --yes"
            + ("" if call.command.local is not None else ", or --dry-run to see what it would do")
        )
    return True


def dry_run(call: Call) -> bool:
    """Return whether --dry-run is given."""
    known = any(option.name == "dry-run" for option in call.command.accepted)
    return known and call.values.flag("dry-run")


def confirm(command: AdminCommand, stdin: TextIO, stderr: TextIO) -> None:
    """Ask; blocks until the user answers.

    Raises: NotConfirmed for every answer but yes.
    """
    stderr.write(f"This {printable(command.consequence)}. Continue? [y/N] ")
    stderr.flush()
    if stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed
