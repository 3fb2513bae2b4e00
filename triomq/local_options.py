"""The options of ``mqlocal`` and its exit codes.

Trio is not imported here: ``--help`` and ``--version`` do not need it.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triomq.client.admin.arguments import Option, UsageError, Values, parse, whole

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PORT_IN_USE, EXIT_IN_USE = 0, 1, 2, 3, 4
NAMESRV_PORT = 9876
BROKER_PORT = 10911
BROKER_PORT_STEP = 10


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError("write key=value, with a key of broker.conf")
    return key.strip(), value.strip()


OPTIONS: Sequence[Option] = (
    Option("--namesrvs N", "how many name servers", whole(1, 9), default=1),
    Option(
        "--brokers N", "how many brokers (masters: broker-a, broker-b, …)", whole(1, 26), default=1
    ),
    Option(
        "--controllers N",
        "how many controllers, each inside of a name server; brokers are in controller mode",
        whole(0, 9),
        default=0,
    ),
    Option("--replicas N", "brokers of each name, with --controllers", whole(1, 9), default=1),
    Option(
        "--port PORT",
        "port of the first name server, the next ones follow; 0 = free ports everywhere",
        whole(0, 65000),
        default=NAMESRV_PORT,
    ),
    Option(
        "--broker-port PORT",
        f"port of the first broker, the next ones {BROKER_PORT_STEP} higher; 0 = free ports"
        f" (default {BROKER_PORT}, or 0 with --port 0)",
        whole(0, 65000),
    ),
    Option(
        "--dir DIR",
        "folder of stores, logs and configurations (default: triomq/local below $XDG_STATE_HOME or"
        " ~/.local/state)",
    ),
    Option("--cluster NAME", "name of the cluster", default="DefaultCluster"),
    Option(
        "--set KEY=VALUE",
        "a line of broker.conf for every broker; may be given several times",
        _setting,
    ),
    Option("--tls", "encrypt every connection, with certificates made for this cluster in DIR/tls"),
    Option("--quiet", "print nothing unless something fails"),
    Option("--json", "print one line of JSON when ready, and nothing else"),
    Option("-h, --help", "describe the options and stop"),
    Option("--version", "print the version and stop"),
)


def read_options(arguments: Sequence[str]) -> tuple[Values, list[tuple[str, str]]]:
    """Return the options, and the settings of all ``--set``. Raises: ``UsageError``."""
    settings: list[tuple[str, str]] = []

    def add(text: str) -> None:
        settings.append(_setting(text))

    options = [attrs.evolve(o, kind=add) if o.name == "set" else o for o in OPTIONS]
    values = parse(options, arguments)
    if values.number("replicas") > 1 and not values.number("controllers"):
        raise UsageError("--replicas needs --controllers, which choose the master: give 1 or 3")
    return values, settings


def help_text() -> str:
    """Return the text of ``--help``."""
    lines = [
        "usage: mqlocal [options]",
        "",
        "Start name servers and brokers on this machine; Ctrl-C stops them.",
        "",
    ]
    for option in OPTIONS:
        name = f"--{option.name} {option.placeholder}"
        default = f" (default {option.default})" if option.default is not None else ""
        lines.append(f"  {name:20}  {option.meaning}{default}")
    return "\n".join([*lines, "", "example: mqlocal --namesrvs 2 --brokers 2 --dir ~/cluster"])
