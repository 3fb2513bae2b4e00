"""The options that the serving console scripts share: configuration file, single settings, logging."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from triomq.remoting.process import LogSettings
from triomq.remoting.properties import Entry, PropertiesError, decode_text, parse_entries
from triomq.remoting.settings import ConfigError, Source


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-c``, ``-D``, ``--log-dir`` and ``--log-level``."""
    parser.add_argument("-c", "--config", "--configFile", type=Path, metavar="FILE", help="configuration in the form of a Java properties file")
    parser.add_argument("-D", dest="define", action="append", default=[], metavar="KEY=VALUE", help="one setting, as in the file; may be repeated, wins over it")
    parser.add_argument("--log-dir", type=Path, metavar="DIRECTORY", help="write the log to rotating files there instead of standard error")
    parser.add_argument("--log-level", default="INFO", metavar="LEVEL", help="DEBUG, INFO (default), WARNING or ERROR")


def log_settings(parsed: argparse.Namespace) -> LogSettings:
    """The logging options of a command line."""
    return LogSettings(parsed.log_dir, parsed.log_level)


def file_source(path: Path) -> Source:
    """Read a properties file; ConfigError if it cannot be read or is broken."""
    try:
        return Source(path.name, tuple(parse_entries(decode_text(path.read_bytes()))))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError("option -c", f"cannot read {path}: {reason}", "name an existing properties file") from None
    except PropertiesError as error:
        raise ConfigError(f"{path.name}:{error.line}", error.reason, "correct the line") from None


def defined_entries(definitions: Sequence[str]) -> tuple[Entry, ...]:
    """The ``-D KEY=VALUE`` options; ConfigError without an equals sign."""
    entries = []
    for text in definitions:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError("option -D", f"{text} has no value", "write -D KEY=VALUE")
        entries.append(Entry(key.strip(), value))
    return tuple(entries)
