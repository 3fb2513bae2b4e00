"""Read the files of deploy/ as Compose, Kubernetes and our own programs do."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import running

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
    container: dict[str, Any],
    hostname: str,
    folder: Path,
    program: str = "mqbroker",
    variables: Mapping[str, str] | None = None,
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
    known = {"PATH": f"{folder}:/usr/bin:/bin", "HOSTNAME": hostname, "NAMESPACE": "mq"}
    environment = {**(variables or {}), **known}
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def rendered(overlay: str, folder: Path) -> list[dict[str, Any]]:
    """What ``kubectl apply -k`` of an overlay sends; the kustomizations are copied to ``folder``
    unless they are there.
    """
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is missing: it renders the overlay")
    for name in ("kubernetes", "kubernetes-console", overlay):
        shutil.copytree(
            DEPLOY / name, folder / name, ignore=shutil.ignore_patterns("files"), dirs_exist_ok=True
        )
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@contextlib.contextmanager
def service_process(
    service: Mapping[str, Any],
    folder: Path,
    port: int,
    *options: str,
    conf: Path = DEPLOY / "conf",
    addresses: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A service of a compose file as a process here, its files below ``folder``; ``addresses``:
    those of other services -> those of here.
    """

    def here(text: str) -> str:
        for name, address in {"/etc/triomq": str(conf), **(addresses or {})}.items():
            text = text.replace(name, address)
        return text

    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {name: here(text) for name, text in service.get("environment", {}).items()}
    words = [here(word) for word in (*service["entrypoint"], *service["command"])]
    words += [f"-DlistenPort={port}", "-DmonitorPort=0", "-DbindAddress=127.0.0.1", *options]
    with running(
        words, folder / "log", port=port, env={"PATH": path, "HOME": str(folder), **environment}
    ) as process:
        yield process


def broker_options(folder: Path) -> list[str]:
    """Options of a broker of a compose file that runs here."""
    return [
        "-DbrokerIP1=127.0.0.1",
        "-DbrokerIP2=127.0.0.1",
        "-DgrpcServerPort=0",
        f"-DstorePathRootDir={folder / 'store'}",
    ]
