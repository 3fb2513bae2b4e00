"""``enableSlaveActingMaster`` between whole brokers, through sockets: what a slave does while its
master is down, and how that ends.

Two groups: broker-a with a master and slaves, broker-b with a master that takes what a slave of
broker-a may not store itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from brokers import BrokerPeer
from replicated_brokers import Group, Member, broker_group, eventually
from virtual_time import in_virtual_time

from triomq import ConsumerSettings, PushConsumer, ReceivedMessage
from triomq.client.core.config import ClientSettings
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.route import MessageQueue, TopicRoute
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.admin import ExchangeHaAddressHeader
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    UpdateConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.registration import (
    BrokerMembersHeader,
    MinBrokerIdChangeHeader,
)
from triomq.remoting.protocol.headers.route import GetRouteHeader
from triomq.remoting.protocol.headers.send import RecallMessageHeader, SendMessageResponseHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader
from triomq.remoting.protocol.headers.transaction import COMMIT, EndTransactionHeader
from triomq.remoting.protocol.names import HALF_TOPIC
from triomq.remoting.protocol.record import StoredMessage

LEVELS = "1s 4s 1h"
ON = {
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "slaveReadEnable": True,
    "syncBrokerMemberGroupPeriod": 100,
    "messageDelayLevel": LEVELS,
}
OFF = {"slaveReadEnable": True, "messageDelayLevel": LEVELS}


@attrs.define(eq=False)
class Cluster:
    """broker-a with a master and a slave, and the master of broker-b."""

    group: Group
    other: Member
    master: Member
    slave: Member
    settings: dict[str, Any]

    async def route(self, topic: str = "T") -> TopicRoute:
        answer = await self.other.peer.connector.invoke(
            self.group.namesrv,
            request(Code.GET_ROUTEINFO_BY_TOPIC, GetRouteHeader(topic)),
            timeout=5,
        )
        assert answer.code == 0, answer.remark
        return TopicRoute.decode(bytes(answer.body))

    async def shown(self) -> tuple[dict[int, str], int]:
        """broker-a as clients see it: its members, and the permission of its queues."""
        route = await self.route()
        members = next(
            data.broker_addrs for data in route.broker_datas if data.broker_name == "broker-a"
        )
        return members, next(
            data.perm for data in route.queue_datas if data.broker_name == "broker-a"
        )


@asynccontextmanager
async def cluster(folder: Path, settings: dict[str, Any], **namesrv: Any) -> AsyncIterator[Cluster]:
    async with broker_group(folder, acting_master=True, **namesrv) as group:
        other = await group.start(0, folder="other", brokerName="broker-b")
        await other.peer.create_topic("T", 1)
        master = await group.start(0, "SYNC_MASTER", **settings)
        await master.peer.create_topic("T", 2)
        slave = await group.start(1, **settings)
        await eventually(lambda: stored_twice(master.peer))
        await eventually(lambda: knows_topic(slave.peer))
        yield Cluster(group, other, master, slave, settings)


async def stored_twice(peer: BrokerPeer) -> bool:
    return (await peer.send_raw("Other")).code == 0


async def knows_topic(peer: BrokerPeer, topic: str = "T") -> bool:
    return (await peer.pull_raw(topic)).code in (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    )


async def send_delayed(peer: BrokerPeer, level: int, *bodies: bytes, topic: str = "T") -> None:
    for body in bodies:
        await peer.send(
            topic,
            body,
            queue_id=1,
            properties={"DELAY": str(level), "UNIQ_KEY": body.hex().upper(), "TAGS": "Later"},
        )


async def delays(peer: BrokerPeer) -> dict[int, int]:
    return dict(
        DelayOffsetTable.decode(
            bytes((await peer.call(Code.GET_ALL_DELAY_OFFSET)).body)
        ).offset_table
    )


async def commits(peer: BrokerPeer) -> dict[int, int]:
    table = ConsumerOffsetTable.decode(bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body))
    return table.offset_table.get("T@G", {})


async def locked(peer: BrokerPeer, client_id: str) -> list[int]:
    asked = LockRequest(
        consumer_group="G",
        client_id=client_id,
        queues=[MessageQueue("T", "broker-a", number) for number in range(2)],
    )
    answer = await peer.call(Code.LOCK_BATCH_MQ, None, asked.encode())
    return sorted(queue.queue_id for queue in LockResponse.decode(bytes(answer.body)).queues)


@pytest.mark.feature("164a", "164b", "164c")
async def test_a_slave_acts_while_the_master_is_down_and_hands_over_when_it_is_back(
    tmp_path: Path,
) -> None:
    """Shown as read-only master; locks, commits and delayed messages go on; what it has done the
    master knows before anybody finds it again.

    A message whose topic was deleted stops nothing.
    """
    async with cluster(tmp_path, ON) as two:
        address = two.slave.ready.address
        assert (await two.shown())[0] == {0: two.master.ready.address, 1: address}
        await two.master.peer.create_topic("Gone")
        await send_delayed(two.master.peer, 2, b"nowhere", topic="Gone")
        assert (
            await two.master.peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("Gone"))
        ).code == 0
        await two.master.peer.create_topic("Last")
        await eventually(lambda: knows_topic(two.slave.peer, "Last"))
        await send_delayed(two.master.peer, 2, b"one", b"two", b"three")
        for number in range(7):
            await two.master.peer.send("T", b"%d" % number)
        await two.master.crash()
        await eventually(lambda: shows(two, {0: address}, 4))
        assert await locked(two.slave.peer, "first") == [0, 1]
        assert await locked(two.slave.peer, "second") == []
        await two.slave.peer.commit("G", "T", 0, 7)
        assert (await two.slave.peer.send_raw("T")).code == ResponseCode.SYSTEM_BUSY
        assert await two.other.peer.next_bodies("T", 3) == [b"one", b"two", b"three"]
        first = (await two.other.peer.pull("T")).messages[0]
        assert (first.queue_id, first.properties["UNIQ_KEY"], first.tag) == (
            0,
            b"one".hex().upper(),
            "Later",
        )
        assert {"DELAY", "REAL_TOPIC", "REAL_QID"} & first.properties.keys() == set()
        await eventually(lambda: delivered(two.slave.peer, {2: 4}))

        master = await two.group.start(0, "SYNC_MASTER", **ON)
        assert await delays(master.peer) == {2: 4}
        assert await commits(master.peer) == {0: 7}
        await eventually(lambda: shows(two, {0: master.ready.address, 1: address}, 6))
        await eventually(lambda: stored_twice(master.peer))
        await send_delayed(master.peer, 1, b"four")
        assert await master.peer.next_bodies("T", 1, queue_id=1) == [b"four"]
        assert len(await two.other.peer.all_bodies("T", 1)) == 3


async def shows(two: Cluster, members: dict[int, str], perm: int) -> bool:
    return await two.shown() == (members, perm)


async def delivered(peer: BrokerPeer, wanted: dict[int, int]) -> bool:
    return await delays(peer) == wanted


@in_virtual_time
async def test_open_transactions_go_to_another_master(tmp_path: Path) -> None:
    """Its producers are asked there; the own master finds them done when it is back."""
    settings = {**ON, "transactionTimeOut": 500, "transactionCheckInterval": 500}
    half = {"TRAN_MSG": "true", "PGROUP": "P"}
    async with cluster(tmp_path, settings) as two:
        for number in range(3):
            await two.master.peer.send(
                "T", b"%d" % number, properties={**half, "UNIQ_KEY": f"{number:032}"}
            )
        ended = (await two.master.peer.pull(HALF_TOPIC)).messages[1]
        await two.master.peer.call(Code.END_TRANSACTION, committing(ended))
        await two.master.crash()
        refused = await two.slave.peer.call(Code.END_TRANSACTION, committing(ended))
        assert refused.code == ResponseCode.SLAVE_NOT_AVAILABLE
        await eventually(lambda: has_halves(two.other.peer, [b"0", b"2"]))
        moved = (await two.other.peer.pull(HALF_TOPIC)).messages[0]
        assert moved.properties["PGROUP"] == "P"
        answer = await two.other.peer.call(Code.END_TRANSACTION, committing(moved))
        assert answer.code == 0, answer.remark
        assert await two.other.peer.next_bodies("T", 1) == [b"0"]

        await eventually(lambda: passed_halves(two.slave.peer, 3))
        master = await two.group.start(0, "SYNC_MASTER", **settings)
        await master.peer.heartbeat(producers=("P",))
        await trio.sleep(1.5)
        assert master.peer.notices == []
        assert await passed_halves(master.peer, 3)


def committing(half: StoredMessage) -> EndTransactionHeader:
    return EndTransactionHeader("P", half.queue_offset, half.log_offset, COMMIT, half.message_id)


async def has_halves(peer: BrokerPeer, bodies: list[bytes]) -> bool:
    found = (await peer.pull(HALF_TOPIC)).messages
    return [one.body for one in found if "TRANSACTION_CHECK_TIMES" not in one.properties] == bodies


async def passed_halves(peer: BrokerPeer, count: int) -> bool:
    answer = await peer.call(Code.GET_ALL_CONSUMER_OFFSET)
    table = ConsumerOffsetTable.decode(bytes(answer.body)).offset_table
    return table.get(f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS", {}).get(0) == count


@pytest.mark.feature("164c")
async def test_timed_messages_go_to_another_master(tmp_path: Path) -> None:
    """The master that is back leaves out what the slave has delivered, and delivers the rest."""
    settings = {**ON, "recallMessageEnable": True}

    async def send_timed(body: bytes, delay_ms: int) -> str:
        answer = await two.master.peer.send_raw(
            "T", body, properties={"UNIQ_KEY": body.hex(), "TIMER_DELAY_MS": str(delay_ms)}
        )
        return answer.header(SendMessageResponseHeader).recall_handle or ""

    async with cluster(tmp_path, settings) as two:
        await send_timed(b"early", 1_500)
        await send_timed(b"late", 9_000)
        handle = await send_timed(b"back", 1_600)
        answer = await two.master.peer.call(Code.RECALL_MESSAGE, RecallMessageHeader("T", handle))
        assert answer.code == 0, answer.remark
        await two.master.crash()
        assert await two.other.peer.next_bodies("T", 1) == [b"early"]
        found = (await two.other.peer.pull("T")).messages
        assert [one.body for one in found] == [b"early"]
        assert found[0].store_timestamp >= int(found[0].properties["TIMER_DELIVER_MS"])
        await trio.sleep(1.1)  # until the second of "early" is over

        master = await two.group.start(0, "SYNC_MASTER", **settings)
        with trio.fail_after(12):
            while not (found := (await master.peer.pull("T", hold_ms=3_000)).messages):
                pass
        assert [one.body for one in found] == [b"late"]
        assert len(await two.other.peer.all_bodies("T", 1)) == 1


@in_virtual_time
async def test_with_the_option_off_nothing_of_it_happens(tmp_path: Path) -> None:
    """No master in the route, no delivery; 905 and 906 are unknown; the master delivers when it is
    back.
    """
    async with cluster(tmp_path, OFF) as two:
        await send_delayed(two.master.peer, 2, b"late")
        await two.master.crash()
        await eventually(lambda: shows(two, {1: two.slave.ready.address}, 6))
        for code, header in (
            (Code.NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChangeHeader(1)),
            (
                Code.EXCHANGE_BROKER_HA_INFO,
                ExchangeHaAddressHeader("127.0.0.1:1", 0, "127.0.0.1:2"),
            ),
        ):
            assert (
                await two.slave.peer.call(code, header)
            ).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await trio.sleep(4.5)  # the message is due
        assert await delays(two.slave.peer) == {}
        assert (await two.other.peer.pull("T")).messages == []
        master = await two.group.start(0, "SYNC_MASTER", **OFF)
        assert await master.peer.next_bodies("T", 1, queue_id=1) == [b"late"]


async def test_without_another_master_delayed_messages_wait_for_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, ON) as two:
        await two.other.stop()
        await send_delayed(two.master.peer, 2, b"patient")
        await two.master.crash()
        await eventually(lambda: "must wait until this group has its master again" in caplog.text)
        master = await two.group.start(0, "SYNC_MASTER", **ON)
        assert await master.peer.next_bodies("T", 1, queue_id=1) == [b"patient"]


@pytest.mark.feature("164a")
async def test_the_next_slave_acts_when_the_acting_one_is_gone(tmp_path: Path) -> None:
    """The slave with the smallest id acts; name servers that notify say so at once."""
    quiet = {**ON, "syncBrokerMemberGroupPeriod": 600_000}
    async with cluster(tmp_path, quiet, notify_min_broker_id=True) as two:
        third = await two.group.start(2, **quiet)
        await eventually(lambda: following(third.peer))
        await send_delayed(two.master.peer, 2, b"third time")
        await eventually(lambda: same_end(two.master.peer, third.peer))
        await two.master.crash()
        await two.slave.crash()
        await eventually(lambda: shows(two, {0: third.ready.address}, 4))
        assert await two.other.peer.next_bodies("T", 1) == [b"third time"]


async def following(peer: BrokerPeer) -> bool:
    return await knows_topic(peer)


async def same_end(one: BrokerPeer, other: BrokerPeer) -> bool:
    return await end_of(one) == await end_of(other)


async def end_of(peer: BrokerPeer) -> Any:
    return (
        (await peer.call(Code.GET_MAX_OFFSET, GetMaxOffsetHeader("SCHEDULE_TOPIC_XXXX", 1)))
        .header(OffsetResponseHeader)
        .offset
    )


QUICK = ConsumerSettings(
    error_delay=0.05,
    rebalance_retry=0.05,
    lock_retry=0.05,
    lock_interval=0.2,
    suspend_queue=0.05,
    offset_interval=0.2,
    pull_batch=2,
    cached_messages_max=4,
    client=ClientSettings(route_interval=0.3, heartbeat_interval=0.3),
)


@pytest.mark.feature("164b", "164c")
async def test_our_ordered_consumer_goes_on_at_the_slave_and_returns(tmp_path: Path) -> None:
    """Also the locks: the slave gives the group's queues to this consumer only."""
    async with cluster(tmp_path, ON) as two:
        for number in range(40):
            await two.master.peer.send("T", b"%d" % number, queue_id=number % 2)
        got: list[int] = []
        gate = trio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if len(got) >= 6:
                await gate.wait()
            got.append(int(message.body))

        consumer = PushConsumer(
            two.group.namesrv,
            group="G",
            subscriptions="T",
            consume_from="first",
            handler=handle,
            ordered=True,
            settings=QUICK,
        )
        async with consumer:
            await eventually(lambda: len(got) >= 6)
            await two.master.crash()
            await eventually(lambda: shows(two, {0: two.slave.ready.address}, 4))
            await eventually(lambda: owned(two.slave.peer))
            gate.set()
            await eventually(lambda: set(got) == set(range(40)))
            firsts = list(dict.fromkeys(got))
            assert [[number for number in firsts if number % 2 == queue] for queue in (0, 1)] == [
                list(range(0, 40, 2)),
                list(range(1, 40, 2)),
            ]
            await eventually(lambda: committed(two.slave.peer, {0: 20, 1: 20}))
            master = await two.group.start(0, "SYNC_MASTER", **ON)
            assert await commits(master.peer) == {0: 20, 1: 20}
            await eventually(lambda: stored_twice(master.peer))
            await master.peer.send("T", b"40", queue_id=0)
            await eventually(lambda: 40 in got)
            assert len(got) < 60


