"""The program `mqadmin`: argument list → command → text or JSON, and an exit code that scripts can trust.

One failure is one line on stderr that names cause and fix; `--verbose` adds the traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import trio

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, UsageError, Values, parse
from triomq.client.admin.command import COMMON_OPTIONS, GROUPS, Command, Result, request_seconds
from triomq.client.admin.commands import NAMES, all_commands, load
from triomq.client.admin.errors import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, exit_code
from triomq.client.admin.output import print_result
from triomq.client.errors import SettingsError, TrioMQError
from triomq.remoting.client.access import read_credentials
from triomq.remoting.printable import printable, printable_lines
from triomq.remoting.protocol.signing import Credentials
from triomq.remoting.settings import ConfigError
from triomq.remoting.tls.client import Tls

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mqadmin`; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Ctrl-C may come between the creation of a task and its first step.
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
    try:
        return trio.run(run, words, sys.stdout, sys.stderr)
    except BaseException as error:
        if interrupted(error):
            return EXIT_INTERRUPTED
        raise


def interrupted(error: BaseException) -> bool:
    """Return whether an error is, or contains, Ctrl-C: nurseries wrap it in a group, maybe with others."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt) is not None)


async def run(words: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Do what the words say, write the result to the two streams, return the exit code."""
    try:
        return await _run(list(words), stdout, stderr)
    except Exception as error:  # the outermost frame of a program: every failure becomes one line
        cause = leaf(error)
        if isinstance(cause, BrokenPipeError):
            _forget(stdout)
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
    """Return the one error inside nested exception groups; the first if there are several."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _forget(stream: TextIO) -> None:
    """Let Python not complain at exit about a reader that had enough (`mqadmin topicList | head -1`)."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


async def _run(words: list[str], stdout: TextIO, stderr: TextIO) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(overview(), file=stdout)
        return EXIT_OK
    if words[0] == "--version":
        from importlib.metadata import version  # costs as much as a command

        print(f"mqadmin (TrioMQ {version('triomq')})", file=stdout)
        return EXIT_OK
    if words[0].lower() == "tls" and len(words) > 1:
        words = [f"tls-{words[1]}", *words[2:]]  # `mqadmin tls init` reads better than `mqadmin tls-init`
    command = find_command(words[0])
    if any(word in ("-h", "--help") for word in words[1:]):
        print(command_help(command), file=stdout)
        return EXIT_OK
    values = parse([*command.options, *COMMON_OPTIONS], words[1:], command.one_of)
    interval = values.maybe_number("interval") if any(option.name == "interval" for option in command.options) else None
    if command.local is not None:
        return report(await command.local(values), stdout, stderr, as_json=values.flag("json"))
    assert command.run is not None
    tls, credentials = approach(values)
    seconds = values.number("timeout")
    async with Admin(
        values.maybe_text("namesrvAddr"), timeout_seconds=request_seconds(seconds), tls=tls, credentials=credentials
    ) as admin:
        while True:
            admin.limit_to(seconds)
            code = report(await command.run(admin, values), stdout, stderr, as_json=values.flag("json"))
            if interval is None:
                return code
            await trio.sleep(interval)


def approach(values: Values) -> tuple[Tls | None, Credentials | None]:
    """Return what --tls and --credentials say."""
    tls, credentials = values.maybe_text("tls"), values.maybe_text("credentials")
    try:
        return (
            Tls.from_file(tls) if tls is not None else None,
            read_credentials(Path(credentials)) if credentials is not None else None,
        )
    except ConfigError as error:
        raise SettingsError(str(error)) from None


def find_command(name: str) -> Command:
    """Return the command of that name or alias."""
    if name.startswith("-"):
        raise UsageError(
            f"{name} stands where the command belongs: `mqadmin COMMAND [options]`; `mqadmin help` lists the commands"
        )
    command = load(name)
    if command is None:
        raise UsageError(_unknown(name))
    return command


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.6)
    return f"there is no command {name!r}; " + (
        f"the nearest is {NAMES[near[0]][1]}" if near else "`mqadmin help` lists the commands"
    )


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
        f"mqadmin: warning: {answered} of {result.asked} answered, the output is incomplete: {printable(' '.join(reasons.split()))}",
        file=stderr,
    )
    return EXIT_PARTIAL if answered else EXIT_FAILED


# --- help ------------------------------------------------------------------------------------------------------------------------------


def overview() -> str:
    """Return the list of commands."""
    lines = [
        "usage: mqadmin COMMAND [options]",
        "",
        "Commands (RocketMQ's names; kebab-case works too, as topic-list):",
    ]
    commands = all_commands()
    width = max(len(command.name) for command in commands)
    for group in GROUPS:
        lines.append("")
        lines += [f"  {command.name:{width}}  {command.summary}" for command in commands if command.group == group]
    return "\n".join(
        [
            *lines,
            "",
            "`mqadmin COMMAND --help` describes one of them. Name servers: -n, or the environment variable NAMESRV_ADDR.",
        ]
    )


def option_title(option: Option) -> str:
    """Return an option as help shows it, `-t, --topic TOPIC`."""
    short = f"-{option.letter}, " if option.letter else "    "
    return f"{short}--{option.name}" + (f" {option.placeholder}" if option.kind is not None else "")


def option_meaning(option: Option) -> str:
    """Return what help says about an option."""
    required = " (required)" if option.required else ""
    shown = option.default is not None and (not isinstance(option.default, int) or option.default < 1 << 31)
    return f"{option.meaning}{required}" + (f" (default {option.default})" if shown else "")


def command_help(command: Command) -> str:
    """Return the description of one command."""
    rows = [(option_title(option), option_meaning(option)) for option in (*command.options, *COMMON_OPTIONS)]
    width = max(len(title) for title, _ in rows)
    lines = [
        f"usage: mqadmin {command.name} [options]        (also: {command.alias})",
        "",
        f"{command.summary[0].upper()}{command.summary[1:]}.",
        "",
    ]
    lines += [f"  {title:{width}}  {meaning}" for title, meaning in rows]
    for names in command.one_of:
        titles = [option.title for option in command.options if option.name in names]
        lines += ["", f"One of {' and '.join(titles)} is needed."]
    lines += ["", *command.remarks] if command.remarks else []
    lines += ["", "Examples:", *(f"  mqadmin {example}" for example in command.examples)]
    lines += ["", f"JSON: {command.document}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
