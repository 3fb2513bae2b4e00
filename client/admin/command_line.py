"""The command line of mqadmin: understand words, and complain about failures.

This module imports neither Trio nor the protocol: start-up is most of a command's time.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Sequence
from typing import TextIO

import attrs

from triomq.client.admin.arguments import Option, UsageError, Values, parse
from triomq.client.admin.command import COMMON_OPTIONS, AdminCommand
from triomq.client.admin.command_list import NAMES, kebab
from triomq.client.admin.commands import load
from triomq.client.admin.exit_codes import EXIT_OK, exit_code
from triomq.client.admin.general_help import silence
from triomq.client.errors import TrioMQError
from triomq.remoting.printable import printable, printable_lines


@attrs.frozen
class Call:
    """A command and its options, as they were typed."""

    command: AdminCommand
    values: Values


def understand(words: Sequence[str]) -> Call | str:
    """Return the command and its options, or the text of its help."""
    name, rest = words[0], list(words[1:])
    if name == "help":
        name, rest = rest[0], ["--help"]
    if name.lower() == "tls" and rest:
        name, rest = f"tls-{rest[0]}", rest[1:]  # `mqadmin tls init` is `mqadmin tlsInit`
    command = find_command(name)
    if any(word in ("-h", "--help") for word in rest):
        return command_help(command)
    return Call(command, parse([*command.options, *COMMON_OPTIONS], rest, command.one_of))


def complain(error: Exception, words: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Write a failure as one line, with --verbose after its traceback; return the exit code."""
    cause = leaf(error)
    if isinstance(cause, BrokenPipeError):
        silence(stdout)
        return EXIT_OK
    if "--verbose" in words:
        stderr.write(printable_lines("".join(traceback.format_exception(error))))
    text = (
        str(cause)
        if isinstance(cause, TrioMQError)
        else f"unexpected {type(cause).__name__}: {cause}; run with --verbose and report it"
    )
    print(f"mqadmin: {printable(' '.join(text.split()))}", file=stderr)
    return exit_code(cause)


def leaf(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def find_command(name: str) -> AdminCommand:
    """Return the command of that name or alias."""
    if name.startswith("-"):
        raise UsageError(
            f"{name} is not a command: `mqadmin COMMAND [options]`; `mqadmin help`"
            " lists the commands"
        )
    if (known := NAMES.get(name.lower())) is not None:
        return load(known)
    near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.6)
    hint = f"the nearest is {NAMES[near[0]]}" if near else "`mqadmin help` lists the commands"
    raise UsageError(f"there is no command {name!r}; {hint}")


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
        (option.spelling if option.letter else f"    {option.spelling}", option_meaning(option))
        for option in (*command.options, *COMMON_OPTIONS)
    ]
    width = max(len(title) for title, _ in rows)
    lines = [
        f"usage: mqadmin {command.name} [options]        (also: {kebab(command.name)})",
        "",
        command.sentence,
        "",
    ]
    lines += [f"  {title:{width}}  {meaning}" for title, meaning in rows]
    for names in command.one_of:
        titles = [option.title for option in command.options if option.name in names]
        lines += ["", f"One of {' and '.join(titles)} is needed."]
    lines += ["", command.remarks] if command.remarks else []
    lines += ["", "Examples:", *(f"  mqadmin {example}" for example in command.examples)]
    lines += ["", f"JSON: {command.document}"]
    return "\n".join(lines)
