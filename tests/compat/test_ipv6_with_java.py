"""Java and Go clients over IPv6, and our SDK on Java's servers: name server and broker are known
to the clients as ``[::1]:port`` only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
from foreign_clients import foreign_client
from ipv6_cluster import has_ipv6
from topic_reader import read_topic

from triomq import Producer
from triomq.client.admin.admin import Admin

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback"),
]


@contextmanager
def ipv6_servers(folder: Path) -> Iterator[str]:
    """A name server and a broker of ours; the name server's address."""
    ports = processes.free_port(), processes.free_port()
    namesrv = f"[::1]:{ports[0]}"
    (folder / "namesrv.conf").write_text(
        f"bindAddress=::\nlistenPort={ports[0]}\nkvConfigPath={folder}/kv.json\n"
    )
    conf = processes.write_broker_conf(
        folder, "broker-a", namesrv, ports[1], bindAddress="::", brokerIP1="[::1]"
    )
    name_server = [sys.executable, "-m", "triomq.namesrv", "-c", str(folder / "namesrv.conf")]
    broker = [sys.executable, "-m", "triomq.broker", "-c", str(conf)]
    with (
        processes.running(name_server, folder / "namesrv.log", port=ports[0]),
        processes.running(broker, folder / "broker.log", port=ports[1]),
    ):
        processes.wait_registered(f"127.0.0.1:{ports[0]}", "broker-a")
        yield namesrv


@pytest.mark.loss
@pytest.mark.compatible("IPv6", peer="java-client-{java_version}")
def test_java_sends_and_consumes(tmp_path: Path, java_version: str) -> None:
    with ipv6_servers(tmp_path) as namesrv:
        sent = [
            line
            for line in processes.java_peer(
                java_version, "send", namesrv, "T6", "5", "TagA", "sync"
            )
            if line[0] == "SENT"
        ]
        assert [line[1] for line in sent] == ["SEND_OK"] * 5
        assert {len(line[3]) for line in sent} == {56}, "message ids carry 16 bytes of address"
        got = [
            line
            for line in processes.java_peer(
                java_version, "consume", namesrv, "T6", "g6", "*", "5", "60"
            )
            if line[0] == "GOT"
        ]
        assert {line[1] for line in got} == {line[2] for line in sent}


@pytest.mark.loss
@pytest.mark.compatible("IPv6", peer="go-client")
def test_go_sends_and_consumes(tmp_path: Path) -> None:
    if not (processes.PEERS / "go" / "peer").exists():
        pytest.skip("the Go client is not installed: run `make peers`")
    with (
        ipv6_servers(tmp_path) as namesrv,
        foreign_client("go-client", namesrv, tmp_path) as client,
    ):
        sent = client.send("T6", "sync", 5)
        assert {len(one.offset_message_id) for one in sent} == {56}, (
            "message ids carry 16 bytes of address"
        )
        assert {one.message_id.upper() for one in client.consumed("T6", "g6", 5)} == {
            one.message_id.upper() for one in sent
        }


@contextmanager
def java_ipv6_servers(version: str, folder: Path) -> Iterator[str]:
    """A name server and a broker of Java; the name server's address."""
    with processes.java_name_server(version, folder / "namesrv") as address:
        port = processes.free_port()
        home, namesrv = folder / "broker", address.replace("127.0.0.1", "[::1]")
        processes.write_logback(home)
        conf = processes.write_java_conf(home, "broker-java", namesrv, port, brokerIP1="[::1]")
        command = processes.java_command(
            version, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=home
        )
        with processes.running(command, home / "broker.log", port=port) as broker:
            processes.wait_registered(address, "broker-java")
            yield namesrv
            broker.kill()  # an orderly stop takes it eight seconds


@pytest.mark.loss
@pytest.mark.compatible("IPv6", peer="java-server-{java_version}")
async def test_our_sdk_sends_and_consumes_on_java_s_servers(
    tmp_path: Path, java_version: str
) -> None:
    with java_ipv6_servers(java_version, tmp_path) as namesrv:
        async with Admin(namesrv) as admin:
            await admin.create_topic("T6", cluster="TestCluster", read_queues=1, write_queues=1)
            assert [broker.address[:6] for broker in await admin.brokers()] == ["[::1]:"]
        async with Producer(namesrv, group="g6") as producer:
            receipts = [await producer.send("T6", b"%d" % number) for number in range(5)]
        found = await read_topic(namesrv, "T6", 5)
    assert {len(receipt.offset_message_id) for receipt in receipts} == {56}, (
        "message ids carry 16 bytes of address"
    )
    assert [(message.message_id, message.body) for message in found] == [
        (receipt.message_id, b"%d" % number) for number, receipt in enumerate(receipts)
    ]
    assert {message.born_host[0] for message in found} == {"::1"}
