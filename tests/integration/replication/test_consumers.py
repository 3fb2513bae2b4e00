"""Consumers go on at a slave without the master, come back to the master, and are sent to a slave
when they are far behind.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer
from replicated_brokers import Group, Member, broker_group, eventually, log_bytes
from serving import until

from triomq import ConsumerSettings, Producer, ProducerSettings, PushConsumer, ReceivedMessage
from triomq.client.core.config import ClientSettings
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader, ProducerConnectionHeader

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
    """Return the sum of the group's offsets."""
    table = ConsumerOffsetTable.decode(bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body))
    return sum(table.offset_table.get("Numbers@collectors", {}).values())


@pytest.mark.feature("60a")
async def test_a_consumer_goes_on_from_the_slave_and_returns(tmp_path: Path) -> None:
    """The master stops while a slow listener works: the slave has the rest. When the master is
    back, new messages come, and it knows the group's offsets.
    """
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
            group.namesrv,
            group="collectors",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            concurrency=1,
            settings=QUICK,
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


@pytest.mark.feature("61a", "61b")
async def test_a_consumer_far_behind_is_sent_to_slave_1_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With memory for a few messages only, the first pulls are answered with 1, the last with 0;
    without slaveReadEnable all are answered with 0.
    """
    monkeypatch.setattr("triomq.broker.store.opening.memory_bytes", lambda: 20_000)
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


@pytest.mark.feature("14a", "14b")
async def test_producers_send_heartbeats_to_masters_and_consumers_to_all_brokers(
    tmp_path: Path,
) -> None:
    async def known(member: Member) -> tuple[bool, bool]:
        """Return whether the broker knows a producer and a consumer."""
        producers = await member.peer.call(
            Code.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionHeader("numbers")
        )
        consumers = await member.peer.call(
            Code.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader("collectors")
        )
        return producers.code == 0, consumers.code == 0

    async with broker_group(tmp_path) as group:
        master, slave = await start_pair(group)
        async with (
            Producer(
                group.namesrv, group="numbers", settings=ProducerSettings(client=QUICK.client)
            ) as producer,
            PushConsumer(
                group.namesrv, group="collectors", subscriptions="Numbers", settings=QUICK
            ),
        ):
            await producer.send("Numbers", b"1")

            async def all_known() -> bool:
                return (await known(master), (await known(slave))[1]) == ((True, True), True)

            async def heartbeats() -> int:
                answer = await slave.peer.call(Code.GET_BROKER_RUNTIME_INFO)
                figures = KvTable.decode(bytes(answer.body)).table["request_34_HEART_BEAT"]
                return int(figures.removeprefix("count ").partition(",")[0])

            async def three_more() -> bool:
                return await heartbeats() >= before + 3

            await eventually(all_known)
            before = await heartbeats()
            await eventually(three_more)
            assert await known(slave) == (False, True)


@pytest.mark.feature("61a", "61c")
async def test_only_master_and_slave_1_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that begins far behind reads from slave 1 first; it never reads from slave 2,
    although it could.
    """
    monkeypatch.setattr("triomq.broker.store.opening.memory_bytes", lambda: 20_000)

    async def pulls(member: Member) -> bool:
        answer = await member.peer.call(Code.GET_BROKER_RUNTIME_INFO)
        return "request_11_PULL_MESSAGE" in KvTable.decode(bytes(answer.body)).table

    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        await trio.lowlevel.checkpoint()
        got.append(message.body)

    async with broker_group(tmp_path) as group:
        master, first = await start_pair(group)
        second = await group.start(2, **READABLE)
        for number in range(100):
            await master.peer.send("Numbers", b"%d" % number + bytes(400))
        await eventually(
            lambda: log_bytes(master.root) == log_bytes(first.root) == log_bytes(second.root)
        )
        async with PushConsumer(
            group.namesrv,
            group="collectors",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            settings=QUICK,
        ):
            await until(lambda: len(got) >= 100)
        assert [await pulls(member) for member in (master, first, second)] == [True, True, False]
