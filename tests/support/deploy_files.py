"""Read the files of deploy/ as Compose, Kubernetes and our own programs do."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from triomq.broker.command_line import broker_parser
from triomq.broker.config import BrokerConfig
from triomq.broker.options import read_options as read_broker
from triomq.client.proxy.command_line import proxy_parser
from triomq.client.proxy.options import read_options as read_proxy
from triomq.client.proxy.proxy_config import ProxyConfig
from triomq.namesrv.command_line import namesrv_parser
from triomq.namesrv.config import NamesrvConfig
from triomq.namesrv.serve import read_options as read_namesrv

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
STATE = "/var/lib/triomq"


def config_of(words: Sequence[str], conf: Path = DEPLOY / "conf") -> BrokerConfig | NamesrvConfig:
    """What our programs make of a command line; /etc/triomq is a folder of the repository. Nothing
    may be ignored with a warning.
    """
    program, *options = (word.replace("/etc/triomq", str(conf)) for word in words)
    loaded = (
        read_broker(broker_parser().parse_args(options), {})
        if program == "mqbroker"
        else read_namesrv(namesrv_parser().parse_args(options))
    )
    assert program in ("mqbroker", "mqnamesrv")
    assert loaded.warnings == ()
    return loaded.config


def proxy_of(words: Sequence[str], namesrv: str, conf: Path = DEPLOY / "conf") -> ProxyConfig:
    """What ``mqproxy`` makes of a command line and the environment."""
    program, *options = (word.replace("/etc/triomq", str(conf)) for word in words)
    assert program == "mqproxy"
    loaded = read_proxy(proxy_parser().parse_args(options), {"NAMESRV_ADDR": namesrv})
    assert loaded.warnings == ()
    return loaded.config


def compose_file(name: str = "docker-compose.yml", **environment: str) -> dict[str, Any]:
    """A compose file with its variables replaced, as Compose does it."""
    filled = re.sub(
        r"(?<!\$)\$\{(\w+):-([^}]*)\}",
        lambda match: environment.get(match[1], match[2]),
        (DEPLOY / name).read_text(),
    ).replace("$$", "$")
    assert "${" not in filled
    return dict(yaml.safe_load(filled))


def words_of(
    container: dict[str, Any], hostname: str, folder: Path, program: str = "mqbroker"
) -> list[str]:
    """The command line of a container, its shell script run with a stand-in that prints what it is
    called with.
    """
    words = [*container.get("command", ()), *container.get("args", ())]
    if words[0] != "sh":
        return words
    stand_in = folder / program
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" {program} "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOSTNAME": hostname, "NAMESPACE": "mq"}
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
