"""The command line of mqadmin: understand words, and complain about failures.

This module imports neither Trio nor the protocol: start-up is most of a command's time.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import TextIO

import attrs

from triomq.client.admin.arguments import Option, Values, parse
from triomq.client.core.errors import NoNameServer, TrioMQError
from triomq.client.mqadmin.commands import load
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.command_list import NAMES, kebab, title
from triomq.client.mqadmin.core.exit_codes import EXIT_OK, exit_code
from triomq.client.mqadmin.core.inapplicable import CommandInapplicable, inapplicable
from triomq.client.mqadmin.core.names import named
from triomq.client.mqadmin.general_help import silence
from triomq.remoting.core.printable import printable, printable_lines


@attrs.frozen
class Call:
    """A command and its options, as they were typed."""

    command: AdminCommand
    values: Values
    words: Sequence[str] = ()
    """as typed, for the heading of --watch"""


def understand(words: Sequence[str]) -> Call | str:
    """Return the command and its options, or the text of its help."""
    if words[0] == "help":
        words = [*words[1:], "--help"]
    if words[0].lower() not in NAMES and (absent := inapplicable(words[0])) is not None:
        if "--help" in words or "-h" in words:
            return str(CommandInapplicable(absent))
        raise CommandInapplicable(absent)
    found = named(words)
    command, rest = load(found.name), found.rest
    if any(word in ("-h", "--help") for word in rest):
        return command_help(command)
    return Call(command, parse(command.accepted, rest, command.exclusive, command.subject), words)


def complain(error: Exception, words: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Write a failure as one line, with --verbose after its traceback; return the exit code."""
    cause = leaf(error)
    if isinstance(cause, BrokenPipeError):
        silence(stdout)
        return EXIT_OK
    if "--verbose" in words:
        stderr.write(printable_lines("".join(traceback.format_exception(error))))
    print(complaint(cause), file=stderr)
    return exit_code(cause)


NO_NAME_SERVER = (
    "no name server is configured: give -n 'host:9876;host2:9876', choose a context (`mqadmin"
    " context use`), or set the environment variable NAMESRV_ADDR"
)


def complaint(error: BaseException) -> str:
    """Return the line that names a failure."""
    text = str(error)
    if isinstance(error, NoNameServer) and not error.reasons:
        text = NO_NAME_SERVER
    elif not isinstance(error, TrioMQError):
        text = f"unexpected {type(error).__name__}: {text}; run with --verbose and report it"
    return f"mqadmin: {printable(' '.join(text.split()))}"


def leaf(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def option_meaning(option: Option) -> str:
    """Return the description of an option for help."""
    required = " (required)" if option.required else ""
    shown = option.default is not None and (
        not isinstance(option.default, int) or option.default < 1 << 31
    )
    return f"{option.meaning}{required}" + (f" (default {option.default})" if shown else "")


def command_help(command: AdminCommand) -> str:
    """Return the description of one command."""
    rows = [
        (
            option.spelling if option.letter or option.is_argument else f"    {option.spelling}",
            option_meaning(option),
        )
        for option in command.accepted
    ]
    width = max(len(spelling) for spelling, _ in rows)
    arguments = "".join(
        f"{option.title} " if option.required else f"[{option.title}] "
        for option in command.options
        if option.is_argument
    )
    if command.subject is not None:
        arguments = f"[{command.subject.placeholder}] "
    spellings = (command.name, kebab(command.name))
    others = [name for name in dict.fromkeys(spellings) if name != title(command.name)]
    also = f"        (also: {', '.join(others)})" if others else ""
    lines = [
        f"usage: mqadmin {title(command.name)} {arguments}[options]{also}",
        "",
        command.sentence,
        "",
    ]
    lines += [f"  {spelling:{width}}  {meaning}" for spelling, meaning in rows]
    for names in command.exclusive:
        titles = [option.title for option in command.options if option.name in names]
        lines += ["", f"One of {' and '.join(titles)} is needed."]
    if command.subject is not None:
        lines += ["", subject_line(command.subject)]
    lines += ["", command.remarks] if command.remarks else []
    lines += ["", "Examples:", *(f"  mqadmin {example}" for example in examples(command))]
    lines += ["", f"JSON: {command.document}"]
    return "\n".join(lines)


def subject_line(option: Option) -> str:
    """Return the sentence about a value that needs no option."""
    return f"{option.placeholder} may also stand without {option.title}."


def examples(command: AdminCommand) -> list[str]:
    """Return the examples with the grouped name of the command."""
    return [
        f"{title(command.name)}{example.removeprefix(command.name)}"
        if example.startswith(command.name)
        else example
        for example in command.examples
    ]
