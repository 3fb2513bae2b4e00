"""Consumers and their slaves: they go on without the master, come back to it, and are sent to a slave when they are far behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer
from replicated_brokers import Group, Member, broker_group, eventually
from serving import until

from triomq import ConsumerSettings, Producer, PushConsumer, ReceivedMessage
from triomq.client.config import ClientSettings
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import RequestCode as Code

READABLE = {"slaveReadEnable": True}
QUICK = ConsumerSettings(
    retry_delay=0.05,
    error_delay=0.05,
    rebalance_retry=0.05,
    pull_batch=2,
    cached_messages_max=4,
    offset_interval=0.2,
    client=ClientSettings(route_interval=0.3, heartbeat_interval=0.3),
)


async def start_pair(group: Group) -> tuple[Member, Member]:
    master = await group.start(0, "SYNC_MASTER", **READABLE)
    slave = await group.start(1, **READABLE)
    await master.peer.create_topic("Numbers", 2)
    await eventually(lambda: stored_twice(master.peer))
    return master, slave


async def stored_twice(peer: BrokerPeer) -> bool:
    return (await peer.send_raw("Other")).code == 0


async def send_numbers(group: Group, numbers: range) -> None:
    async with Producer(group.namesrv, group="numbers") as producer:
        for number in numbers:
            await producer.send("Numbers", b"%d" % number)


async def committed(peer: BrokerPeer) -> int:
    """Sum of the group's offsets."""
    table = ConsumerOffsetTable.decode(bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body))
    return sum(table.offset_table.get("Numbers@collectors", {}).values())


@pytest.mark.feature(60)
async def test_a_consumer_goes_on_from_the_slave_and_returns(tmp_path: Path) -> None:
    """Slow listener, master stopped half-way: the slave has the rest; the master is back: new messages come, and it knows how far the group is."""
    async with broker_group(tmp_path) as group:
        master, _ = await start_pair(group)
        await send_numbers(group, range(60))
        got: list[int] = []
        gate = trio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if len(got) >= 10:
                await gate.wait()
            got.append(int(message.body))

        async with PushConsumer(
            group.namesrv, group="collectors", subscriptions="Numbers", consume_from="first", handler=handle, concurrency=1, settings=QUICK
        ):
            await until(lambda: len(got) >= 10)
            await master.stop()
            gate.set()
            await until(lambda: set(got) == set(range(60)))
            master = await group.start(0, "SYNC_MASTER", **READABLE)
            await eventually(lambda: stored_twice(master.peer))
            await send_numbers(group, range(60, 80))
            await until(lambda: set(got) == set(range(80)))
        await eventually(lambda: all_committed(master.peer))


async def all_committed(peer: BrokerPeer) -> bool:
    return await committed(peer) == 80


@pytest.mark.feature(61)
async def test_a_consumer_far_behind_is_sent_to_slave_1_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for a few messages only: the first pulls are answered with 1, the last with 0; without slaveReadEnable always 0."""
    monkeypatch.setattr("triomq.broker.store.store.memory_bytes", lambda: 20_000)
    async with broker_group(tmp_path) as group:
        master, slave = await start_pair(group)
        for number in range(100):
            await master.peer.send("Numbers", b"%d" % number + bytes(400))

        async def suggestions(peer: BrokerPeer) -> list[int]:
            found, offset = [], 0
            while (pulled := await peer.pull("Numbers", 0, offset, count=8)).messages:
                found.append(pulled.header.suggested_broker_id)
                offset = pulled.header.next_begin_offset
            return found

        found = await suggestions(master.peer)
        assert (found[0], found[-1], found) == (1, 0, sorted(found, reverse=True))
        await eventually(lambda: readable(slave.peer))
        assert await suggestions(slave.peer) == found
        await master.stop()
        await slave.stop()
        master = await group.start(0)
        assert set(await suggestions(master.peer)) == {0}


async def readable(peer: BrokerPeer) -> bool:
    return (await peer.pull_raw("Numbers")).code == 0