async def owned(peer: BrokerPeer) -> bool:
    """Return whether another client gets no lock; it releases any lock that it gets."""
    if not (got := await locked(peer, "another")):
        return True
    asked = LockRequest(
        consumer_group="G",
        client_id="another",
        queues=[MessageQueue("T", "broker-a", number) for number in got],
    )
    await peer.call(Code.UNLOCK_BATCH_MQ, None, asked.encode())
    return False


async def committed(peer: BrokerPeer, wanted: dict[int, int]) -> bool:
    return await commits(peer) == wanted


async def test_a_master_says_where_it_is_and_who_is_in_its_group(tmp_path: Path) -> None:
    async with cluster(tmp_path, ON) as two:
        answer = (
            await two.master.peer.call(Code.EXCHANGE_BROKER_HA_INFO, ExchangeHaAddressHeader())
        ).header(ExchangeHaAddressHeader)
        assert answer.master_address == two.master.ready.address
        assert (answer.master_ha_address or "").startswith("127.0.0.1:")
        answer = (
            await two.slave.peer.call(Code.EXCHANGE_BROKER_HA_INFO, ExchangeHaAddressHeader())
        ).header(ExchangeHaAddressHeader)
        assert answer.master_address is None
        members = await two.slave.peer.connector.invoke(
            two.group.namesrv,
            request(Code.GET_BROKER_MEMBER_GROUP, BrokerMembersHeader("TestCluster", "broker-a")),
            timeout=5,
        )
        assert two.slave.ready.address in bytes(members.body).decode()


@in_virtual_time
async def test_a_slave_whose_log_has_parted_serves_nothing_and_acts_for_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its offsets are those of other messages; a restart while the master is down knows it, too."""
    async with broker_group(tmp_path, acting_master=True) as group:
        early = await group.start(0, folder="slave", **ON)
        await early.peer.create_topic("T", 1)
        await early.peer.send("T", b"other")
        await early.stop()
        master = await group.start(0, **ON)
        await master.peer.create_topic("T", 1)
        for number in range(5):
            await master.peer.send("T", b"%d" % number)
        slave = await group.start(1, folder="slave", **ON)
        await eventually(lambda: "the logs have parted" in caplog.text)
        for turn in range(2):
            assert (await slave.peer.pull_raw("T")).code == ResponseCode.SYSTEM_BUSY
            header = UpdateConsumerOffsetHeader("G", "T", 0, 1)
            answer = await slave.peer.call(Code.UPDATE_CONSUMER_OFFSET, header)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            if not turn:
                await master.crash()
                await slave.stop()
                slave = await group.start(1, folder="slave", **ON)
        await trio.sleep(1.5)
        assert (await slave.peer.pull_raw("T")).code == ResponseCode.SYSTEM_BUSY, "it acts"
