"""The options of ``mqconsole``; imports nothing else of the console (start-up time)."""

from __future__ import annotations

import argparse
from pathlib import Path

from triomq.remoting.core.command_line import add_log_options, make_parser

PROGRAM = "mqconsole"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8082
ROLES = ("viewer", "operator", "admin")
"""in ascending order: each may do what those before it may"""


def console_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = make_parser(PROGRAM, "TrioMQ's console: web pages about a cluster")
    parser.add_argument(
        "-n",
        "--namesrvAddr",
        metavar="HOST:PORT;...",
        help="name servers of the cluster (default: environment variable NAMESRV_ADDR)",
    )
    parser.add_argument(
        "--host", default=DEFAULT_HOST, help=f"address to listen on (default {DEFAULT_HOST})"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help=f"port to listen on, 0 for any free one (default {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--users", type=Path, metavar="FILE", help="the users file (see `mqconsole user add`)"
    )
    parser.add_argument(
        "--cluster-login",
        action="store_true",
        help="let the users of the cluster's access control log in instead: Super as admin, others"
        " as viewer",
    )
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="let operators and admins change the cluster; without it all pages are read-only",
    )
    parser.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="append a line of JSON for every login and every change (needed by --allow-changes)",
    )
    parser.add_argument("--tls", metavar="FILE", help="tls.properties file for the cluster's TLS")
    parser.add_argument(
        "--credentials", type=Path, metavar="FILE", help="accessKey and secretKey for the cluster"
    )
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="PEM certificate: serve pages by https"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="PEM key of --certificate")
    parser.add_argument(
        "--behind-https",
        action="store_true",
        help="a proxy before the console ends TLS: mark cookies as Secure",
    )
    parser.add_argument(
        "--poll", type=float, default=5.0, metavar="SECONDS", help="time between polls (default 5)"
    )
    add_log_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    user = commands.add_parser("user", help="change the users file", allow_abbrev=False)
    actions = user.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, meaning in (
        ("add", "add a user, or give one a new password or role"),
        ("remove", "remove a user"),
        ("list", "list names and roles"),
    ):
        one = actions.add_parser(action, help=meaning, allow_abbrev=False)
        one.add_argument("--users", type=Path, required=True, metavar="FILE", dest="users_file")
        if action != "list":
            one.add_argument("name")
        if action == "add":
            one.add_argument("--role", choices=ROLES, default="viewer")
            one.add_argument(
                "--password-stdin",
                action="store_true",
                help="read the password from standard input instead of asking for it",
            )
    return parser
