"""The options of ``mqnamesrv`` and ``mqcontroller``; imports nothing else (start-up time)."""

from __future__ import annotations

import argparse

from triomq.remoting.core.command_line import add_print_option, add_shared_options, make_parser

PROGRAM = "mqnamesrv"
CONTROLLER_PROGRAM = "mqcontroller"


def namesrv_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_parser(PROGRAM, "TrioMQ's name server")
    parser.add_argument(
        "-p",
        "--port",
        metavar="PORT",
        help="port to listen on (default 9876; Java's -p is --print-config here)",
    )
    add_print_option(parser)
    add_shared_options(parser)
    return parser


def controller_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line of ``mqcontroller``."""
    parser = make_parser(CONTROLLER_PROGRAM, "TrioMQ's controller, without a name server")
    add_print_option(parser, "-p")
    add_shared_options(parser)
    return parser
