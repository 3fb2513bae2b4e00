"""A broker with topics of batch consume queues (queue.type=BatchCQ) and with light queues
(INNER_MULTI_DISPATCH), over real sockets and through restarts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, Sent, crashed_broker, peer_of, running_broker

from triomq.broker.app import BrokerReady
from triomq.remoting.protocol.batch import decode_batch, encode_batch
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.offset import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
)
from triomq.remoting.protocol.headers.send import SendMessageResponseHeader
from triomq.remoting.protocol.message_properties import DELAY
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import INNER_BATCH, NEED_UNWRAP

TOPIC = "Batches"
LIGHT = {"enableLmq": True, "enableMultiDispatch": True}


def batch_body(bodies: Sequence[bytes], properties: bytes = b"") -> bytes:
    return encode_batch((0, body, properties) for body in bodies)


async def send_batch(
    peer: BrokerPeer, *bodies: bytes, topic: str = TOPIC
) -> SendMessageResponseHeader:
    answer = await peer.send_raw(
        topic,
        batch_body(bodies),
        code=Code.SEND_BATCH_MESSAGE,
        batch=True,
        properties={"UNIQ_KEY": "BATCHKEY", "WAIT": "true"},
    )
    assert answer.code == 0, answer.remark
    return answer.header(SendMessageResponseHeader)


def unwrapped(messages: Sequence[StoredMessage]) -> list[tuple[int, bytes]]:
    """(queue offset, body) of every message, as a client takes inner batches apart."""
    found = []
    for message in messages:
        if message.sys_flag & INNER_BATCH:
            assert message.sys_flag & NEED_UNWRAP
            found += [
                (message.queue_offset + number, body)
                for number, (_, body, _) in enumerate(decode_batch(message.body))
            ]
        else:
            found.append((message.queue_offset, message.body))
    return found


async def max_offset(peer: BrokerPeer, topic: str, queue_id: int = 0) -> int:
    answer = await peer.call(Code.GET_MAX_OFFSET, GetMaxOffsetHeader(topic, queue_id))
    return answer.header(OffsetResponseHeader).offset


async def batch_topic(peer: BrokerPeer) -> None:
    answer = await peer.create_topic(TOPIC, 1, attributes="+queue.type=BatchCQ")
    assert answer.code == 0, answer.remark


@pytest.mark.feature("32a")
async def test_a_batch_is_stored_as_one_record_and_pulled_by_any_offset_in_it(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await batch_topic(peer)
        first = await send_batch(peer, b"a", b"b", b"c")
        assert (first.queue_offset, first.batch_unique_id, "," in first.message_id) == (
            0,
            "BATCHKEY",
            False,
        )
        assert (await peer.send(TOPIC, b"alone")).queue_offset == 3
        assert (await send_batch(peer, b"d", b"e")).queue_offset == 4
        assert await max_offset(peer, TOPIC) == 6
        figures = KvTable.decode(bytes((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)).table
        assert figures["msgPutTotalTodayNow"] == figures["putMessageTimesTotal"] == "6"
        every = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"alone"), (4, b"d"), (5, b"e")]
        for offset, start in ((0, 0), (1, 0), (2, 0), (3, 3), (4, 4), (5, 4)):
            pulled = await peer.pull(TOPIC, 0, offset)
            assert unwrapped(pulled.messages) == every[start:]
            assert pulled.header.next_begin_offset == 6
        (record,) = (await peer.pull(TOPIC, 0, 0, count=1)).messages
        assert {
            name: record.properties.get(name)
            for name in ("UNIQ_KEY", "INNER_NUM", "INNER_BASE", "CLUSTER")
        } == {"UNIQ_KEY": "BATCHKEY", "INNER_NUM": "3", "INNER_BASE": "0", "CLUSTER": "TestCluster"}
        assert (tmp_path / "batchconsumequeue" / TOPIC).is_dir() or not (
            tmp_path / "consumequeue" / TOPIC
        ).exists()


async def test_the_answer_names_the_batch_also_when_it_waits_for_the_disk(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, flushDiskType="SYNC_FLUSH") as ready,
        peer_of(ready) as peer,
    ):
        await batch_topic(peer)
        for number in range(3):
            answer = await send_batch(peer, b"a", b"b", b"c")
            assert (answer.queue_offset, answer.batch_unique_id) == (3 * number, "BATCHKEY")


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_it_is_still_there_after_a_restart(tmp_path: Path, crash: bool) -> None:
    async def fill(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await batch_topic(peer)
            await send_batch(peer, b"a", b"b", b"c")
            await peer.send(TOPIC, b"alone")

    if crash:
        await crashed_broker(tmp_path, fill)
    else:
        async with running_broker(tmp_path) as ready:
            await fill(ready)
    assert not (tmp_path / "consumequeue" / TOPIC).exists()
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        assert (await send_batch(peer, b"d")).queue_offset == 4
        found: list[tuple[int, bytes]] = []
        while (pulled := await peer.pull(TOPIC, 0, len(found))).code == 0:
            found += unwrapped(pulled.messages)
        assert found == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"alone"), (4, b"d")]


async def test_a_held_pull_gets_the_next_batch(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await batch_topic(peer)
        await send_batch(peer, b"a", b"b")
        pull = peer.pull(TOPIC, 0, 2, hold_ms=10_000)
        async with peer_of(ready) as other:
            async with trio.open_nursery() as nursery:

                async def held() -> None:
                    assert unwrapped((await pull).messages) == [(2, b"c"), (3, b"d")]

                nursery.start_soon(held)
                await trio.sleep(0.05)
                await send_batch(other, b"c", b"d")


async def test_a_delayed_message_comes_to_such_a_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path, messageDelayLevel="1s") as ready, peer_of(ready) as peer:
        await batch_topic(peer)
        await peer.send(TOPIC, b"late", properties={DELAY: "1", "UNIQ_KEY": "K"})
        await send_batch(peer, b"a", b"b")
        pulled = await peer.pull(TOPIC, 0, 2, hold_ms=10_000)
        assert unwrapped(pulled.messages) == [(2, b"late")]
        assert (await send_batch(peer, b"c")).queue_offset == 3


async def test_what_such_a_topic_refuses(tmp_path: Path) -> None:
    async with running_broker(tmp_path, maxMessageSize=100_000) as ready, peer_of(ready) as peer:
        await batch_topic(peer)
        await peer.create_topic("Plain", 1)
        cases = [
            (
                TOPIC,
                b"x" * 100_001,
                {},
                {"code": Code.SEND_BATCH_MESSAGE, "batch": True},
                "the batch has 100001 bytes",
            ),
            (
                TOPIC,
                b"",
                {},
                {"code": Code.SEND_BATCH_MESSAGE, "batch": True},
                "the batch is empty",
            ),
            (
                TOPIC,
                batch_body([b""] * 3_500),
                {"x": "y" * 32_700},
                {"code": Code.SEND_BATCH_MESSAGE, "batch": True},
                "the properties have",
            ),
            (TOPIC, b"x", {"INNER_NUM": "2"}, {}, "only the broker makes of a batch"),
            ("Plain", b"x", {}, {"sys_flag": INNER_BATCH}, "only the broker makes of a batch"),
            (
                "Plain",
                batch_body([b"x"], b"INNER_NUM\x012\x02"),
                {},
                {"code": Code.SEND_BATCH_MESSAGE, "batch": True},
                "INNER_NUM is the broker's own",
            ),
        ]
        for topic, body, properties, more, words in cases:
            answer = await peer.send_raw(topic, body, properties=properties, **more)
            assert (answer.code, words in (answer.remark or "")) == (
                ResponseCode.MESSAGE_ILLEGAL,
                True,
            ), answer.remark
        assert await max_offset(peer, TOPIC) == 0


async def test_ordinary_topics_store_batches_message_by_message(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("Plain", 1)
        answer = await send_batch(peer, b"a", b"b", topic="Plain")
        assert (answer.batch_unique_id, answer.message_id.count(",")) == (None, 1)
        assert [
            message.sys_flag & INNER_BATCH for message in (await peer.pull("Plain")).messages
        ] == [0, 0]


# Light queues


async def send_light(
    peer: BrokerPeer, body: bytes, *queues: str, topic: str = "T", **more: object
) -> Sent:
    return await peer.send(
        topic, body, properties={"INNER_MULTI_DISPATCH": ",".join(queues), "UNIQ_KEY": "K"}, **more
    )


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_a_message_is_pulled_from_each_of_its_light_queues(
    tmp_path: Path, crash: bool
) -> None:
    async def fill(ready: BrokerReady) -> None:
        async with peer_of(ready) as peer:
            await peer.create_topic("T", 2)
            await send_light(peer, b"0", "%LMQ%a", "%LMQ%b", queue_id=1)
            await peer.send("T", b"1")
            await send_light(peer, b"2", "%LMQ%a")
            assert (await peer.pull("%LMQ%a")).bodies == [b"0", b"2"]
            assert (await peer.pull("%LMQ%b")).bodies == [b"0"]
            await peer.commit("%LMQ%g", "%LMQ%a", 0, 1)
            await peer.commit("G", "%LMQ%b", 0, 1)

    if crash:
        await crashed_broker(tmp_path, fill, **LIGHT)
    else:
        async with running_broker(tmp_path, **LIGHT) as ready:
            await fill(ready)
    async with running_broker(tmp_path, **LIGHT) as ready, peer_of(ready) as peer:
        assert await max_offset(peer, "%LMQ%a") == 2
        (record,) = (await peer.pull("%LMQ%b")).messages
        assert (record.topic, record.queue_id, record.properties["INNER_MULTI_QUEUE_OFFSET"]) == (
            "T",
            1,
            "0,0",
        )
        await send_light(peer, b"3", "%LMQ%a")
        assert await peer.next_bodies("%LMQ%a", 3) == [b"0", b"2", b"3"]
        if not crash:
            for group, topic in (("%LMQ%g", "%LMQ%a"), ("G", "%LMQ%b")):
                answer = await peer.call(
                    Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(group, topic, 0)
                )
                assert (answer.code, answer.header(OffsetResponseHeader).offset) == (0, 1)

    def saved(name: str) -> Any:
        return json.loads((tmp_path / "config" / name).read_text())

    assert not any(name.startswith("%LMQ%") for name in saved("topics.json")["topicConfigTable"])
    if not crash:
        assert not any(
            name.startswith("%LMQ%")
            for name in saved("subscriptionGroup.json")["subscriptionGroupTable"]
        )
        assert saved("lmqConsumerOffset.json")["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 1}
        assert not (tmp_path / "config" / "consumerOffset.json").exists()


async def test_offsets_are_taken_over_when_light_queues_are_switched_on(tmp_path: Path) -> None:
    for settings in ({}, LIGHT, LIGHT):
        async with running_broker(tmp_path, **settings) as ready, peer_of(ready) as peer:
            if not settings:
                await peer.create_topic("T", 1)
                await peer.send("T", b"0")
                await peer.commit("G", "T", 0, 1)
            answer = await peer.call(
                Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("G", "T", 0)
            )
            assert (answer.code, answer.header(OffsetResponseHeader).offset) == (0, 1)
            await peer.commit("H", "T", 0, 1)


async def test_light_queues_that_cannot_be(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, **LIGHT, enableLmqQuota=True, maxLmqConsumeQueueNum=2) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 1)
        for listed in ("other", "%LMQ%a,other", "%LMQ%a/../b", "%LMQ%a,,%LMQ%b"):
            for later in ({}, {DELAY: "1"}):
                answer = await peer.send_raw(
                    "T", b"x", properties={"INNER_MULTI_DISPATCH": listed, **later}
                )
                assert (answer.code, "names that begin with %LMQ%" in (answer.remark or "")) == (
                    ResponseCode.MESSAGE_ILLEGAL,
                    True,
                )
        await send_light(peer, b"0", "%LMQ%a", "%LMQ%b")
        answer = await peer.send_raw("T", b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%c"})
        assert answer.code == ResponseCode.LMQ_QUOTA_EXCEEDED
        assert "maxLmqConsumeQueueNum is 2" in (answer.remark or "")
        await send_light(peer, b"1", "%LMQ%b")
        assert (await peer.pull("%LMQ%b")).bodies == [b"0", b"1"]
        assert (await peer.pull_raw("%LMQ%none")).code == ResponseCode.PULL_NOT_FOUND


async def test_numbers_that_a_sender_writes_itself_do_not_count(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **LIGHT) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await peer.send(
            "T",
            b"0",
            properties={
                "INNER_MULTI_DISPATCH": "%LMQ%a",
                "INNER_MULTI_QUEUE_OFFSET": "777",
                "INNER_BASE": "5",
            },
        )
        (record,) = (await peer.pull("%LMQ%a")).messages
        assert (
            record.properties["INNER_MULTI_QUEUE_OFFSET"],
            record.properties.get("INNER_BASE"),
        ) == ("0", None)


async def test_without_the_settings_they_are_ordinary_messages(tmp_path: Path) -> None:
    async with running_broker(tmp_path, enableLmq=True) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send_light(peer, b"0", "%LMQ%a")
        assert (await peer.pull("T")).bodies == [b"0"]
        assert (await peer.pull_raw("%LMQ%a")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_cleaning_unused_topics_leaves_light_queues(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **LIGHT) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send_light(peer, b"0", "%LMQ%a")
        assert (await peer.call(Code.CLEAN_UNUSED_TOPIC)).code == 0
        assert (await peer.pull("%LMQ%a")).bodies == [b"0"]
