"""Each server warns at its start of a file with secrets that every user of the machine may read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from triomq.broker import options as broker_options
from triomq.broker.command_line import broker_parser
from triomq.client.proxy import options as proxy_options
from triomq.client.proxy.command_line import proxy_parser
from triomq.namesrv import serve
from triomq.namesrv.command_line import controller_parser, namesrv_parser

INNER = "innerClientAuthenticationCredentials"
VALUE = '{"accessKey":"inner","secretKey":"innerpw123"}'
SERVERS: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[..., Any]]] = {
    "mqbroker": (broker_parser, partial(broker_options.read_options, environment={})),
    "mqnamesrv": (namesrv_parser, serve.read_options),
    "mqcontroller": (controller_parser, serve.read_controller_options),
    "mqproxy": (proxy_parser, partial(proxy_options.read_options, environment={})),
}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o600])
def test_a_file_with_secrets_that_all_may_read(
    tmp_path: Path, server: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may read it: servers that must not write their file are started so."""
    monkeypatch.setenv("HOME", str(tmp_path))
    parser, read = SERVERS[server]
    plain, secret = tmp_path / "plain.conf", tmp_path / "secret.conf"
    plain.write_text("serverConnectionsMax=100\n" if server != "mqproxy" else "namesrvAddr=a:1\n")
    secret.write_text(f"{INNER}={VALUE}\n")
    plain.chmod(0o644)
    secret.chmod(mode)
    files = ["-c", str(plain), "-c", str(secret)]
    found = [line for line in read(parser().parse_args(files)).warnings if "secret" in line]
    wanted = (
        f"{INNER} is a secret, and every user of this machine can read {secret}: chmod o= {secret}"
    )
    assert found == ([wanted] if mode == 0o644 else [])


def test_java_s_file_of_a_proxy(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    file.write_text('{"namesrvAddr": "a:1", "monitorToken": "innerpw123"}')
    file.chmod(0o604)
    parsed = proxy_parser().parse_args(["-pc", str(file)])
    (found,) = proxy_options.read_options(parsed, {}).warnings
    assert found.endswith(f"can read {file}: chmod o= {file}")
    assert "innerpw123" not in found
