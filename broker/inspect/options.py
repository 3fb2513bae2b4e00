"""The command line of ``mqstore``: its options, and its exit codes.

They are declared once for the parser and for docs/mqstore.md. This module imports nothing of the
store: ``--help`` and ``--version`` need none of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import attrs

from triomq.remoting.core.command_line import make_parser
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED

PROGRAM = "mqstore"
COUNT_DEFAULT = 128
SIZE_KEYS = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative; give 0 or more")
    return number


@attrs.frozen
class Option:
    """One option or argument, for argparse and for the manual."""

    names: tuple[str, ...]
    meaning: str
    settings: dict[str, Any]


DIRECTORY = Option(
    ("DIR",), "the folder of the store, `storePathRootDir` of the broker", {"type": Path}
)
COMMON = (
    Option(("--json",), "JSON instead of text", {"action": "store_true"}),
    Option(
        ("-c", "--config"),
        "the broker's configuration file: "
        + ", ".join((*SIZE_KEYS, "storePathCommitLog"))
        + " are read, other settings are ignored. "
        "Default: the sizes follow from the files of the store",
        {"type": Path, "metavar": "FILE"},
    ),
    Option(
        ("-D",),
        "one of these settings; wins over the file, may be repeated",
        {"dest": "define", "action": "append", "default": [], "metavar": "KEY=VALUE"},
    ),
)
DUMP = (
    Option(("--topic",), "the topic (required)", {"required": True, "metavar": "TOPIC"}),
    Option(
        ("--queue",),
        "only this queue (default: all, one after the other)",
        {"type": _count, "metavar": "N", "default": None},
    ),
    Option(
        ("--from",),
        "the first queue offset, in each queue (default 0)",
        {"dest": "start", "type": _count, "metavar": "OFFSET", "default": 0},
    ),
    Option(
        ("--count",),
        f"messages at most, 0 = all (default {COUNT_DEFAULT})",
        {"type": _count, "metavar": "N", "default": COUNT_DEFAULT},
    ),
    Option(
        ("--key",),
        "only messages with this key: a unique id or a word of KEYS",
        {"metavar": "K", "default": None},
    ),
    Option(
        ("--log",),
        "read the whole log, in its order, instead of the consume queues: for damaged queues, or"
        " queues that are behind the log after a kill",
        {"dest": "by_log", "action": "store_true"},
    ),
)
COMMANDS = {
    "verify": ("check every record, queue entry, index entry and table of a store", ()),
    "dump": ("print stored messages of a topic", DUMP),
}


EXIT_CLEAN, EXIT_DAMAGE, EXIT_USAGE = 0, 1, 2
EXIT_CODES = {
    EXIT_CLEAN: (
        "clean: no damage (notes may have been printed); `dump` printed all wanted messages"
    ),
    EXIT_DAMAGE: "`verify` found damage; `dump` could not read some messages",
    EXIT_USAGE: (
        "wrong usage: unknown option, a directory that is not a store or has no such topic, a"
        " folder without permission"
    ),
    EXIT_INTERRUPTED: "Ctrl-C: not everything has been read",
}


def store_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_parser(
        PROGRAM,
        "Inspect a store directory of TrioMQ or Apache RocketMQ while no broker runs; nothing in it"
        " is changed.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (summary, options) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            allow_abbrev=False,
        )
        for option in (DIRECTORY, *options, *COMMON):
            command.add_argument(*option.names, help=option.meaning, **option.settings)
    return parser
