"""Whole brokers as master and slave, through sockets only: answers to sends, what a slave serves,
which tables it has.
"""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, running_broker
from processes import free_port
from replicated_brokers import broker_group, eventually, log_bytes

from triomq.remoting.protocol.bodies.cluster import ClusterTable, HaStatus
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
)
from triomq.remoting.protocol.headers.topic import DeleteGroupHeader, DeleteTopicHeader
from triomq.remoting.server.listen import AddressInUse

READABLE = {"slaveReadEnable": True}


async def offsets_of(peer: BrokerPeer, topic: str, queue_id: int = 0) -> tuple[int, int]:
    """Return the (smallest, next) offset of a queue, as admin tools ask for them."""
    low = await peer.call(Code.GET_MIN_OFFSET, GetMinOffsetHeader(topic, queue_id))
    high = await peer.call(Code.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue_id))
    return low.header(OffsetResponseHeader).offset, high.header(OffsetResponseHeader).offset


@pytest.mark.feature("56a", "58a")
async def test_a_synchronous_master_and_its_slave(tmp_path: Path) -> None:
    """Without a slave a message is stored and answered SLAVE_NOT_AVAILABLE (11). With the slave the
    answer is OK, and the slave's log has the message. When the slave is gone, the answer is 11
    again.
    """
    async with broker_group(tmp_path) as group:
        master = await group.start(0, "SYNC_MASTER")
        await master.peer.create_topic("T", 1)
        answer = await master.peer.send_raw("T", b"alone")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        slave = await group.start(1)
        await eventually(lambda: b"alone" in log_bytes(slave.root))

        async def acknowledged() -> bool:
            return (await ha_status(master.peer)).in_sync_slave_count == 1

        await eventually(acknowledged)
        for number in range(20):
            await master.peer.send("T", b"together-%d" % number)
            assert b"together-%d" % number in log_bytes(slave.root)
        assert log_bytes(slave.root) == log_bytes(master.root)
        assert (await slave.peer.send_raw("T")).code == ResponseCode.SYSTEM_BUSY
        await slave.stop()
        assert (
            await master.peer.send_raw("T", b"alone again")
        ).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert (
            await master.peer.send_raw("T", b"no wait", properties={"WAIT": "false"})
        ).code == ResponseCode.SUCCESS
        assert len(await master.peer.next_bodies("T", 23)) == 23


