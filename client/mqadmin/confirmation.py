"""Ask before a command deletes something, sends messages again, or moves a group."""

from __future__ import annotations

from typing import TextIO

from triomq.client.admin.arguments import UsageError
from triomq.client.admin.errors import NotConfirmed
from triomq.client.mqadmin.command_line import Call
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.command_list import title
from triomq.remoting.core.printable import printable


def must_ask(call: Call, stdin: TextIO) -> bool:
    """Return whether the command needs a yes from the terminal.

    Raises: UsageError if it does and there is no terminal.
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
