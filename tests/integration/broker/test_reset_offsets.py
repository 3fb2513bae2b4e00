"""Offsets that an operator moves, and what else the broker tells about groups, over real
sockets.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from brokers import BrokerPeer, peer_of, running_broker

from triomq.remoting.protocol.bodies.groups import GroupForbidden, GroupSubscription, ProducerTable
from triomq.remoting.protocol.bodies.heartbeat import BROADCASTING
from triomq.remoting.protocol.bodies.offsets import (
    ConsumeQueueEntries,
    ConsumeTimeSpans,
    CorrectionOffsets,
    QueueOffsets,
)
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.bodies.topics import TopicNames
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.admin import QueryConsumeQueueHeader
from triomq.remoting.protocol.headers.offset import (
    CloneGroupOffsetHeader,
    CorrectionOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    ResetOffsetHeader,
)
from triomq.remoting.protocol.headers.topic import (
    GroupForbiddenHeader,
    GroupHeader,
    GroupSubscriptionHeader,
    GroupTopicHeader,
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def fill(peer: BrokerPeer, topic: str, queue_id: int, count: int) -> None:
    for number in range(count):
        await peer.send(topic, b"%d" % number, queue_id=queue_id)


async def committed(peer: BrokerPeer, group: str, topic: str, queue_id: int) -> int:
    answer = await peer.call(
        Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(group, topic, queue_id)
    )
    return answer.header(OffsetResponseHeader).offset


async def reset(peer: BrokerPeer, timestamp: int, **more: object) -> tuple[Command, dict[int, int]]:
    header = ResetOffsetHeader(
        **{"group": "G", "topic": "T", "timestamp": timestamp, "force": True, **more}
    )  # type: ignore[arg-type]
    answer = await peer.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, header)
    table = QueueOffsets.decode(bytes(answer.body)).offset_table if answer.code == 0 else {}
    return answer, {queue.queue_id: offset for queue, offset in table.items()}


@pytest.mark.feature(93)
async def test_a_reset_by_time_reaches_the_consumer_at_its_next_pull(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as admin,
        peer_of(ready) as consumer,
    ):
        await admin.create_topic("T", queues=2)
        await fill(admin, "T", 0, 4)
        await trio.sleep(0.02)
        await fill(admin, "T", 0, 3)
        await fill(admin, "T", 1, 2)
        stored = [message.store_timestamp for message in (await admin.pull("T", 0)).messages]
        middle = stored[4]
        assert stored[3] + 1 < middle
        for timestamp in (stored[3] + 1, middle):  # the message of that very millisecond is in
            assert (await reset(admin, timestamp, queue_id=0))[1] == {0: 4}
        assert (await reset(admin, stored[3], queue_id=0))[1] == {0: stored.index(stored[3])}
        await consumer.heartbeat("one", group="G", subscriptions={"T": "*"})
        await consumer.commit("G", "T", 0, 7)
        answer, moved = await reset(admin, middle)
        assert (answer.code, moved) == (0, {0: 4, 1: 0})
        assert await committed(admin, "G", "T", 0) == 4

        ignored = await consumer.commit("G", "T", 0, 7)
        assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
        moved = await consumer.pull("T", 0, 7)
        assert (moved.code, moved.remark, moved.header.next_begin_offset) == (
            ResponseCode.PULL_OFFSET_MOVED,
            "OFFSET_RESET",
            4,
        )
        assert (await consumer.pull("T", 0, 4)).bodies == [b"0", b"1", b"2"]
        await consumer.commit("G", "T", 0, 5)
        assert await committed(admin, "G", "T", 0) == 5, (
            "after the first notice the consumer's commits count again"
        )
        # A pull that begins at the new offset anyway is told, too: its member may hold messages
        # before it.
        assert (await consumer.pull("T", 1, 0)).remark == "OFFSET_RESET"
        assert (await consumer.pull("T", 1, 0)).bodies == [b"0", b"1"]


async def test_a_held_pull_hears_of_a_reset_at_once(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as admin,
        peer_of(ready) as consumer,
    ):
        await admin.create_topic("T", queues=1)
        await fill(admin, "T", 0, 3)
        async with trio.open_nursery() as nursery:
            answers = []

            async def held() -> None:
                answers.append(await consumer.pull("T", 0, 3, hold_ms=20_000))

            nursery.start_soon(held)
            await trio.sleep(0.05)
            _, moved = await reset(admin, 0)
            assert moved == {0: 0}
            with trio.move_on_after(5):
                while not answers:
                    await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
        assert [(answer.code, answer.header.next_begin_offset) for answer in answers] == [
            (ResponseCode.PULL_OFFSET_MOVED, 0)
        ]


async def test_resets_to_an_offset_and_what_cannot_be(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as admin:
        await admin.create_topic("T", queues=2)
        await fill(admin, "T", 0, 3)
        assert (await reset(admin, -1, queue_id=0, offset=0))[1] == {0: 0}
        assert (await reset(admin, -1))[1] == {0: 3, 1: 0}, "a time before 1970 means the end"
        outside, _ = await reset(admin, -1, queue_id=0, offset=9)
        assert (outside.code, outside.remark) == (
            1,
            "Target offset 9 not in consume queue range [0-3]",
        )
        assert (await reset(admin, -1, queue_id=5))[0].code == 1
        assert (await reset(admin, -1, topic="nowhere"))[0].code == ResponseCode.TOPIC_NOT_EXIST
    async with (
        running_broker(tmp_path / "strict", autoCreateSubscriptionGroup=False) as ready,
        peer_of(ready) as admin,
    ):
        await admin.create_topic("T", queues=2)
        assert (await reset(admin, -1))[0].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_members_are_told_where_the_offsets_are_theirs(tmp_path: Path) -> None:
    """Members of broadcasting groups store their offsets themselves; with
    useServerSideResetOffset=false the broker tells the members of every group, as older brokers do.
    """
    async with (
        running_broker(tmp_path, useServerSideResetOffset=False) as ready,
        peer_of(ready) as admin,
        peer_of(ready) as consumer,
    ):
        await admin.create_topic("T", queues=1)
        await fill(admin, "T", 0, 3)
        offline, _ = await reset(admin, 0)
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        await consumer.heartbeat("one", group="G", subscriptions={"T": "*"})
        await admin.commit("G", "T", 0, 2)
        assert (await reset(admin, -1, force=False))[1] == {0: 2}, "without force only backwards"
        assert (await reset(admin, 0))[1] == {0: 0}
        with trio.fail_after(5):
            while (
                len(
                    orders := [
                        notice
                        for notice in consumer.notices
                        if notice.code == Code.RESET_CONSUMER_CLIENT_OFFSET
                    ]
                )
                < 2
            ):
                await trio.sleep(0.001)
        queue = MessageQueue("T", "broker-a", 0)
        assert [QueueOffsets.decode(bytes(order.body)).offset_table for order in orders] == [
            {queue: 2},
            {queue: 0},
        ]
        assert (orders[0].ext or {})["group"] == "G"
        assert await committed(admin, "G", "T", 0) == 2, "the members store it"
    async with (
        running_broker(tmp_path / "b") as ready,
        peer_of(ready) as admin,
        peer_of(ready) as consumer,
    ):
        await admin.create_topic("T", queues=1)
        await consumer.heartbeat(
            "one", group="G", subscriptions={"T": "*"}, message_model=BROADCASTING
        )
        assert (await reset(admin, 0))[1] == {0: 0}
        with trio.fail_after(5):
            while not any(
                notice.code == Code.RESET_CONSUMER_CLIENT_OFFSET for notice in consumer.notices
            ):
                await trio.sleep(0.001)


async def test_offsets_are_cloned_and_compared(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        for topic in ("T", "U"):
            await peer.create_topic(topic, queues=2)
            await fill(peer, topic, 0, 6)
        await peer.commit("G", "T", 0, 5)
        await peer.commit("G", "U", 0, 2)
        assert (
            await peer.call(Code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("G", "H", "T"))
        ).code == 0
        topics = TopicNames.decode(
            bytes((await peer.call(Code.QUERY_TOPICS_BY_CONSUMER, GroupHeader("H"))).body)
        )
        assert topics.topic_list == ["T"]
        assert await committed(peer, "H", "T", 0) == 5
        assert (
            await peer.call(Code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("G", "I"))
        ).code == 0
        assert [await committed(peer, "I", topic, 0) for topic in ("T", "U")] == [5, 2]
        await peer.commit("I", "T", 0, 3)

        async def correction(compare: str, left_out: str | None = None) -> dict[int, int]:
            answer = await peer.call(
                Code.QUERY_CORRECTION_OFFSET, CorrectionOffsetHeader("T", compare, left_out)
            )
            return dict(CorrectionOffsets.decode(bytes(answer.body)).correction_offsets)

        assert await correction("G") == {0: 3}, "group I is the furthest behind"
        assert await correction("I", "I,H") == {0: 2**63 - 1}, (
            "the compared group is behind all others"
        )


async def topics_of(peer: BrokerPeer, group: str) -> list[str]:
    """The topics for which a group has offsets."""
    answer = await peer.call(Code.QUERY_TOPICS_BY_CONSUMER, GroupHeader(group))
    return sorted(TopicNames.decode(bytes(answer.body)).topic_list)


async def test_offsets_of_topics_that_do_not_exist_are_not_cloned(tmp_path: Path) -> None:
    """A table from elsewhere may have offsets of topics that were deleted there."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"gone@G":{0:7},"T@G":{0:5}}}'
    )
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=1)
        for target, topic in (("H", None), ("I", "gone")):
            assert (
                await peer.call(Code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("G", target, topic))
            ).code == 0
        assert [await topics_of(peer, group) for group in ("G", "H", "I")] == [
            ["T", "gone"],
            ["T"],
            [],
        ]
        await peer.create_topic("gone", queues=1)
        assert (
            await peer.call(Code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("G", "I", "gone"))
        ).code == 0
        assert await topics_of(peer, "I") == ["gone"]


