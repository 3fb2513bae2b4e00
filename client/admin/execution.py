"""Run a command of mqadmin: connect, call it, print text or JSON, return the exit code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import trio

from triomq.client.admin.access import given_access
from triomq.client.admin.admin import Admin
from triomq.client.admin.command import Result, request_seconds
from triomq.client.admin.command_line import Call
from triomq.client.admin.errors import CommandTimeout
from triomq.client.admin.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL
from triomq.client.admin.output import print_result
from triomq.remoting.printable import printable

GRACE_SECONDS = 5.0
"""time beyond ``--timeout``, when all requests have ended, to print their results: with thousands
of topics that takes a while
"""


def perform_alone(call: Call, stdout: TextIO, stderr: TextIO) -> int:
    """Do as ``perform`` does, in a new Trio loop."""
    # Ctrl-C can arrive between the creation of a task and its first step.
    warnings.filterwarnings(
        "ignore", message="coroutine .* was never awaited", category=RuntimeWarning
    )
    return trio.run(perform, call, stdout, stderr)


async def perform(call: Call, stdout: TextIO, stderr: TextIO) -> int:
    """Run a command and print its result; return the exit code."""
    command, values = call.command, call.values
    seconds, as_json = values.number("timeout"), values.flag("json")
    if command.local is not None:
        with at_most(seconds):
            result = await command.local(values)
        return report(result, stdout, stderr, as_json=as_json)
    assert command.run is not None
    interval = (
        values.maybe_number("interval")
        if any(option.name == "interval" for option in command.options)
        else None
    )
    tls, credentials = given_access(values)
    async with Admin(
        values.maybe_text("namesrvAddr"),
        timeout_seconds=request_seconds(seconds),
        tls=tls,
        credentials=credentials,
    ) as admin:
        while True:
            admin.limit_to(seconds)
            with at_most(seconds):
                result = await command.run(admin, values)
            code = report(result, stdout, stderr, as_json=as_json)
            if interval is None:
                return code
            await trio.sleep(interval)


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


def report(result: Result, stdout: TextIO, stderr: TextIO, *, as_json: bool) -> int:
    """Print a result and its warnings; return the exit code."""
    print_result(result, stdout, as_json=as_json)
    stdout.flush()
    for note in result.notes:
        print(f"mqadmin: warning: {printable(note)}", file=stderr)
    if not result.failures:
        return EXIT_FAILED if result.bad_news else EXIT_OK
    answered = max(result.asked - len(result.failures), 0)
    reasons = "; ".join(f"{server}: {reason}" for server, reason in result.failures.items())
    print(
        f"mqadmin: warning: {answered} of {result.asked} answered, the output is incomplete:"
        f" {printable(' '.join(reasons.split()))}",
        file=stderr,
    )
    return EXIT_PARTIAL if answered else EXIT_FAILED
