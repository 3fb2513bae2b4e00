"""On which addresses a broker listens, and that it says which of its ports everybody may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio
from brokers import running_broker
from processes import free_port

ANY = {"bindAddress": "0.0.0.0", "brokerRole": "ASYNC_MASTER"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        ({"haBindAddress": "0.0.0.0"}, ["copy every message and count as a slave"]),
        ({**ANY, "haBindAddress": "127.0.0.1"}, ["read, write and delete"]),
        ({"monitorAddress": "0.0.0.0", "monitorPort": free_port()}, ["read /status and /metrics"]),
        ({"monitorAddress": "0.0.0.0", "monitorPort": free_port(), "monitorToken": "t"}, []),
        (ANY, ["read, write and delete", "copy every message and count as a slave"]),
        ({**ANY, "haSlaveAddresses": "127.0.0.1"}, ["read, write and delete"]),
        (
            {
                **ANY,
                "haAuthentication": "true",
                "innerClientAuthenticationCredentials": '{"accessKey":"b","secretKey":"s"}',
            },
            ["read, write and delete"],
        ),
        (
            {**ANY, "haSlaveAddresses": "127.0.0.1", "auditLogPath": "AUDIT"},
            ["read, write and delete"],
        ),
    ],
)
async def test_open_ports_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, object], said: list[str]
) -> None:
    if "auditLogPath" in settings:  # it writes what happens, and refuses nothing
        settings = {**settings, "auditLogPath": str(tmp_path / "audit.log")}
    async with running_broker(tmp_path, **settings):
        pass
    warnings = [text for text in caplog.messages if text.startswith("everybody who reaches ")]
    assert [text.partition(" may ")[2].partition(": the port")[0] for text in warnings] == said


def listening(port: int) -> str:
    """Return the address on which this process listens on a port; empty if it does not."""
    inodes = {
        os.readlink(link).removeprefix("socket:[").rstrip("]")
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and os.path.lexists(link)
    }
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        host, _, number = words[1].partition(":")
        if words[3] == "0A" and int(number, 16) == port and words[9] in inodes:
            return ".".join(str(part) for part in reversed(bytes.fromhex(host)))
    return ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_each_port_listens_on_the_address_of_its_setting(tmp_path: Path) -> None:
    fast, slaves, calls, probes = (free_port() for _ in range(4))
    own = {
        "fastListenPort": fast,
        "haListenPort": slaves,
        "grpcServerPort": calls,
        "monitorPort": probes,
    }

    async def hosts(folder: str, **settings: object) -> list[str]:
        async with running_broker(tmp_path / folder, **own, **settings) as broker:
            with trio.fail_after(60):
                while not listening(calls):
                    await trio.sleep(0.01)
            return [listening(port) for port in (broker.port, fast, slaves, calls, probes)]

    assert await hosts("a", bindAddress="127.0.0.2") == [*["127.0.0.2"] * 4, "127.0.0.1"]
    assert await hosts(
        "b",
        bindAddress="127.0.0.1",
        haBindAddress="127.0.0.3",
        grpcBindAddress="127.0.0.4",
        monitorAddress="127.0.0.5",
    ) == ["127.0.0.1", "127.0.0.1", "127.0.0.3", "127.0.0.4", "127.0.0.5"]
