"""Java and Go clients over IPv6: name server and broker are known to them as `[::1]:port` only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
from foreign_clients import foreign_client
from ipv6_cluster import has_ipv6

pytestmark = [pytest.mark.compat, pytest.mark.timeout(180), pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")]


@contextmanager
def ipv6_servers(folder: Path) -> Iterator[str]:
    """A name server and a broker of ours; the name server's address."""
    ports = processes.free_port(), processes.free_port()
    namesrv = f"[::1]:{ports[0]}"
    (folder / "namesrv.conf").write_text(f"bindAddress=::\nlistenPort={ports[0]}\nkvConfigPath={folder}/kv.json\n")
    conf = processes.write_broker_conf(folder, "broker-a", namesrv, ports[1], bindAddress="::", brokerIP1="[::1]")
    name_server = [sys.executable, "-m", "triomq.namesrv", "-c", str(folder / "namesrv.conf")]
    broker = [sys.executable, "-m", "triomq.broker", "-c", str(conf)]
    with (
        processes.running(name_server, folder / "namesrv.log", port=ports[0]),
        processes.running(broker, folder / "broker.log", port=ports[1]),
    ):
        processes.wait_registered(f"127.0.0.1:{ports[0]}", "broker-a")
        yield namesrv


@pytest.mark.compatible("IPv6", peer="java-client-{java_version}")
def test_java_sends_and_consumes(tmp_path: Path, java_version: str) -> None:
    with ipv6_servers(tmp_path) as namesrv:
        sent = [line for line in processes.java_peer(java_version, "send", namesrv, "T6", "5", "TagA", "sync") if line[0] == "SENT"]
        assert [line[1] for line in sent] == ["SEND_OK"] * 5
        assert {len(line[3]) for line in sent} == {56}, "message ids carry 16 bytes of address"
        got = [line for line in processes.java_peer(java_version, "consume", namesrv, "T6", "g6", "*", "5", "60") if line[0] == "GOT"]
        assert {line[1] for line in got} == {line[2] for line in sent}


@pytest.mark.compatible("IPv6", peer="go-client")
def test_go_sends_and_consumes(tmp_path: Path) -> None:
    if not (processes.PEERS / "go" / "peer").exists():
        pytest.skip("the Go client is not installed: run `make peers`")
    with ipv6_servers(tmp_path) as namesrv, foreign_client("go-client", namesrv, tmp_path) as client:
        sent = client.send("T6", "sync", 5)
        assert {len(one.offset_message_id) for one in sent} == {56}, "message ids carry 16 bytes of address"
        assert {one.message_id.upper() for one in client.consumed("T6", "g6", 5)} == {one.message_id.upper() for one in sent}
