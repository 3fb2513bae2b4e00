"""The options of ``mqproxy``; imports nothing else of the proxy (start-up time)."""

from __future__ import annotations

import argparse
from pathlib import Path

from triomq.remoting.core.command_line import add_print_option, add_shared_options, make_parser

PROGRAM = "mqproxy"


def proxy_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_parser(PROGRAM, "TrioMQ's proxy: RocketMQ 5 clients (gRPC) before a cluster")
    parser.add_argument(
        "-n", "--namesrvAddr", metavar="HOST:PORT;...", help="name servers of the cluster"
    )
    parser.add_argument(
        "-pc",
        "--proxyConfigPath",
        type=Path,
        metavar="FILE",
        help="configuration in JSON, as Java's rmq-proxy.json",
    )
    parser.add_argument(
        "-pm",
        "--proxyMode",
        metavar="cluster",
        help="accepted for Java's command lines; in the local mode a broker serves these clients"
        " itself",
    )
    add_print_option(parser, "-p")
    add_shared_options(parser)
    return parser
