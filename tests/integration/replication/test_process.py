"""Master and slave as processes that are stopped, frozen and killed: messages that were answered OK
are there, and the logs are equal.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import processes
import pytest
import trio
from brokers import BrokerPeer
from processes import our_broker, wait_registered

from triomq.remoting.client.connector import Connector, ConnectorConfig
from triomq.remoting.core.errors import RemotingError
from triomq.remoting.protocol.codes import ResponseCode

NAME = "broker-a"
TOPIC = "T"
SMALL = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}
SYNC = {"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH", "slaveTimeout": 1_000, **SMALL}
SLAVE = {
    "brokerRole": "SLAVE",
    "brokerId": 1,
    "flushDiskType": "SYNC_FLUSH",
    "slaveReadEnable": "true",
    **SMALL,
}
SECONDS_MAX = 60


@asynccontextmanager
async def peer_at(port: int) -> AsyncIterator[BrokerPeer]:
    async with Connector(ConnectorConfig()) as connector:
        yield BrokerPeer(connector, f"127.0.0.1:{port}")


def log_of(folder: Path) -> bytes:
    return b"".join(
        path.read_bytes() for path in sorted((folder / "store" / "commitlog").iterdir())
    ).rstrip(b"\0")


async def wait_same(master: Path, slave: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while log_of(master) != log_of(slave):
        assert time.monotonic() < deadline, f"{len(log_of(master))} bytes and {len(log_of(slave))}"
        await trio.sleep(0.05)


async def code_of(peer: BrokerPeer, body: bytes) -> int:
    return (await peer.send_raw(TOPIC, body, queue_id=0)).code


async def wait_code(peer: BrokerPeer, code: int) -> None:
    with trio.fail_after(SECONDS_MAX):
        while True:
            try:
                if await code_of(peer, b"try") == code:
                    return
            except RemotingError:
                pass
            await trio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.feature("58a", "64b")
async def test_a_slave_that_is_frozen_and_one_that_is_gone(tmp_path: Path) -> None:
    """SIGSTOP: a message is stored and answered FLUSH_SLAVE_TIMEOUT (12). SIGCONT: OK again,
    without a new connection. SIGKILL: SLAVE_NOT_AVAILABLE (11).
    """
    port = processes.free_port(span=2)
    with (
        processes.our_name_server(tmp_path / "ns") as namesrv,
        our_broker(tmp_path / "m", NAME, namesrv, port, **SYNC),
    ):
        wait_registered(namesrv, NAME)
        async with peer_at(port) as peer:
            await peer.create_topic(TOPIC, 1)
            with our_broker(tmp_path / "s", NAME, namesrv, **SLAVE) as (_, slave):
                await wait_code(peer, ResponseCode.SUCCESS)
                slave.send_signal(signal.SIGSTOP)
                assert await code_of(peer, b"frozen") == ResponseCode.FLUSH_SLAVE_TIMEOUT
                slave.send_signal(signal.SIGCONT)
                await wait_code(peer, ResponseCode.SUCCESS)
                await wait_same(tmp_path / "m", tmp_path / "s")
                assert b"frozen" in log_of(tmp_path / "s")
                slave.kill()
                slave.wait()
            await wait_code(peer, ResponseCode.SLAVE_NOT_AVAILABLE)


@pytest.mark.slow
@pytest.mark.feature("56a", "58b")
async def test_nothing_acknowledged_is_lost_when_either_is_killed_under_load(
    tmp_path: Path,
) -> None:
    """Eight senders; the slave is killed, the master, both. All messages that were answered OK are
    on both, in one order.
    """
    ports = processes.free_port(span=2), processes.free_port(span=2)
    acknowledged: set[bytes] = set()
    with processes.our_name_server(tmp_path / "ns") as namesrv:
        for victims in ("slave", "master", "both"):
            with (
                our_broker(
                    tmp_path / "m", NAME, namesrv, ports[0], haListenPort=ports[0] + 1, **SYNC
                ) as (_, master),
                our_broker(tmp_path / "s", NAME, namesrv, ports[1], **SLAVE) as (_, slave),
            ):
                async with peer_at(ports[0]) as peer:
                    with trio.fail_after(SECONDS_MAX):
                        while True:
                            try:
                                await peer.create_topic(TOPIC, 1)
                                break
                            except RemotingError:
                                await trio.sleep(0.05)
                    await wait_code(peer, ResponseCode.SUCCESS)
                    before = len(acknowledged)
                    async with trio.open_nursery() as nursery:

                        async def send(
                            sender: int, peer: BrokerPeer = peer, victims: str = victims
                        ) -> None:
                            for number in range(1_000_000):
                                body = b"%s-%d-%d;" % (victims.encode(), sender, number)
                                try:
                                    if await code_of(peer, body) == ResponseCode.SUCCESS:
                                        acknowledged.add(body)
                                except RemotingError:
                                    await trio.sleep(0.01)

                        for sender in range(8):
                            nursery.start_soon(send, sender)
                        while len(acknowledged) < before + 200:
                            await trio.sleep(0.01)
                        for process in {
                            "slave": [slave],
                            "master": [master],
                            "both": [slave, master],
                        }[victims]:
                            process.kill()
                        await trio.sleep(0.2)
                        nursery.cancel_scope.cancel()
            for folder in (
                tmp_path / "m",
                tmp_path / "s",
            ):  # as if the other broker's disk had died
                found = log_of(folder)
                assert [body for body in acknowledged if body not in found] == []
        with (
            our_broker(tmp_path / "m", NAME, namesrv, ports[0], haListenPort=ports[0] + 1, **SYNC),
            our_broker(tmp_path / "s", NAME, namesrv, ports[1], **SLAVE),
        ):
            async with peer_at(ports[0]) as peer:
                await wait_code(peer, ResponseCode.SUCCESS)
            await wait_same(tmp_path / "m", tmp_path / "s")
            assert len(acknowledged) >= 600
