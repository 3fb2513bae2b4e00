"""The command line of ``mqpipeline``: its commands, options and exit codes.

They are declared once for the parser and for docs/pipeline.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date
from typing import Any

import attrs

from triomq.remoting.core.command_line import make_parser
from triomq.remoting.core.interrupt import EXIT_INTERRUPTED

PROGRAM = "mqpipeline"
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
EXIT_CODES = {
    EXIT_OK: "done; `run`: the pipeline was stopped, or has read what was there",
    EXIT_FAILED: "`check` found mistakes; `run`: a query failed; another command could not be done",
    EXIT_USAGE: "the command line or the pipeline's file has a mistake; nothing was done",
    EXIT_INTERRUPTED: "Ctrl-C",
}


def whole(text: str) -> int:
    """Read a whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def day(text: str) -> date:
    """Read a date."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date as 2026-01-31") from None


def pair(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


@attrs.frozen
class PipelineOption:
    """One option or argument, for argparse and for the documentation."""

    name: str
    meaning: str
    settings: dict[str, Any] = attrs.field(factory=dict)


def flag(name: str, meaning: str) -> PipelineOption:
    return PipelineOption(name, meaning, {"action": "store_true"})


def value(
    name: str, placeholder: str, meaning: str, kind: Callable[[str], object] = str, **more: object
) -> PipelineOption:
    return PipelineOption(name, meaning, {"metavar": placeholder, "type": kind, **more})


FORCE = flag("--force", "replace what exists")
COMMANDS: dict[str, tuple[str, tuple[PipelineOption, ...]]] = {
    "init": (
        "write a pipeline's file with the most important keys and their meaning",
        (
            value("--topic", "TOPIC", "the topic to read (default: orders)", default="orders"),
            value(
                "--name-server",
                "ADDRESSES",
                "name servers (default: 127.0.0.1:9876)",
                default="127.0.0.1:9876",
            ),
            FORCE,
        ),
    ),
    "infer": (
        "write the schema of JSON messages from a sample, to the file that [decode] schema names",
        (
            value(
                "--messages", "N", "newest messages to look at (default: 1000)", whole, default=1000
            ),
            FORCE,
        ),
    ),
    "check": (
        "look for mistakes in the file, and with Spark in its SQL, columns and joins",
        (
            flag("--file-only", "without Spark: only what the file itself shows"),
            flag("--online", "ask the servers too: topics, permissions, limits of sizes"),
        ),
    ),
    "run": (
        "run the pipeline until Ctrl-C or SIGTERM; the batch in progress ends first",
        (
            value(
                "--trigger",
                "TRIGGER",
                "instead of [run] trigger: '10 seconds', or available_now to read what is there",
            ),
        ),
    ),
    "status": ("show what a pipeline has done and how far it is behind; needs no Spark", ()),
    "replay": (
        "send dead letters to the topics that they came from, each once",
        (
            value("--where", "SQL", 'only dead letters for which this is true: "mq_reason LIKE …"'),
            value("--limit", "N", "at most so many, the oldest first", whole),
            flag("--again", "also those that were sent again before"),
        ),
    ),
    "backfill": (
        "begin with the messages in the stores of stopped brokers; `run` goes on behind them",
        (
            PipelineOption(
                "stores",
                "broker's name = its store directory, for each broker",
                {"metavar": "BROKER=DIR", "nargs": "+", "type": pair},
            ),
            value(
                "--option",
                "NAME=VALUE",
                'an option of format("rocketmq-store"); may be repeated',
                pair,
                action="append",
                default=[],
            ),
        ),
    ),
    "compact": (
        "merge small files of finished days; delete days that are older than keep_days",
        (value("--before", "DATE", "merge days before this one (default: today, UTC)", day),),
    ),
    "export-sdp": (
        "write the pipeline as a project for Spark Declarative Pipelines (spark-pipelines run)",
        (PipelineOption("folder", "folder of the project", {"metavar": "FOLDER"}), FORCE),
    ),
}
FILE = PipelineOption("file", "the pipeline's file, TOML or YAML", {"metavar": "FILE"})
COMMON = (
    flag("--json", "print one JSON document instead of text"),
    flag("--verbose", "show the traceback of a failure"),
)


def pipeline_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_parser(
        PROGRAM,
        "Turn topics into tables with Spark, as one file says. The guide: docs/pipeline.md.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (summary, options) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        for option in (FILE, *options, *COMMON):
            command.add_argument(option.name, help=option.meaning, **option.settings)
    return parser
