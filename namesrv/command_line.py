"""The options of ``mqnamesrv``; imports nothing else of the name server (start-up time)."""

from __future__ import annotations

import argparse

from triomq.remoting.core.command_line import add_shared_options, make_parser

PROGRAM = "mqnamesrv"


def namesrv_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_parser(PROGRAM, "TrioMQ's name server")
    parser.add_argument(
        "-p",
        "--port",
        metavar="PORT",
        help="port to listen on (default 9876; Java's -p is --print-config here)",
    )
    parser.add_argument(
        "--print-config",
        "--printConfigItem",
        action="store_true",
        help="print the effective configuration and exit",
    )
    add_shared_options(parser)
    return parser
