"""The options that all console scripts share: configuration file, single settings, logging.

Does not import Trio: ``--help`` and ``--version`` are answered before Trio is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from triomq import __version__
from triomq.remoting.core.properties_file import Entry, PropertiesError, decode_text, parse_entries
from triomq.remoting.core.settings import ConfigError, Source


def make_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with ``--help`` and ``--version``."""
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument(
        "--version",
        action="version",
        version=f"{program} (TrioMQ {__version__})",
        help="print the version and exit",
    )
    return parser


def add_print_option(parser: argparse.ArgumentParser, *short: str) -> None:
    """Add ``--print-config``; ``short``: its short form, where Java's program has one."""
    parser.add_argument(
        *short,
        "--print-config",
        "--printConfigItem",
        action="store_true",
        help="print the effective configuration and exit",
    )


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-c``, ``-D``, ``--log-dir``, ``--log-level`` and ``--log-format``."""
    parser.add_argument(
        "-c",
        "--config",
        "--configFile",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="configuration in the form of a Java properties file; may be repeated, the later one"
        " wins",
    )
    parser.add_argument(
        "-D",
        dest="define",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, as in the file; may be repeated, wins over it",
    )
    add_log_options(parser)


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add where and how a program logs."""
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIRECTORY",
        help="write the log to rotating files there instead of standard error",
    )
    parser.add_argument(
        "--log-level",
        default="INFO",
        metavar="LEVEL",
        help="DEBUG, INFO (default), WARNING or ERROR",
    )
    parser.add_argument(
        "--log-format",
        default="text",
        choices=("text", "json"),
        help="text (default), or json: one object in each line",
    )


def file_source(path: Path) -> Source:
    """Read a properties file. Raises: ConfigError."""
    try:
        return Source.of_file(path, parse_entries(decode_text(path.read_bytes())))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            "option -c", f"cannot read {path}: {reason}", "name an existing properties file"
        ) from None
    except PropertiesError as error:
        raise ConfigError(f"{path.name}:{error.line}", error.reason, "correct the line") from None


def defined_entries(definitions: Sequence[str]) -> tuple[Entry, ...]:
    """Parse the ``-D KEY=VALUE`` options. Raises: ConfigError without an equals sign."""
    entries = []
    for text in definitions:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("option -D", f"{text} has no value", "write -D KEY=VALUE")
        entries.append(Entry(key.strip(), value))
    return tuple(entries)
