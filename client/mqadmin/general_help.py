"""What mqadmin prints for words that name no command: the list of commands, and the version."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

from triomq import __version__
from triomq.client.mqadmin.core.command_list import GROUPS, LIST, VERBS, overview_of, title


def general_answer(words: list[str]) -> str | None:
    """Return the text for words that name no command, None for other words."""
    named = words[1:] if words[:1] == ["help"] else words
    if not named or named[0] in ("-h", "--help"):
        return overview()
    group = named[0].lower()
    if group in VERBS and (len(named) == 1 or named[1] in ("-h", "--help")):
        return overview_of(group)
    return f"mqadmin (TrioMQ {__version__})" if words[0] == "--version" else None


def show(text: str, stream: TextIO) -> int:
    """Print a text and return exit code 0, also if the reader closed the pipe."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)
    return 0


def silence(stream: TextIO) -> None:
    """Suppress BrokenPipeError noise at interpreter exit (``mqadmin topic list | head -1``)."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def overview() -> str:
    """Return the list of commands."""
    lines = [
        "usage: mqadmin GROUP COMMAND [options]",
        "",
        "Commands, with RocketMQ's names, which work too, in kebab-case as well (topic-list):",
    ]
    width = max(len(title(name)) for name in LIST)
    for group in GROUPS:
        lines.append("")
        lines += [
            f"  {title(name):{width}}  {listed.summary}"
            + (f" ({name})" if title(name) != name else "")
            for name, listed in LIST.items()
            if listed.group == group
        ]
    end = (
        "`mqadmin GROUP` lists a group, `mqadmin GROUP COMMAND --help` describes a command. Name"
        " servers: -n, a context, or the environment variable NAMESRV_ADDR."
    )
    return "\n".join([*lines, "", end])