@pytest.mark.feature("57a", "57b")
async def test_an_asynchronous_master_waits_for_no_slave(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        master = await group.start(0)
        await master.peer.create_topic("T", 1)
        for number in range(10):
            await master.peer.send("T", b"m%d" % number)
        assert (await ha_status(master.peer)).connections == []
        slave = await group.start(1, **READABLE)
        await eventually(lambda: log_bytes(slave.root) == log_bytes(master.root))

        async def shrunk() -> bool:
            return [state.diff for state in (await ha_status(master.peer)).connections] == [0]

        await eventually(shrunk)
        status = await ha_status(master.peer)
        (connection,) = status.connections
        end = status.master_log_max_offset
        assert (
            status.master,
            status.in_sync_slave_count,
            connection.slave_ack_offset,
            connection.transfer_from,
        ) == (True, 1, end, end)
        theirs = await ha_status(slave.peer)
        assert (theirs.master, theirs.client.max_offset) == (False, end)
        assert (theirs.client.master_address or "").startswith("127.0.0.1:")


async def ha_status(peer: BrokerPeer) -> HaStatus:
    return HaStatus.decode(bytes((await peer.call(Code.GET_BROKER_HA_STATUS)).body))


async def test_java_s_single_replica_and_too_few_in_sync(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        master = await group.start(0, "SYNC_MASTER", inSyncReplicas=1)
        assert (await master.peer.send_raw("T")).code == ResponseCode.SUCCESS
        await master.stop()
        master = await group.start(0, "SYNC_MASTER", minInSyncReplicas=2)
        refused = await master.peer.send_raw("T")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (
            refused.remark
            == "in-sync replicas not enough (1 in sync, the master included, minInSyncReplicas=2)"
        )
        assert await offsets_of(master.peer, "T") == (0, 1)


async def test_tables_are_copied_at_once_and_deleted_topics_begin_anew(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        master = await group.start(0)
        slave = await group.start(1, **READABLE)

        async def slave_topics() -> dict[str, object]:
            answer = await slave.peer.call(Code.GET_ALL_TOPIC_CONFIG)
            return dict(TopicTable.decode(bytes(answer.body)).topic_config_table)

        async def has(topic: str, wanted: bool) -> bool:
            return (topic in await slave_topics()) is wanted

        await master.peer.create_topic("T", 3)
        await master.peer.send("T", b"old")
        await eventually(lambda: has("T", True))
        theirs = TopicTable.decode(bytes((await master.peer.call(Code.GET_ALL_TOPIC_CONFIG)).body))
        ours = TopicTable.decode(bytes((await slave.peer.call(Code.GET_ALL_TOPIC_CONFIG)).body))
        assert (ours.topic_config_table, ours.data_version) == (
            theirs.topic_config_table,
            theirs.data_version,
        )
        await master.peer.heartbeat(group="G", subscriptions={"T": "*"})
        await master.peer.commit("G", "T", 0, 1)

        async def committed() -> bool:
            table = ConsumerOffsetTable.decode(
                bytes((await slave.peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body)
            )
            return table.offset_table.get("T@G", {}).get(0) == 1

        await eventually(committed)
        await master.peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))
        await eventually(lambda: has("T", False))
        assert await offsets_of(slave.peer, "T") == (0, 0)
        await master.peer.create_topic("T", 3)
        await master.peer.send("T", b"new")
        await eventually(lambda: has("T", True))

        async def same_offsets() -> bool:
            return await offsets_of(slave.peer, "T") == await offsets_of(master.peer, "T") == (0, 1)

        await eventually(same_offsets)
        assert (await slave.peer.pull("T")).bodies == [b"new"]


@pytest.mark.feature("163a", "163b", "163c")
async def test_what_changes_on_the_master_is_soon_on_its_slave(tmp_path: Path) -> None:
    """A topic, a group and an offset are created, changed and (topic, group) deleted; delayed
    messages make progress.
    """
    async with broker_group(tmp_path) as group:
        master = await group.start(0, messageDelayLevel="1s")
        slave = await group.start(1)

        async def topic(peer: BrokerPeer) -> object:
            return TopicTable.decode(
                bytes((await peer.call(Code.GET_ALL_TOPIC_CONFIG)).body)
            ).topic_config_table.get("T")

        async def consumers(peer: BrokerPeer) -> object:
            return SubscriptionGroupTable.decode(
                bytes((await peer.call(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
            ).subscription_group_table.get("G")

        async def offset(peer: BrokerPeer) -> object:
            return (
                ConsumerOffsetTable.decode(
                    bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body)
                )
                .offset_table.get("T@G", {})
                .get(0)
            )

        async def delays(peer: BrokerPeer) -> object:
            return DelayOffsetTable.decode(
                bytes((await peer.call(Code.GET_ALL_DELAY_OFFSET)).body)
            ).offset_table

        async def same(what: Callable[[BrokerPeer], Awaitable[object]], wanted: object) -> bool:
            found = await what(slave.peer)
            return found == wanted and found == await what(master.peer)

        for queues in (3, 5):
            await master.peer.create_topic("T", queues)
            wanted = await topic(master.peer)
            assert getattr(wanted, "read_queue_count", 0) == queues
            await eventually(partial(same, topic, wanted))
        for tries in (3, 4):
            await master.peer.call(
                Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                None,
                SubscriptionGroupConfig(group_name="G", retry_max_times=tries).encode(),
            )
            wanted = await consumers(master.peer)
            assert getattr(wanted, "retry_max_times", 0) == tries
            await eventually(partial(same, consumers, wanted))
        for number in range(7):
            await master.peer.send("T", b"%d" % number)
        await master.peer.commit("G", "T", 0, 7)
        await master.peer.send("T", b"later", properties={"DELAY": "1"})
        await eventually(partial(same, offset, 7))
        await eventually(partial(same, delays, {1: 1}))
        await master.peer.call(Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("G"))
        await eventually(partial(same, consumers, None))
        await master.peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))
        await eventually(partial(same, topic, None))


@pytest.mark.feature("60a", "61b")
async def test_a_slave_serves_while_the_master_is_away_and_sends_consumers_back(
    tmp_path: Path,
) -> None:
    """Near the end of the log, with a live master: consumers are sent there (0) at once. Without
    the master: messages, long polls, commits; the commits reach the master when it is back.
    """
    async with broker_group(tmp_path) as group:
        master = await group.start(0, "SYNC_MASTER", **READABLE)
        slave = await group.start(1, **READABLE)
        await master.peer.create_topic("T", 1)
        await eventually(lambda: sent_ok(master.peer))
        count = (await offsets_of(master.peer, "T"))[1]

        async def readable() -> bool:
            return (await slave.peer.pull_raw("T")).code == ResponseCode.SUCCESS

        await eventually(readable)
        pulled = await slave.peer.pull("T")
        assert (pulled.code, pulled.header.suggested_broker_id, len(pulled.messages)) == (
            0,
            0,
            count,
        )
        pulled = await slave.peer.pull("T", offset=count, hold_ms=30_000)
        assert (
            pulled.code,
            pulled.header.suggested_broker_id,
            pulled.header.next_begin_offset,
        ) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 0, count)
        pulled = await slave.peer.pull("T", offset=count + 50)
        assert (pulled.code, pulled.header.next_begin_offset) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            count + 50,
        )
        await master.stop()

        async def alone() -> bool:
            return (await slave.peer.pull("T", offset=count)).code == ResponseCode.PULL_NOT_FOUND

        await eventually(alone)
        pulled = await slave.peer.pull("T", offset=count + 50)
        assert (pulled.code, pulled.header.next_begin_offset) == (
            ResponseCode.PULL_NOT_FOUND,
            count + 50,
        )
        await slave.peer.commit("G", "T", 0, 1)
        async with trio.open_nursery() as nursery:
            codes: list[int] = []

            async def hold() -> None:
                codes.append((await slave.peer.pull("T", offset=count, hold_ms=25_000)).code)

            nursery.start_soon(hold)
            master = await group.start(0, "SYNC_MASTER", **READABLE)
            await eventually(lambda: sent_ok(master.peer))
        assert codes == [ResponseCode.SUCCESS]

        async def committed() -> bool:
            table = ConsumerOffsetTable.decode(
                bytes((await master.peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body)
            )
            return table.offset_table.get("T@G", {}).get(0) == 1

        await eventually(committed)


async def sent_ok(peer: BrokerPeer) -> bool:
    return (await peer.send_raw("T")).code == ResponseCode.SUCCESS


async def test_a_slave_without_slave_reads_refuses_pulls(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        slave = await group.start(1)
        answer = await slave.peer.pull_raw("T")
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "[REJECTREQUEST]" in (answer.remark or "")


@pytest.mark.feature("12a", "12b")
async def test_two_slaves_follow_the_master_of_their_name(tmp_path: Path) -> None:
    async with broker_group(tmp_path) as group:
        master = await group.start(0, "SYNC_MASTER", inSyncReplicas=3)
        slaves = [await group.start(broker_id) for broker_id in (1, 2)]
        answer = await master.peer.connector.invoke(
            group.namesrv, request(Code.GET_BROKER_CLUSTER_INFO), timeout=5
        )
        (members,) = ClusterTable.decode(bytes(answer.body)).broker_addr_table.values()
        assert members.broker_addrs == {
            0: master.ready.address,
            1: slaves[0].ready.address,
            2: slaves[1].ready.address,
        }
        await master.peer.create_topic("T", 1)
        await eventually(lambda: sent_ok(master.peer))
        await master.peer.send("T", b"on three machines")
        for slave in slaves:
            assert b"on three machines" in log_bytes(slave.root)
        assert (await ha_status(master.peer)).in_sync_slave_count == 2
        await slaves[0].stop()
        assert (await master.peer.send_raw("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_an_ha_port_in_use_stops_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.RaisesGroup(
            pytest.RaisesExc(
                AddressInUse,
                match=f"cannot listen on 127.0.0.1:{port}: the port is in use; .* set haListenPort",
            ),
            flatten_subgroups=True,
        ):
            async with running_broker(tmp_path, haListenPort=port):
                pass


async def test_a_second_broker_with_the_same_ports_names_the_listen_port(tmp_path: Path) -> None:
    """Another haListenPort would not help it: listenPort changes both."""
    port = free_port()
    async with running_broker(tmp_path / "first", listenPort=port):
        with pytest.RaisesGroup(
            pytest.RaisesExc(AddressInUse, match="set listenPort to another port"),
            flatten_subgroups=True,
        ):
            async with running_broker(tmp_path / "second", listenPort=port):
                raise AssertionError("it started")


@pytest.mark.feature("57b")
async def test_the_monitor_shows_the_slaves(tmp_path: Path) -> None:
    ports = free_port(), free_port()

    def fetch(port: int, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return str(answer.read(), "utf-8")

    async def page(port: int, path: str) -> str:
        return await trio.to_thread.run_sync(fetch, port, path)

    async with broker_group(tmp_path) as group:
        master = await group.start(0, "SYNC_MASTER", monitorPort=ports[0])
        assert re.search(
            r"^triomq_replication_slaves\{.*\} 0$", await page(ports[0], "/metrics"), re.MULTILINE
        )
        await group.start(1, monitorPort=ports[1])
        await eventually(lambda: sent_ok(master.peer))
        found = await page(ports[0], "/metrics")
        assert re.search(r"^triomq_replication_slaves\{.*\} 1$", found, re.MULTILINE)
        assert re.search(
            r"^triomq_replication_behind_bytes\{.*slave=\"127.0.0.1:\d+\".*\} 0$",
            found,
            re.MULTILINE,
        )
        assert [
            slave["behindBytes"]
            for slave in json.loads(await page(ports[0], "/status"))["slaves"].values()
        ] == [0]
        assert re.search(
            r"^triomq_replication_following\{.*\} 1$",
            await page(ports[1], "/metrics"),
            re.MULTILINE,
        )
        status = json.loads(await page(ports[1], "/status"))
        assert (status["following"], status["brokerRole"], status["maxOffset"] > 0) == (
            True,
            "SLAVE",
            True,
        )
