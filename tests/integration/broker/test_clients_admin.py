"""Groups, offsets, locks, topics, configuration and figures of a broker, over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.groups import (
    ConsumerConnection,
    ConsumerIds,
    GroupNames,
    ProducerConnection,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from triomq.remoting.protocol.bodies.heartbeat import (
    BROADCASTING,
    CheckClientBody,
    SubscriptionData,
)
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.offsets import (
    BrokerConsumeStats,
    BrokerStats,
    ConsumerOffsetTable,
    ConsumeStats,
    TopicStats,
)
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicConfig, TopicNames, TopicTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.admin import (
    BrokerConsumeStatsHeader,
    BrokerStatsHeader,
    ConsumeStatsHeader,
)
from triomq.remoting.protocol.headers.client import (
    ConsumerGroupHeader,
    ProducerConnectionHeader,
    UnregisterClientHeader,
)
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    StoreTimeResponseHeader,
)
from triomq.remoting.protocol.headers.query import (
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
)
from triomq.remoting.protocol.headers.topic import (
    AllGroupsHeader,
    DeleteGroupHeader,
    DeleteTopicHeader,
    GroupHeader,
    TopicHeader,
)
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.record_reader import decode_records


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.001)


async def member_ids(peer: BrokerPeer, group: str) -> list[str] | None:
    answer = await peer.call(Code.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(group))
    return ConsumerIds.decode(bytes(answer.body)).consumer_ids if answer.code == 0 else None


# Clients


@pytest.mark.feature("14c", "14d")
async def test_members_of_a_group_and_the_notices_that_they_get(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as admin, peer_of(ready) as first:
        assert await member_ids(admin, "G") is None
        answer = await first.heartbeat("one", group="G", subscriptions={"T": "*"})
        assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        assert await member_ids(admin, "G") == ["one"]
        await until(lambda: len(first.notices) == 1)
        async with peer_of(ready) as second:
            await second.heartbeat("two", group="G", subscriptions={"T": "*"})
            assert sorted(await member_ids(admin, "G") or ()) == ["one", "two"]
            await until(lambda: len(first.notices) == 2 and len(second.notices) == 1)
            assert first.notices[-1].code == Code.NOTIFY_CONSUMER_IDS_CHANGED
            assert first.notices[-1].ext == {"consumerGroup": "G"}
            assert first.notices[-1].is_oneway
            await first.heartbeat("one", group="G", subscriptions={"T": "*"})
            left = await second.call(
                Code.UNREGISTER_CLIENT, UnregisterClientHeader("two", consumer_group="G")
            )
            assert left.code == 0
            await until(lambda: len(first.notices) == 3)
            assert await member_ids(admin, "G") == ["one"]
            await second.heartbeat("two", group="G", subscriptions={"T": "*"})
            await until(lambda: len(first.notices) == 4)
        await until(lambda: len(first.notices) == 5)
        assert await member_ids(admin, "G") == ["one"], "its connection is closed"


async def test_broadcasting_groups_are_left_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.heartbeat("one", group="B", message_model=BROADCASTING)
        await peer.heartbeat("one", group="G")
        await until(lambda: len(peer.notices) == 1)
        assert (peer.notices[0].ext or {})["consumerGroup"] == "G"


@pytest.mark.feature("14d", "25a", "25b")
async def test_a_silent_client_is_gone(tmp_path: Path) -> None:
    """Unit tests control the clock of the expiry; here the connection closes because the client
    sends nothing.
    """
    async with (
        running_broker(tmp_path, serverChannelMaxIdleTimeSeconds=1) as ready,
        peer_of(ready) as silent,
    ):
        await silent.heartbeat("one", group="G")
        with trio.fail_after(60):
            while True:
                async with peer_of(ready) as admin:
                    if await member_ids(admin, "G") is None:
                        break
                await trio.sleep(0.1)


@pytest.mark.feature("14c")
async def test_connections_of_producers_and_consumers(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        offline = await peer.call(Code.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader("G"))
        assert (offline.code, offline.remark) == (206, "the consumer group[G] not online")
        missing = await peer.call(Code.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionHeader("P"))
        assert (missing.code, missing.remark) == (1, "the producer group[P] not exist")
        await peer.heartbeat("one", group="G", subscriptions={"T": "A || B"}, producers=("P",))
        consumers = ConsumerConnection.decode(
            bytes(
                (await peer.call(Code.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader("G"))).body
            )
        )
        (connection,) = consumers.connections
        assert (connection.client_id, connection.language, connection.version) == (
            "one",
            "PYTHON",
            479,
        )
        assert connection.client_addr.startswith("127.0.0.1:")
        assert consumers.subscriptions["T"].tags == {"A", "B"}
        assert (consumers.consume_type, consumers.message_model) == (
            "CONSUME_PASSIVELY",
            "CLUSTERING",
        )
        producers = ProducerConnection.decode(
            bytes(
                (
                    await peer.call(
                        Code.GET_PRODUCER_CONNECTION_LIST, ProducerConnectionHeader("P")
                    )
                ).body
            )
        )
        assert [one.client_id for one in producers.connections] == ["one"]


async def test_a_heartbeat_makes_group_and_retry_topic_and_skips_what_it_may_not_make(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.heartbeat("one", group="G")
        retry = TopicConfig.decode(
            bytes((await peer.call(Code.GET_TOPIC_CONFIG, TopicHeader("%RETRY%G"))).body)
        )
        assert (retry.read_queue_count, retry.write_queue_count, retry.perm) == (1, 1, 6)
    async with (
        running_broker(tmp_path / "closed", autoCreateSubscriptionGroup=False) as ready,
        peer_of(ready) as peer,
    ):
        await peer.heartbeat("one", group="G")
        assert await member_ids(peer, "G") is None
        assert (await peer.call(Code.GET_TOPIC_CONFIG, TopicHeader("%RETRY%G"))).code == 17


async def test_only_tag_filters_are_possible(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        for kind, code in (("TAG", 0), ("SQL92", 1)):
            wanted = SubscriptionData(topic="T", sub_string="a > 1", expression_type=kind)
            body = CheckClientBody(client_id="c", group="G", subscription=wanted).encode()
            assert (await peer.call(Code.CHECK_CLIENT_CONFIG, body=body)).code == code


@pytest.mark.parametrize(
    "code", [Code.HEART_BEAT, Code.LOCK_BATCH_MQ, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP]
)
@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"clientID":null}', b"\xff" * 100])
async def test_bodies_that_cannot_be_read(tmp_path: Path, code: int, body: bytes) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        answer = await peer.call(code, body=body)
        assert answer.code == 1
        assert answer.remark
        await peer.heartbeat("still", group="G")


# Offsets


def without_own(table: ConsumerOffsetTable) -> dict[str, dict[int, int]]:
    """Return the rows of consumers: the broker has one of its own."""
    rows = dict(table.offset_table)
    del rows["rmq_sys_wheel_timer@CID_RMQ_SYS_POP_POSITIONS"]
    return rows


async def test_offsets_are_kept_and_a_new_group_begins_at_0_on_a_young_queue(
    tmp_path: Path,
) -> None:
    async def query(peer: BrokerPeer, group: str, **more: bool) -> tuple[int, int | None]:
        answer = await peer.call(
            Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(group, "T", 0, **more)
        )
        return answer.code, answer.header(OffsetResponseHeader).offset if answer.code == 0 else None

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        assert await query(peer, "G") == (0, 0)
        for _ in range(7):
            await peer.send("T")
        assert await query(peer, "G") == (0, 0)
        assert await query(peer, "G", set_zero_if_not_found=False) == (22, None)
        assert (await peer.commit("G", "T", 0, 7)).code == 0
        assert await query(peer, "G") == (0, 7)
        await peer.commit("G", "T", 0, 3)
        assert await query(peer, "G") == (0, 3)
        await peer.commit("other", "T", 0, -1)
        assert await query(peer, "other") == (0, 0), "-1 means that nothing is known"
        unknown = await peer.commit("not legal!", "T", 0, 1)
        assert (unknown.code, unknown.remark) == (26, "Group not legal! not exist!")
        missing = await peer.commit("G", "Missing", 0, 1)
        assert (missing.code, missing.remark) == (17, "Topic Missing not exist!")
        table = ConsumerOffsetTable.decode(
            bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body)
        )
        assert without_own(table) == {"T@G": {0: 3}, "T@other": {0: -1}}
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert await query(peer, "G") == (0, 3), "kept over an orderly stop"


async def test_where_queues_begin_and_end(tmp_path: Path) -> None:
    async def offset(peer: BrokerPeer, code: Code, header: object) -> int:
        return (await peer.call(code, header)).header(OffsetResponseHeader).offset

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        earliest = await peer.call(Code.GET_EARLIEST_MSG_STORETIME, GetMinOffsetHeader("T", 0))
        assert earliest.header(StoreTimeResponseHeader).timestamp == -1
        assert await offset(peer, Code.GET_MAX_OFFSET, GetMaxOffsetHeader("unknown", 9)) == 0
        times = []
        for _ in range(3):
            await peer.send("T")
            await trio.sleep(0.005)
            times.append((await peer.pull("T", 0, len(times))).messages[0].store_timestamp)
        assert await offset(peer, Code.GET_MAX_OFFSET, GetMaxOffsetHeader("T", 0)) == 3
        assert await offset(peer, Code.GET_MIN_OFFSET, GetMinOffsetHeader("T", 0)) == 0
        earliest = await peer.call(Code.GET_EARLIEST_MSG_STORETIME, GetMinOffsetHeader("T", 0))
        assert earliest.header(StoreTimeResponseHeader).timestamp == times[0]
        for timestamp, boundary, expected in (
            (times[1], None, 1),
            (times[1] - 1, "LOWER", 1),
            (0, "LOWER", 0),
            (times[1], "UPPER", 1),
        ):
            assert (
                await offset(
                    peer,
                    Code.SEARCH_OFFSET_BY_TIMESTAMP,
                    SearchOffsetHeader("T", 0, timestamp, boundary),
                )
                == expected
            )


# Messages by key and place


@pytest.mark.feature(46)
async def test_messages_are_found_by_key_by_unique_id_and_by_place(tmp_path: Path) -> None:
    async def by_key(peer: BrokerPeer, key: str, *, unique: bool = False) -> list[bytes]:
        header = QueryMessageHeader("T", key, 10, 0, 2**63 - 1, "K", unique)
        answer = await peer.call(Code.QUERY_MESSAGE, header)
        answer.header(QueryMessageResponseHeader)
        return (
            [message.body for message in decode_records(bytes(answer.body))]
            if answer.code == 0
            else []
        )

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        sent = [
            await peer.send(
                "T", b"%d" % n, properties={"UNIQ_KEY": f"{n:032X}", "KEYS": f"k{n} both"}
            )
            for n in range(3)
        ]
        assert await by_key(peer, "k1") == [b"1"]
        assert sorted(await by_key(peer, "both")) == [b"0", b"1", b"2"]
        assert await by_key(peer, f"{2:032X}", unique=True) == [b"2"]
        assert await by_key(peer, "missing") == []
        offset = decode_offset_message_id(sent[1].message_id)[2]
        answer = await peer.call(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        assert decode_records(bytes(answer.body))[0].body == b"1"
        missing = await peer.call(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset + 1))
        assert (missing.code, missing.remark) == (
            1,
            f"can not find message by the offset, {offset + 1}",
        )


# Locks


async def test_queue_locks(tmp_path: Path) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(2)]

    async def lock(peer: BrokerPeer, client: str) -> list[MessageQueue]:
        body = LockRequest(consumer_group="G", client_id=client, queues=queues).encode()
        return LockResponse.decode(
            bytes((await peer.call(Code.LOCK_BATCH_MQ, body=body)).body)
        ).queues

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        assert await lock(peer, "a") == queues
        assert await lock(peer, "b") == []
        await peer.send("%RETRY%G", b"given up in order", reconsume_times=1)
        assert (await peer.pull("%DLQ%G")).bodies == [b"given up in order"], (
            "an orderly group's message is dead at once"
        )
        body = LockRequest(consumer_group="G", client_id="a", queues=queues).encode()
        assert (await peer.call(Code.UNLOCK_BATCH_MQ, body=body)).code == 0
        assert await lock(peer, "b") == queues


# Topics and groups as things


async def consumers(peer: BrokerPeer, topic: str) -> list[str]:
    return GroupNames.decode(
        bytes((await peer.call(Code.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic))).body)
    ).group_list


async def test_topics_are_created_altered_described_and_deleted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        created = await peer.create_topic("T", 4, attributes="+message.type=FIFO")
        assert (created.code, created.remark) == (0, "not set any response code")
        assert (await peer.create_topic("T", 4, attributes="")).remark is None, "nothing changed"
        config = TopicConfig.decode(
            bytes((await peer.call(Code.GET_TOPIC_CONFIG, TopicHeader("T"))).body)
        )
        assert (config.read_queue_count, config.attributes) == (4, {"message.type": "FIFO"})
        await peer.create_topic("T", 2, perm=4)
        table = TopicTable.decode(bytes((await peer.call(Code.GET_ALL_TOPIC_CONFIG)).body))
        assert table.topic_config_table["T"].write_queue_count == 2
        assert table.topic_config_table["T"].perm == 4
        assert table.data_version.counter > 0
        assert (
            "TBW102"
            in TopicNames.decode(
                bytes((await peer.call(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)
            ).topic_list
        )
        await peer.create_topic("T", 4)
        await peer.send("T", b"gone")
        await peer.pull("T", group="G")
        await peer.commit("H", "T", 0, 1)
        assert sorted(await consumers(peer, "T")) == ["G", "H"]
        assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))).code == 0
        assert (await peer.call(Code.GET_TOPIC_CONFIG, TopicHeader("T"))).code == 17
        await peer.create_topic("T", 4)
        assert await consumers(peer, "T") == []
        assert (await peer.pull("T", group="new")).code == 19, "its messages are gone"
        assert (await peer.send("T", b"new")).queue_offset == 0
        assert await consumers(peer, "T") == ["new"]


@pytest.mark.parametrize(
    ("topic", "more", "code", "remark"),
    [
        ("no spaces", {}, 29, "contains illegal characters"),
        ("TBW102", {}, 29, "The topic[TBW102] is conflict with system topic."),
        ("TestCluster", {}, 29, "The topic[TestCluster] is conflict with system topic."),
        ("rmq_sys_x", {}, 29, "is conflict with system topic."),
        ("T", {"perm": 99}, 29, "permission 99"),
        ("T", {"queues": -1}, 29, "negative"),
        ("T", {"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
        ("T", {"attributes": "+colour=red"}, 1, "unsupported key: colour"),
        ("T", {"attributes": "colour"}, 1, "format is wrong"),
    ],
)
async def test_topics_that_cannot_be_created(
    tmp_path: Path, topic: str, more: dict[str, object], code: int, remark: str
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        answer = await peer.create_topic(topic, **more)  # type: ignore[arg-type]
        assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark
        assert (await peer.call(Code.GET_TOPIC_CONFIG, TopicHeader("T"))).code == 17


async def test_what_cannot_be_deleted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        for topic, code in ((" ", 29), ("TBW102", 29), ("never was", 0)):
            assert (
                await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader(topic))
            ).code == code


async def test_groups_are_created_described_and_deleted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        body = SubscriptionGroupConfig(group_name="G", retry_max_times=3).encode()
        assert (await peer.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        bad = SubscriptionGroupConfig(group_name="not legal!").encode()
        assert (await peer.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=bad)).code == 29
        odd = SubscriptionGroupConfig(group_name="G", attributes={"+x": "y"}).encode()
        assert (await peer.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=odd)).code == 1
        config = SubscriptionGroupConfig.decode(
            bytes((await peer.call(Code.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader("G"))).body)
        )
        assert config.retry_max_times == 3
        answer = await peer.call(
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, AllGroupsHeader(0, "", 2000)
        )
        table = SubscriptionGroupTable.decode(bytes(answer.body))
        assert "G" in table.subscription_group_table
        assert answer.ext == {"totalGroupNum": str(len(table.subscription_group_table))}
        await peer.create_topic("T")
        # 4.x has another name for the wish to forget the offsets, too.
        for asked in (
            DeleteGroupHeader("G"),
            DeleteGroupHeader("G", clean_offset=True),
            DeleteGroupHeader("G", remove_offset=True),
        ):
            assert (
                await peer.call(
                    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                    body=SubscriptionGroupConfig(group_name="G").encode(),
                )
            ).code == 0
            await peer.commit("G", "T", 0, 5)
            assert (await peer.call(Code.DELETE_SUBSCRIPTIONGROUP, asked)).code == 0
            left = without_own(
                ConsumerOffsetTable.decode(
                    bytes((await peer.call(Code.GET_ALL_CONSUMER_OFFSET)).body)
                )
            )
            assert left == ({} if asked.clean_offset or asked.remove_offset else {"T@G": {0: 5}})


# Figures


async def test_lag_of_groups_and_bounds_of_topics(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 2)
        for _ in range(5):
            await peer.send("T", queue_id=1)
        await peer.pull("T", 1, 0, count=3)
        await peer.commit("G", "T", 1, 2)
        stats = TopicStats.decode(
            bytes((await peer.call(Code.GET_TOPIC_STATS_INFO, TopicHeader("T"))).body)
        )
        assert {
            queue.queue_id: (row.min_offset, row.max_offset)
            for queue, row in stats.offset_table.items()
        } == {0: (0, 0), 1: (0, 5)}
        assert stats.offset_table[MessageQueue("T", "broker-a", 1)].last_update_timestamp > 0
        assert (await peer.call(Code.GET_TOPIC_STATS_INFO, TopicHeader("Missing"))).code == 17
        for header in (
            ConsumeStatsHeader("G"),
            ConsumeStatsHeader("G", "T"),
            ConsumeStatsHeader("G", None, "T;Missing"),
        ):
            lag = ConsumeStats.decode(bytes((await peer.call(Code.GET_CONSUME_STATS, header)).body))
            row = lag.offset_table[MessageQueue("T", "broker-a", 1)]
            assert (row.broker_offset, row.consumer_offset, row.pull_offset) == (5, 2, 3)
            assert row.last_timestamp > 0
        whole = BrokerConsumeStats.decode(
            bytes((await peer.call(Code.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsHeader())).body)
        )
        assert whole.broker_addr == f"127.0.0.1:{ready.port}"
        assert whole.total_diff == 3
        assert next(row["G"] for row in whole.consume_stats_list if "G" in row)
        await peer.commit("G", "T", 1, 5)  # without a pull, as after a restart of the broker
        lag = ConsumeStats.decode(
            bytes((await peer.call(Code.GET_CONSUME_STATS, ConsumeStatsHeader("G"))).body)
        )
        row = lag.offset_table[MessageQueue("T", "broker-a", 1)]
        assert (row.consumer_offset, row.pull_offset) == (5, 5), "what is committed has been pulled"
        await peer.heartbeat("one", group="G", subscriptions={"U": "*"})
        gone = ConsumeStats.decode(
            bytes((await peer.call(Code.GET_CONSUME_STATS, ConsumeStatsHeader("G"))).body)
        )
        assert gone.offset_table == {}, "no longer subscribed"


async def test_runtime_figures_have_every_key_that_tools_parse(tmp_path: Path) -> None:
    numbers = """
        putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal putMessageAverageSize
        putMessageEntireTimeMax getMessageEntireTimeMax
        sendThreadPoolQueueSize pullThreadPoolQueueSize
        sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
        sendThreadPoolQueueCapacity pageCacheLockTimeMills earliestMessageTimeStamp
        commitLogDiskRatio consumeQueueDiskRatio
        timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps
        msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
        msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow
        bootTimestamp commitLogMinOffset commitLogMaxOffset
        dispatchBehindBytes dispatchMaxBuffer putLatency99 putLatency999
        startAcceptSendRequestTimeStamp EndTransactionQueueSize
        EndTransactionThreadPoolQueueCapacity
    """.split()  # noqa: SIM905
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for _ in range(3):
            await peer.send("T")
        await peer.pull("T")
        table = KvTable.decode(bytes((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)).table
        for key in numbers:
            float(table[key])
        for key in (
            "putTps",
            "getFoundTps",
            "getMissTps",
            "getTotalTps",
            "getTransferredTps",
            "getTransferedTps",
        ):
            assert len([float(part) for part in table[key].split(" ")]) == 3
        assert table["brokerVersionDesc"].startswith("V5_")
        assert table["brokerActive"] == "true"
        assert table["putMessageTimesTotal"] == "3"
        assert table["msgGetTotalTodayNow"] == "3"
        assert int(table["earliestMessageTimeStamp"]) > 0
        assert table["runtime"].startswith("[ 0 days, 0 hours")
        missing = await peer.call(
            Code.VIEW_BROKER_STATS_DATA, BrokerStatsHeader("TOPIC_PUT_NUMS", "none")
        )
        assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <none> not exist")
        found = await peer.call(
            Code.VIEW_BROKER_STATS_DATA, BrokerStatsHeader("TOPIC_PUT_NUMS", "T")
        )
        assert BrokerStats.decode(bytes(found.body)).minute.sum >= 0


async def test_what_groups_have_done_with_is_counted_and_not_what_they_pull(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for _ in range(3):
            await peer.send_raw("T", queue_id=0)

        async def counts(name: str) -> bool:
            header = BrokerStatsHeader(name, "T@G")
            return (await peer.call(Code.VIEW_BROKER_STATS_DATA, header)).code == 0

        assert (await peer.pull_raw("T", group="G")).code == 0
        await peer.commit("G", "T", 0, 1)
        assert (await counts("GROUP_GET_NUMS"), await counts("GROUP_CONSUMED_NUMS")) == (
            True,
            False,
        ), "the first offset only says where the group begins"
        await peer.commit("G", "T", 0, 3)
        assert await counts("GROUP_CONSUMED_NUMS")
        await peer.call(Code.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("G", True))
        assert not await counts("GROUP_CONSUMED_NUMS"), "series of a deleted group end"
        assert not await counts("GROUP_GET_NUMS")
        assert (await peer.pull_raw("T", group="G")).code == 0
        assert await counts("GROUP_GET_NUMS"), "and begin again when it comes back"


async def test_configuration_over_the_wire(tmp_path: Path) -> None:
    async def config(peer: BrokerPeer) -> dict[str, str]:
        body = bytes((await peer.call(Code.GET_BROKER_CONFIG)).body).decode()
        return dict(
            line.split("=", 1) for line in body.splitlines() if line and not line.startswith("#")
        )

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        answer = await peer.call(Code.GET_BROKER_CONFIG)
        assert "counter" in (answer.ext or {})["version"]
        before = await config(peer)
        assert (before["brokerName"], before["autoCreateTopicEnable"]) == ("broker-a", "true")
        assert (
            await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=false\n")
        ).code == 0
        assert (await config(peer))["autoCreateTopicEnable"] == "false"
        assert (await peer.send_raw("New")).code == 17
        for body, code, remark in (
            (
                b"maxMessageSize=5\nautoCreateTopicEnable=true\n",
                1,
                "maxMessageSize: takes effect at a start only",
            ),
            (b"configBlackList=x\n", 16, "Can not update config in black list."),
            (b"brokerPermision=4\n", 1, "did you mean brokerPermission?"),
            (b"brokerPermission=77\n", 1, "brokerPermission=77"),
            (b"\xff\xfe", 1, "string2Properties error"),
            (b"serverCallbackExecutorThreads=4\n", 1, "ignored, no meaning here"),
        ):
            refused = await peer.call(Code.UPDATE_BROKER_CONFIG, body=body)
            assert (refused.code, remark in (refused.remark or "")) == (code, True), refused.remark
            assert ":1" not in (refused.remark or ""), "a request has no file and no line"
        assert (await config(peer))["autoCreateTopicEnable"] == "false", (
            "nothing of a refused update is applied"
        )
        await peer.create_topic("T")
        assert (await peer.call(Code.UPDATE_BROKER_CONFIG, body=b"brokerPermission=2\n")).code == 0
        unreadable = await peer.pull_raw("T")
        assert (unreadable.code, unreadable.remark) == (
            16,
            "the broker[127.0.0.1] pulling message is forbidden",
        )


async def test_unknown_and_unsupported_codes_get_code_3(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        for code in (9999, Code.ADD_BROKER, Code.POP_LITE_MESSAGE):
            answer = await peer.call(code)
            assert (answer.code, answer.remark) == (3, f" request type {int(code)} not supported")
