"""The command line of ``mqstore``: its options, declared once for the parser and for docs/mqstore.md."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from triomq.broker.inspect.dump import Wanted
from triomq.broker.inspect.layout import Sizes
from triomq.broker.store.config import QUEUE_ENTRY_BYTES
from triomq.remoting.command_line import defined_entries, file_source
from triomq.remoting.properties import Entry
from triomq.remoting.settings import ConfigError

PROGRAM = "mqstore"
COUNT_DEFAULT = 128
SIZE_KEYS = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative; give 0 or more")
    return number


@attrs.frozen
class Option:
    """One option or argument: what argparse needs, which is what the manual shows."""

    names: tuple[str, ...]
    meaning: str
    settings: dict[str, Any]

    @property
    def title(self) -> str:
        metavar = self.settings.get("metavar")
        return ", ".join(self.names) + (f" {metavar}" if metavar and self.names[0].startswith("-") else "")


DIRECTORY = Option(("DIR",), "the folder of the store, `storePathRootDir` of the broker", {"type": Path})
COMMON = (
    Option(("--json",), "JSON instead of text", {"action": "store_true"}),
    Option(
        ("-c", "--config"),
        "the broker's configuration file: " + ", ".join((*SIZE_KEYS, "storePathCommitLog")) + " are taken from it, all else is ignored. "
        "Without it sizes are taken from the files themselves",
        {"type": Path, "metavar": "FILE"},
    ),
    Option(("-D",), "one of these settings, wins over the file; may be repeated", {"dest": "define", "action": "append", "default": [], "metavar": "KEY=VALUE"}),
)
DUMP = (
    Option(("--topic",), "the topic (required)", {"required": True, "metavar": "TOPIC"}),
    Option(("--queue",), "only this queue (default: all, one after the other)", {"type": _count, "metavar": "N", "default": None}),
    Option(("--from",), "the first queue offset, in each queue (default 0)", {"dest": "start", "type": _count, "metavar": "OFFSET", "default": 0}),
    Option(
        ("--count",), f"messages at most, 0 = all (default {COUNT_DEFAULT})", {"type": _count, "metavar": "N", "default": COUNT_DEFAULT}
    ),
    Option(("--key",), "only messages with this key: a unique id or a word of KEYS", {"metavar": "K", "default": None}),
    Option(
        ("--log",),
        "read the whole log, in its order, instead of the consume queues: for queues that are damaged or, after a kill, behind",
        {"dest": "by_log", "action": "store_true"},
    ),
)
COMMANDS = {
    "verify": ("check every record, queue entry, index entry and table of a store", ()),
    "dump": ("print stored messages of a topic", DUMP),
}


@attrs.frozen(kw_only=True)
class StoreToolOptions:
    """What one command line asks for."""

    command: str
    directory: Path
    as_json: bool
    sizes: Sizes
    wanted: Wanted | None
    count: int


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Look at a store directory of TrioMQ or Apache RocketMQ while no broker runs; nothing in it is changed.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (summary, options) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False)
        for option in (DIRECTORY, *options, *COMMON):
            command.add_argument(*option.names, help=option.meaning, **option.settings)
    return parser


def parse_options(arguments: Sequence[str]) -> StoreToolOptions:
    """Raise ConfigError, or SystemExit(2) for an unknown option."""
    parsed = make_parser().parse_args(arguments)
    entries = [*(file_source(parsed.config).entries if parsed.config is not None else ()), *defined_entries(parsed.define)]
    wanted = None
    if parsed.command == "dump":
        wanted = Wanted(topic=parsed.topic, queue_id=parsed.queue, start=parsed.start, key=parsed.key, by_log=parsed.by_log)
    return StoreToolOptions(
        command=parsed.command,
        directory=parsed.DIR,
        as_json=parsed.json,
        sizes=_sizes(entries, parsed.define),
        wanted=wanted,
        count=getattr(parsed, "count", 0),
    )


def _sizes(entries: Sequence[Entry], defined: Sequence[str]) -> Sizes:
    values = {entry.key: entry.value.strip() for entry in entries}
    for definition in defined:
        key = definition.partition("=")[0].strip()
        if key not in (*SIZE_KEYS, "storePathCommitLog"):
            raise ConfigError("option -D", f"{key} is not a setting that mqstore knows", f"use {', '.join(SIZE_KEYS)} or storePathCommitLog")
    numbers: dict[str, int | None] = {}
    for key in SIZE_KEYS:
        text = values.get(key)
        if text is not None and (not text.isdecimal() or int(text) == 0):
            raise ConfigError(key, f"{text!r} is not a number above 0", "give it as the broker had it")
        numbers[key] = int(text) if text is not None else None
    queue_size = numbers["mappedFileSizeConsumeQueue"]
    return Sizes(
        commitlog=Path(values["storePathCommitLog"]) if values.get("storePathCommitLog") else None,
        segment_size=numbers["mappedFileSizeCommitLog"],
        queue_file_size=-(-queue_size // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES if queue_size else None,
        index_slots=numbers["maxHashSlotNum"],
        index_entries=numbers["maxIndexNum"],
    )
