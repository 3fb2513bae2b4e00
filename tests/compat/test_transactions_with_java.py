"""Transactions of the official Java clients on our brokers, and a store with open ones, in turns
under our broker and under Java's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest
import trio
from processes import java_command
from topic_reader import read_topic

from triomq.client.admin.admin import Admin

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

SOON = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
JAVA_SOON = {
    "transactionTimeOut": 6000,
    "transactionCheckInterval": 2000,
    "transactionOpBatchInterval": 50,
}
"""Java 5 keeps the ends of transactions in memory, by default for three seconds. If it checks or
stops in between, what has ended is asked about again and committed twice: what it is sent must not
be due before its end is stored, however busy the machine is.
"""
NAME = "broker-t"
PROPERTIES = ("TRAN_MSG", "PGROUP")


def produce(version: str, namesrv: str, bodies: str, checked: str = "") -> list[list[str]]:
    """Run TransactionPeer.java to its end; its lines, split at tabs."""
    done = subprocess.run(
        java_command(version, "TransactionPeer", namesrv, "Tx", "java-tx", bodies, checked),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]


def bodies_of(namesrv: str, count: int) -> list[str]:
    """Wait for this many messages that were not read before; return their bodies."""
    found = trio.run(read_topic, namesrv, "Tx", count)
    assert all(message.properties["TRAN_MSG"] == "true" for message in found)
    return sorted(message.body.decode() for message in found)


def create_topic(namesrv: str) -> None:
    async def create() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic("Tx", cluster="TestCluster", read_queues=2, write_queues=2)

    trio.run(create)


@contextmanager
def broker_on(
    kind: str, version: str, folder: Path, namesrv: str, store: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Our broker or Java's on a directory."""
    folder.mkdir()
    settings = {**(SOON if kind == "ours" else JAVA_SOON), "storePathRootDir": store}
    if kind == "ours":
        with processes.our_broker(folder, NAME, namesrv, **settings) as (_, process):
            processes.wait_registered(namesrv, NAME)
            yield process
        return
    port = processes.free_port(span=2)
    processes.write_logback(folder)
    conf = processes.write_java_conf(folder, NAME, namesrv, port, **settings)
    command = java_command(
        version, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), home=folder
    )
    with processes.running(command, folder / "broker.log", port=port) as process:
        processes.wait_registered(namesrv, NAME)
        yield process


@pytest.mark.loss
@pytest.mark.compatible("transactions", peer="java-client-{java_version}")
@pytest.mark.feature("105a", "106a", "108b", "109b")
def test_java_s_transactions_on_our_broker(java_version: str, tmp_path: Path) -> None:
    with (
        processes.our_name_server(tmp_path / "namesrv") as namesrv,
        broker_on("ours", java_version, tmp_path / "ours", namesrv, tmp_path / "store"),
    ):
        create_topic(namesrv)
        lines = produce(java_version, namesrv, "c-,r-,uc,ur,uu", "uc,ur,uu")
        assert [line[2:4] for line in lines if line[0] == "SENT"] == [
            ["SEND_OK", state]
            for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW", "UNKNOW", "UNKNOW")
        ]
        checked = [line[1:4] for line in lines if line[0] == "CHECKED"]
        assert {body for body, _, _ in checked} == {"uc", "ur", "uu"}
        assert all(topic == "Tx" for _, _, topic in checked)
        times = [number for body, number, _ in checked if body == "uu"]
        assert times == [str(number) for number in range(1, len(times) + 1)]
        assert [body for body, _, _ in checked if body != "uu"].count("uc") == 1
        assert bodies_of(namesrv, 2) == ["c-", "uc"]


@pytest.mark.loss
@pytest.mark.compatible(
    "directory with open transactions from theirs",
    peer="java-server-{java_version}",
    only={"first": "java"},
)
@pytest.mark.compatible(
    "directory with open transactions from ours",
    peer="java-server-{java_version}",
    only={"first": "ours"},
)
@pytest.mark.feature("107a", "110a")
@pytest.mark.parametrize(
    ("java_version", "first"), [("5.5.0", "ours"), ("5.5.0", "java"), ("4.9.4", "java")]
)
def test_open_transactions_are_finished_by_the_other_broker(
    first: str, java_version: str, tmp_path: Path
) -> None:
    second = "java" if first == "ours" else "ours"
    store = tmp_path / "store"
    with processes.our_name_server(tmp_path / "namesrv") as namesrv:
        with broker_on(first, java_version, tmp_path / "1", namesrv, store) as process:
            create_topic(namesrv)
            produce(java_version, namesrv, "c-,uc,r-,ur")
            assert bodies_of(namesrv, 1) == ["c-"]
            process.terminate()
            process.wait(60)
        with broker_on(second, java_version, tmp_path / "2", namesrv, store):
            lines = produce(java_version, namesrv, "cx", "uc,ur")
            checked = {line[1] for line in lines if line[0] == "CHECKED"}
            assert checked == {"uc", "ur"}, "only what is open is checked"
            assert bodies_of(namesrv, 2) == ["cx", "uc"]
