"""What mqadmin prints for words that name no command: the list of commands, and the version."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

from triomq import __version__
from triomq.client.admin.command_list import GROUPS, LIST


def general_answer(words: list[str]) -> str | None:
    """Return the text for words that name no command, None for other words."""
    named = words[1:] if words[:1] == ["help"] else words
    if not named or named[0] in ("-h", "--help"):
        return overview()
    return f"mqadmin (TrioMQ {__version__})" if words[0] == "--version" else None


def show(text: str, stream: TextIO) -> int:
    """Print a text and return exit code 0, also if the reader closed the pipe."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)
    return 0


def silence(stream: TextIO) -> None:
    """Suppress BrokenPipeError noise at interpreter exit (``mqadmin topicList | head -1``)."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def overview() -> str:
    """Return the list of commands."""
    lines = [
        "usage: mqadmin COMMAND [options]",
        "",
        "Commands (RocketMQ's names; kebab-case works too, as topic-list):",
    ]
    width = max(map(len, LIST))
    for group in GROUPS:
        lines.append("")
        lines += [
            f"  {name:{width}}  {listed.summary}"
            for name, listed in LIST.items()
            if listed.group == group
        ]
    end = (
        "`mqadmin COMMAND --help` describes a command. Name servers: -n, or the environment"
        " variable NAMESRV_ADDR."
    )
    return "\n".join([*lines, "", end])
