"""The options of ``triomq run``, and their values in the environment and a file.

Does not import Trio: ``--help`` is answered before Trio is imported.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path

import attrs

from triomq.remoting.core.command_line import add_log_options, file_source, make_parser
from triomq.remoting.core.settings import ConfigError

PROGRAM = "triomq"
PROCESSES_MAX = 256
PORT_MAX = 65_535
ENVIRONMENT_PREFIX = "TRIOMQ_RUN_"


@attrs.frozen(kw_only=True)
class RunOptions:
    """What ``triomq run`` does."""

    targets: tuple[str, ...]
    """each ``module:name``"""
    processes: int = 1
    port: int = 0
    """of the first process, the next one has the next port; 0: no probes"""
    host: str = "127.0.0.1"
    reload: bool = False


def run_parser() -> argparse.ArgumentParser:
    """Return the parser of the console script ``triomq``."""
    parser = make_parser(PROGRAM, "TrioMQ's SDK from the command line")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run consumers until SIGTERM or Ctrl-C",
        description="Run consumers until SIGTERM or Ctrl-C; running handlers end first. Each option"
        f" may stand in the environment, --processes as {ENVIRONMENT_PREFIX}PROCESSES.",
        allow_abbrev=False,
    )
    run.add_argument(
        "targets",
        nargs="+",
        metavar="MODULE:NAME",
        help="a PushConsumer with a handler (of triomq, triomq.aio or triomq.sync), or a function"
        " that returns one or a list",
    )
    run.add_argument("--processes", metavar="N", help="how many processes run them (1)")
    run.add_argument(
        "--port",
        metavar="PORT",
        help="HTTP port with /live, /ready, /status and /metrics; further processes have the next"
        " ports",
    )
    run.add_argument("--host", metavar="ADDRESS", help="address of that port (127.0.0.1)")
    run.add_argument("-n", "--namesrvAddr", metavar="HOST:PORT;...", help="the name servers")
    run.add_argument(
        "--env-file",
        type=Path,
        metavar="FILE",
        help="lines KEY=VALUE for the environment, which wins over them",
    )
    run.add_argument(
        "--reload",
        action="store_true",
        help="start again when a .py file below this directory changes (for development)",
    )
    run.add_argument("--child", help=argparse.SUPPRESS)
    add_log_options(run)
    return parser


def read_options(
    parsed: argparse.Namespace, environment: MutableMapping[str, str] = os.environ
) -> RunOptions:
    """Complete the environment from ``--env-file`` and ``-n``; return the options.

    Raises: ``ConfigError``.
    """
    if parsed.env_file is not None:
        for entry in file_source(parsed.env_file).entries:
            environment.setdefault(entry.key, entry.value)
    if parsed.namesrvAddr is not None:
        environment["NAMESRV_ADDR"] = parsed.namesrvAddr

    def text(option: str, default: str) -> str:
        given: str | None = getattr(parsed, option)
        return given or environment.get(ENVIRONMENT_PREFIX + option.upper(), "") or default

    for target in parsed.targets:
        module, colon, name = target.partition(":")
        if not (module and colon and name):
            raise ConfigError("", f"{target!r} names no consumer", "write MODULE:NAME")
    processes = _number("processes", text, 1, PROCESSES_MAX)
    port = _number("port", text, 0, PORT_MAX - processes + 1)
    return RunOptions(
        targets=tuple(parsed.targets),
        processes=processes,
        port=port,
        host=text("host", "127.0.0.1"),
        reload=parsed.reload,
    )


def _number(option: str, text: Callable[[str, str], str], least: int, most: int) -> int:
    given = text(option, str(least))
    if not given.isascii() or not given.isdigit() or not least <= int(given) <= most:
        raise ConfigError(
            f"option --{option}", f"{given!r} is not a number in range", f"give {least} to {most}"
        )
    return int(given)
