"""The options of ``mqbroker``, without other imports of the broker, so that ``--help`` is quick."""

from __future__ import annotations

import argparse

from triomq.remoting.core.command_line import add_print_option, add_shared_options, make_parser

PROGRAM = "mqbroker"


def broker_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_parser(PROGRAM, "TrioMQ's broker")
    parser.add_argument(
        "-n", "--namesrvAddr", metavar="HOST:PORT;...", help="name servers to register with"
    )
    add_print_option(parser, "-p")
    parser.add_argument(
        "--force",
        action="store_true",
        help="start although another master of this name is alive: clients reach one of the two,"
        " and not the messages of the other",
    )
    add_shared_options(parser)
    return parser