async def test_of_a_group_with_members_what_they_subscribe_is_cloned(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as consumer,
    ):
        for topic in ("T", "U"):
            await peer.create_topic(topic, queues=1)
            await fill(peer, topic, 0, 6)
            await peer.commit("G", topic, 0, 4)
        await consumer.heartbeat("one", group="G", subscriptions={"T": "*"})
        for target, offline, wanted in (("H", False, ["T"]), ("I", True, ["T", "U"])):
            assert (
                await peer.call(
                    Code.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("G", target, offline=offline)
                )
            ).code == 0
            assert await topics_of(peer, target) == wanted


async def test_time_spans_subscriptions_and_index_entries(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=2)
        begin = now_ms()
        for tag in ("A", "B", "A"):
            await peer.send("T", tag.encode(), properties={"TAGS": tag})
        await peer.commit("G", "T", 0, 1)
        spans = ConsumeTimeSpans.decode(
            bytes((await peer.call(Code.QUERY_CONSUME_TIME_SPAN, GroupTopicHeader("G", "T"))).body)
        ).spans
        first, empty = spans
        assert (
            begin
            <= first.min_timestamp
            == first.consume_timestamp
            <= first.max_timestamp
            <= now_ms()
        )
        assert 0 <= first.delay_ms < 60_000
        assert (
            empty.message_queue.queue_id,
            empty.min_timestamp,
            empty.max_timestamp,
            empty.delay_ms,
        ) == (1, -1, -1, 0)

        async def entries(index: int, group: str | None = None) -> ConsumeQueueEntries:
            answer = await peer.call(
                Code.QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader("T", 0, index, 10, group)
            )
            return ConsumeQueueEntries.decode(bytes(answer.body))

        assert (
            await peer.call(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupSubscriptionHeader("G", "T"))
        ).code == 0
        await peer.heartbeat("one", group="G", subscriptions={"T": "A"})
        found = GroupSubscription.decode(
            bytes(
                (
                    await peer.call(
                        Code.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupSubscriptionHeader("G", "T")
                    )
                ).body
            )
        )
        assert found.subscription is not None
        assert found.subscription.sub_string == "A"
        page = await entries(1, "G")
        assert (page.min_queue_index, page.max_queue_index) == (0, 3)
        assert [entry.matches for entry in page.entries] == [False, True]
        assert [entry.tags_code for entry in page.entries] == [66, 65]
        assert not any(entry.matches for entry in (await entries(0)).entries), "as in Java"
        missing = await peer.call(Code.QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader("T", 9, 0, 1))
        assert (missing.code, missing.remark) == (1, "9@T is not exist!")
        await peer.heartbeat("two", producers=("P",))
        producers = ProducerTable.decode(
            bytes((await peer.call(Code.GET_ALL_PRODUCER_INFO)).body)
        ).data["P"]
        assert [(one.client_id, one.language) for one in producers] == [("two", "PYTHON")]
        assert abs(producers[0].last_update_timestamp - now_ms()) < 60_000


async def test_a_group_may_be_forbidden_a_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        for topic in ("T", "U"):
            await peer.create_topic(topic, queues=1)

        async def forbid(topic: str, readable: bool | None) -> bool | None:
            answer = await peer.call(
                Code.UPDATE_AND_GET_GROUP_FORBIDDEN, GroupForbiddenHeader("G", topic, readable)
            )
            return GroupForbidden.decode(bytes(answer.body)).readable

        assert [await forbid("T", None), await forbid("T", False), await forbid("U", False)] == [
            True,
            False,
            False,
        ]
        refused = await peer.pull_raw("T")
        assert (refused.code, refused.remark) == (
            ResponseCode.NO_PERMISSION,
            "the consumer group[G] is forbidden for topic[T]",
        )
        assert await forbid("T", True) is True
        assert await forbid("U", None) is False, "the other topic stays forbidden"
        assert (await peer.pull("T")).code == ResponseCode.PULL_NOT_FOUND
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert (await peer.pull_raw("U")).code == ResponseCode.NO_PERMISSION, (
            "and stays so over a restart"
        )
