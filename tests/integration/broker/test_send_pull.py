"""Messages into a broker and out of it, over real sockets: what is stored, what is answered, what
is refused.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from brokers import BrokerPeer, broker_config, peer_of, running_broker
from stored_records import decode_record

from triomq.broker.options import load_broker_config
from triomq.remoting.core.properties_file import Entry
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import request
from triomq.remoting.protocol.headers.offset import OffsetResponseHeader, QueryConsumerOffsetHeader
from triomq.remoting.protocol.headers.pull import COMMIT_OFFSET, RANGE_READ
from triomq.remoting.protocol.headers.send import SendBackHeader, SendMessageHeader
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader
from triomq.remoting.protocol.ids import decode_offset_message_id
from triomq.remoting.protocol.message_properties import encode_properties
from triomq.remoting.protocol.sys_flags import TRANSACTION_PREPARED

DELAYED = encode_properties({"DELAY": "3"})


@pytest.mark.feature("32a", "32b")
async def test_messages_come_back_as_they_went_in(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 2)
        for number in range(5):
            properties = {
                "UNIQ_KEY": f"{number:032X}",
                "KEYS": f"k{number}",
                "TAGS": "A",
                "user": "ä",
            }
            sent = await peer.send(
                "T",
                b"body %d" % number,
                queue_id=1,
                properties=properties,
                flag=7,
                sys_flag=1,
                reconsume_times=2,
            )
            assert (sent.queue_id, sent.queue_offset, sent.transaction_id) == (
                1,
                number,
                f"{number:032X}",
            )
        pulled = await peer.pull("T", 1, 0)
        assert (pulled.code, pulled.remark) == (0, "FOUND")
        assert (
            pulled.header.next_begin_offset,
            pulled.header.min_offset,
            pulled.header.max_offset,
        ) == (5, 0, 5)
        assert pulled.header.suggested_broker_id == 0
        assert pulled.bodies == [b"body %d" % number for number in range(5)]
        message = pulled.messages[3]
        assert (
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.flag,
            message.sys_flag,
        ) == ("T", 1, 3, 7, 1)
        assert message.reconsume_times == 2
        assert message.born_host[0] == "127.0.0.1"
        assert message.store_host == ("127.0.0.1", ready.port)
        assert list(message.properties) == [
            "UNIQ_KEY",
            "KEYS",
            "TAGS",
            "user",
            "MSG_REGION",
            "TRACE_ON",
            "CLUSTER",
        ]
        assert message.properties["CLUSTER"] == "TestCluster"
        assert message.properties["user"] == "ä"
        address, port, log_offset = decode_offset_message_id(sent.message_id)
        assert (address, port) == (bytes([127, 0, 0, 1]), ready.port)
        assert log_offset == pulled.messages[4].log_offset


@pytest.mark.feature("42a")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_message_can_be_pulled_as_soon_as_its_sender_has_the_answer(
    tmp_path: Path, flush: str
) -> None:
    """The first pull finds the message; it is not held."""
    async with (
        running_broker(tmp_path, flushDiskType=flush) as ready,
        peer_of(ready) as peer,
        peer_of(ready) as reader,
    ):
        await peer.create_topic("T")
        for number in range(100):
            assert (await peer.send("T", b"%d" % number)).queue_offset == number
            pulled = await reader.pull("T", 0, number)
            assert (pulled.code, pulled.bodies) == (0, [b"%d" % number])


async def test_properties_that_the_broker_owns_are_never_doubled(tmp_path: Path) -> None:
    mine = {"MSG_REGION": "Moon", "CLUSTER": "X", "TRACE_ON": "false", "POP_CK": "1 2 3", "u": "v"}
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        without_key = await peer.send("T", properties=mine)
        await peer.send("T", properties={})
        await peer.send("T", properties={"UNIQ_KEY": ""})
        first, second, third = (await peer.pull("T")).messages
        assert first.properties["UNIQ_KEY"] == without_key.transaction_id
        expected = {
            "u": "v",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "TestCluster",
        }
        assert {
            name: value for name, value in first.properties.items() if name != "UNIQ_KEY"
        } == expected
        assert first.properties_bytes.count(b"CLUSTER") == 1
        assert first.properties_bytes.endswith(b"\x02")
        assert len(second.properties["UNIQ_KEY"]) == 32
        assert len(third.properties["UNIQ_KEY"]) == 32


async def test_a_unique_key_that_json_must_escape(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for key in ('a"b', "back\\slash", "ä\n"):
            assert (await peer.send("T", properties={"UNIQ_KEY": key})).transaction_id == key


@pytest.mark.parametrize(
    "text", ["TAGS\1one\2TAGS\1two\2", "TAGS\1two\2TAGS\1\2", "TAGS\1one\2u\1v\2TAGS\1two"]
)
@pytest.mark.parametrize(
    "own", ["UNIQ_KEY\1first\2UNIQ_KEY\1last\2", "UNIQ_KEY\1last\2UNIQ_KEY\1\2"]
)
async def test_of_two_equal_properties_the_last_counts_for_all(
    tmp_path: Path, text: str, own: str
) -> None:
    """The response, the broker's own filter and every reader of the record take the last value that
    is not empty, as Java's parser does.
    """
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for _ in range(2):  # the second finds its topic known
            assert (await peer.send("T", properties=own + text)).transaction_id == "last"
        batch = encode_batch([(0, b"x", (own + text).encode())] * 2)
        assert (await peer.send_raw("T", batch, code=Code.SEND_BATCH_MESSAGE, batch=True)).code == 0
        messages = (await peer.pull("T")).messages
        assert [
            (message.properties["UNIQ_KEY"], message.properties["TAGS"]) for message in messages
        ] == [("last", "two")] * 4
        assert len((await peer.pull("T", expression="two")).messages) == 4
        assert (await peer.pull("T", expression="one")).messages == []


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2])
async def test_long_and_short_header_names_and_both_header_forms(
    tmp_path: Path, code: Code
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        answer = await peer.send_raw("T", b"1", code=code)
        assert set(answer.ext or {}) == {
            "msgId",
            "queueId",
            "queueOffset",
            "transactionId",
            "MSG_REGION",
            "TRACE_ON",
        }
        assert (answer.ext or {})["MSG_REGION"] == "DefaultRegion"
        assert (answer.ext or {})["TRACE_ON"] == "true"


async def test_a_batch_is_stored_as_single_messages(tmp_path: Path) -> None:
    elements = [
        (
            number,
            b"element %d" % number,
            encode_properties({"UNIQ_KEY": f"{number:032X}", "TAGS": "B"}),
        )
        for number in range(3)
    ]
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"before")
        answer = await peer.send_raw(
            "T",
            encode_batch(elements),
            code=Code.SEND_BATCH_MESSAGE,
            batch=True,
            properties={"UNIQ_KEY": "F" * 32},
        )
        assert answer.code == 0, answer.remark
        ext = answer.ext or {}
        assert (ext["queueOffset"], ext["transactionId"], len(ext["msgId"].split(","))) == (
            "1",
            "F" * 32,
            3,
        )
        messages = (await peer.pull("T")).messages
        assert [message.body for message in messages] == [
            b"before",
            b"element 0",
            b"element 1",
            b"element 2",
        ]
        assert [message.flag for message in messages[1:]] == [0, 1, 2]
        assert messages[2].properties == {"UNIQ_KEY": f"{1:032X}", "TAGS": "B"}, (
            "elements keep their properties as they are"
        )


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"not a batch", "left over"),
        (b"", "empty"),
        (encode_batch([(0, b"x", DELAYED)]), "a batch cannot be delayed"),
        (encode_batch([(0, b"x", b""), (0, b"y", b"TAGS\1a\2" + DELAYED)]), "cannot be delayed"),
        (encode_batch([(0, b"x", b""), (0, b"y", b"INNER_NUM\x013\2")]), "the broker's own"),
        (
            encode_batch([(0, b"x", b""), (0, b"y", b"a\x01b\0"), (0, b"z", b"")]),
            "end with a zero byte",
        ),
    ],
)
async def test_wrong_batches_are_refused_whole(tmp_path: Path, body: bytes, remark: str) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        answer = await peer.send_raw("T", body, code=Code.SEND_BATCH_MESSAGE, batch=True)
        assert answer.code == 13
        assert remark in (answer.remark or "")
        assert (await peer.pull("T")).code == 19


async def test_a_batch_for_a_retry_topic_is_refused_for_its_topic_first(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        answer = await peer.send_raw(
            "%RETRY%G",
            b"not even a batch",
            code=Code.SEND_BATCH_MESSAGE,
            batch=True,
            sys_flag=TRANSACTION_PREPARED,
            properties={"DELAY": "x"},
        )
        assert answer.code == 13
        assert answer.remark == "batch request does not support retry group %RETRY%G"


async def test_the_batch_flag_makes_a_batch_and_not_the_code(tmp_path: Path) -> None:
    """As in Java; the first message finds the topic, the second goes the fast path."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        body = encode_batch([(0, b"x", b""), (0, b"y", b"")])
        for offset in range(2):
            answer = await peer.send_raw(
                "T", body, code=Code.SEND_BATCH_MESSAGE, properties={"UNIQ_KEY": "F" * 32}
            )
            assert (answer.code, (answer.ext or {})["queueOffset"]) == (0, str(offset))
        pulled = await peer.pull("T")
        assert pulled.bodies == [body, body]


@pytest.mark.parametrize("padding", [0, 3_000])
async def test_flag_and_reconsume_times_are_any_number(tmp_path: Path, padding: int) -> None:
    """As in Java, whatever the length of the properties; the second message goes the fast path."""
    lowest = -(1 << 31)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        properties = {"UNIQ_KEY": "F" * 32, "p": "x" * (padding + 1)}
        for _ in range(2):
            await peer.send("T", properties=properties, flag=lowest, reconsume_times=-1)
        elements = [(0, b"x", b""), (lowest, b"y", encode_properties(properties))]
        await peer.send("T", encode_batch(elements), batch=True, reconsume_times=-1)
        messages = (await peer.pull("T")).messages
        assert [message.flag for message in messages] == [lowest, lowest, 0, lowest]
        assert {message.reconsume_times for message in messages} == {-1}


async def test_a_reader_of_ranges_gets_more_than_a_consumer(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", queues=1)
        for _ in range(50):
            await peer.send_raw("T", encode_batch([(0, b"x" * 100, b"")] * 100), batch=True)
        counts = {}
        for flags in (0, RANGE_READ):
            pulled = await peer.pull("T", count=100_000, flags=flags)
            offsets = [message.queue_offset for message in pulled.messages]
            counts[flags] = len(offsets)
            assert offsets == list(range(counts[flags]))
        assert counts == {0: 32, RANGE_READ: 4096}
        for _ in range(3):
            await peer.send_raw("T", b"y" * 500_000)
        large = await peer.pull("T", offset=5000, count=10, flags=RANGE_READ)
        assert len(large.messages) == 2


@pytest.mark.parametrize("batch", [False, True])
async def test_a_message_with_too_many_keys_is_refused(tmp_path: Path, batch: bool) -> None:
    """The last message of a batch has them, so a check of the first one would not notice."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.send("T", properties={"UNIQ_KEY": "E" * 32})  # the topic is known from here on
        for count, code in ((1_001, 13), (1_000, 0)):
            properties = {"UNIQ_KEY": "F" * 32, "KEYS": " ".join("k" * count)}
            if batch:
                elements = [(0, b"x", b""), (0, b"y", encode_properties(properties))]
                answer = await peer.send_raw(
                    "T", encode_batch(elements), code=Code.SEND_BATCH_MESSAGE, batch=True
                )
            else:
                answer = await peer.send_raw("T", properties=properties)
            assert (answer.code, "at most 1000 are allowed" in (answer.remark or "")) == (
                code,
                code == 13,
            )


async def test_a_batch_with_a_message_that_fits_into_no_segment_is_refused(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, mappedFileSizeCommitLog=1 << 20) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T")
        for large, code in ((1 << 20, 13), ((1 << 20) - 400, 0)):
            answer = await peer.send_raw(
                "T",
                encode_batch([(0, b"x", b""), (0, bytes(large), b"")]),
                code=Code.SEND_BATCH_MESSAGE,
                batch=True,
            )
            assert (answer.code, "the record would have more than" in (answer.remark or "")) == (
                code,
                code == 13,
            )


@pytest.mark.parametrize(
    ("topic", "more", "code", "remark"),
    [
        ("", {}, 29, "The specified topic is blank."),
        ("no spaces", {}, 29, "The specified topic: no spaces, contains illegal characters"),
        ("t" * 128, {}, 29, "is longer than topic max length: 127"),
        (
            "SCHEDULE_TOPIC_XXXX",
            {},
            16,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, 16, "is forbidden."),
        (
            "New",
            {"default_topic": "Missing"},
            17,
            "topic[New] not exist, apply first please!\nSee https://rocketmq.apache.org/",
        ),
        (
            "T",
            {"queue_id": 4},
            29,
            "request queueId[4] is illegal, TopicConfig [topicName=T, readQueueNums=4",
        ),
        ("T", {"sys_flag": 4}, 13, "sysFlag says that the message is part of a transaction, but"),
        (
            "T",
            {"properties": {"DELAY": "soon"}},
            13,
            "the delay level 'soon' (property DELAY) is not a number",
        ),
        (
            "T",
            {"properties": {"TIMER_DELIVER_MS": "soon"}},
            13,
            "timer message illegal, the delay time should not be bigger than the max delay",
        ),
        ("T", {"properties": {"big": "x" * 40_000}}, 13, "msg properties length limit 32KB"),
        ("%RETRY%a+b", {}, 29, "contains illegal characters"),
        ("%RETRY%" + "g" * 121, {}, 26, "subscription group not exist, ggg"),
    ],
)
async def test_refusals_name_cause_and_carry_region_and_trace(
    tmp_path: Path, topic: str, more: dict[str, object], code: int, remark: str
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        answer = await peer.send_raw(topic, **more)  # type: ignore[arg-type]
        assert answer.code == code, answer.remark
        assert remark in (answer.remark or "")
        assert answer.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
        assert (await peer.send("T", b"still serving")).queue_offset == 0


async def test_a_body_over_the_limit_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with running_broker(tmp_path, maxMessageSize=1000) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        assert (await peer.send("T", b"x" * 1000)).queue_offset == 0
        answer = await peer.send_raw("T", b"x" * 1001)
        assert answer.code == 13
        assert "msg body length limit 1000B" in (answer.remark or "")
        assert "1001 bytes" in (answer.remark or "")


@pytest.mark.feature("9b")
async def test_the_first_message_creates_its_topic_unless_that_is_switched_off(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path / "on") as ready, peer_of(ready) as peer:
        assert (await peer.send("New", queue_id=3)).queue_id == 3
        assert (await peer.send_raw("New", queue_id=4)).code == 29, "four queues: the sender's wish"
        assert (await peer.pull("New", 3)).bodies == [b"x"]
    async with (
        running_broker(tmp_path / "off", autoCreateTopicEnable=False) as ready,
        peer_of(ready) as peer,
    ):
        answer = await peer.send_raw("New")
        assert (answer.code, (answer.remark or "").splitlines()[0]) == (
            17,
            "topic[New] not exist, apply first please!",
        )


async def test_a_topic_that_has_changed_or_is_gone_takes_no_messages_as_before(
    tmp_path: Path,
) -> None:
    """The broker remembers what it has checked for the last messages of a topic, until the table of
    topics changes.
    """
    async with (
        running_broker(tmp_path, autoCreateTopicEnable=False) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T", 4)
        for _ in range(2):
            await peer.send("T", queue_id=3, properties={"UNIQ_KEY": "U"})
        await peer.create_topic("T", 2)
        assert (await peer.send_raw("T", queue_id=3, properties={"UNIQ_KEY": "U"})).code == 29
        for _ in range(2):
            await peer.send("T", queue_id=1, properties={"UNIQ_KEY": "U"})
        assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))).code == 0
        assert (await peer.send_raw("T", queue_id=1, properties={"UNIQ_KEY": "U"})).code == 17
        await peer.create_topic("T", 4)
        assert (await peer.send("T", queue_id=1, properties={"UNIQ_KEY": "U"})).queue_offset == 0


async def test_a_negative_queue_lets_the_broker_choose(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 2)
        chosen = {(await peer.send("T", queue_id=-1)).queue_id for _ in range(40)}
        assert chosen == {0, 1}


async def test_one_way_sends_are_stored_and_not_answered(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.send("T", b"first")
        command = request(Code.SEND_MESSAGE_V2, plain_header(), b"one way", oneway=True)
        await peer.connector.oneway(peer.address, command)
        assert await peer.next_bodies("T", 2) == [b"first", b"one way"]


def plain_header() -> SendMessageHeader:
    return SendMessageHeader("P", "T", "TBW102", 4, 0, 0, 0, 0, "")


async def test_requests_of_many_connections_keep_their_order_per_connection(tmp_path: Path) -> None:
    """64 connections send at once; each queue has its sender's messages in the order in which they
    were sent.
    """

    async def sender(queue_id: int) -> None:
        async with peer_of(ready) as peer:
            for number in range(20):
                assert (
                    await peer.send("T", b"%d" % number, queue_id=queue_id)
                ).queue_offset == number

    async with running_broker(tmp_path) as ready, peer_of(ready) as main:
        await main.create_topic("T", 16)
        async with trio.open_nursery() as nursery:
            for queue_id in range(16):
                nursery.start_soon(sender, queue_id)
        for queue_id in range(16):
            assert await main.next_bodies("T", 20, queue_id) == [
                b"%d" % number for number in range(20)
            ]


async def test_sync_flush_answers_after_the_disk_and_wait_false_at_once(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, flushDiskType="SYNC_FLUSH") as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T")
        assert (await peer.send("T", b"durable")).queue_offset == 0
        assert (await peer.send("T", b"quick", properties={"WAIT": "false"})).queue_offset == 1
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(peer.send, "T", b"%d" % number)
        assert len(await peer.next_bodies("T", 32)) == 32


# Pulls


async def test_what_pulls_are_told(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        for tag in ("A", "B", "B"):
            await peer.send("T", properties={"TAGS": tag})
        assert _told(await peer.pull("T", 0, 3)) == (19, "OFFSET_OVERFLOW_ONE", 3)
        assert _told(await peer.pull("T", 0, 9)) == (21, "OFFSET_OVERFLOW_BADLY", 3)
        assert _told(await peer.pull("T", 1, 0)) == (19, "NO_MATCHED_LOGIC_QUEUE", 0)
        assert _told(await peer.pull("T", 1, 5)) == (21, "NO_MATCHED_LOGIC_QUEUE", 0)
        assert _told(await peer.pull("T", 0, 0, expression="C")) == (20, "NO_MATCHED_MESSAGE", 3)
        assert _told(await peer.pull("T", 0, 0, expression="C || B")) == (0, "FOUND", 3)
        assert len((await peer.pull("T", 0, 0, expression="C || B")).messages) == 2
        assert _told(await peer.pull("T", 0, 0, code=Code.LITE_PULL_MESSAGE, flags=16)) == (
            0,
            "FOUND",
            3,
        )
        assert len((await peer.pull("T", 0, 0, count=2)).messages) == 2
        assert len((await peer.pull("T", 0, 0, message_bytes_max=1)).messages) == 1, (
            "the first one always"
        )


def _told(pulled: object) -> tuple[int, str | None, int]:
    return pulled.code, pulled.remark, pulled.header.next_begin_offset  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "code", "remark"),
    [
        ({"topic": "Missing"}, 17, "topic[Missing] not exist, apply first please!"),
        ({"topic": "WriteOnly"}, 16, "the topic[WriteOnly] pulling message is forbidden"),
        (
            {"topic": "T", "queue_id": 4},
            29,
            "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[",
        ),
        ({"topic": "T", "queue_id": -1}, 29, "queueId[-1] is illegal"),
        (
            {"topic": "T", "group": "not legal!"},
            26,
            "subscription group [not legal!] does not exist",
        ),
        ({"topic": "T", "group": "off"}, 16, "subscription group no permission, off"),
        ({"topic": "T", "expression": "||"}, 23, "parse the consumer's subscription failed"),
        (
            {"topic": "T", "expression": "a > 1", "expression_type": "SQL92"},
            1,
            "does not support consumer to filter message by SQL92",
        ),
        (
            {"topic": "T", "group": "absent", "expression": None},
            24,
            "the consumer's group info not exist",
        ),
        (
            {"topic": "T", "group": "elsewhere", "expression": None},
            24,
            "the consumer's subscription not exist",
        ),
        (
            {"topic": "T", "group": "here", "expression": None, "sub_version": 9},
            25,
            "the consumer's subscription not latest",
        ),
    ],
)
async def test_pulls_that_are_refused(
    tmp_path: Path, arguments: dict[str, object], code: int, remark: str
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        await peer.create_topic("WriteOnly", 4, perm=2)
        await peer.call(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=b'{"groupName":"off","consumeEnable":false}',
        )
        await peer.heartbeat("c1", group="elsewhere", subscriptions={"U": "*"})
        await peer.heartbeat("c2", group="here", subscriptions={"T": "*"}, version=8)
        answer = await peer.pull_raw(**arguments)  # type: ignore[arg-type]
        assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark


async def test_a_pull_commits_the_offset_that_it_carries(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.send("T")
        await peer.pull("T", flags=COMMIT_OFFSET, commit_offset=1)
        answer = await peer.call(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("G", "T", 0))
        assert answer.header(OffsetResponseHeader).offset == 1


async def committed(peer: BrokerPeer) -> int:
    answer = await peer.call(Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader("G", "T", 0))
    return answer.header(OffsetResponseHeader).offset


async def test_a_held_pull_commits_once(tmp_path: Path) -> None:
    """What its consumer commits while it waits is not taken back when a message ends the
    waiting.
    """
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as consumer,
        peer_of(ready) as other,
    ):
        await other.create_topic("T")
        for _ in range(3):
            await other.send("T")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(
                    consumer.pull, "T", 0, 3, hold_ms=20_000, flags=COMMIT_OFFSET, commit_offset=1
                )
            )
            with trio.fail_after(10):
                while await committed(other) != 1:
                    await trio.sleep(0.01)
            assert (await other.commit("G", "T", 0, 3)).code == 0
            await other.send("T")
        assert await committed(other) == 3


# Long polling


@pytest.mark.feature("86a")
async def test_a_held_pull_is_answered_when_a_message_arrives(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as ready,
        peer_of(ready) as consumer,
        peer_of(ready) as producer,
    ):
        await producer.create_topic("T")
        for expression, tag in (("*", "X"), ("B", "B")):
            offset = (await consumer.pull("T")).header.max_offset
            got: list[object] = []

            async def pull(
                offset: int = offset, expression: str = expression, got: list[object] = got
            ) -> None:
                got.append(
                    await consumer.pull("T", 0, offset, hold_ms=15_000, expression=expression)
                )

            async with trio.open_nursery() as nursery:
                nursery.start_soon(pull)
                await trio.sleep(0.05)
                assert got == [], "it must be held"
                if expression == "B":
                    await producer.send("T", b"not wanted", properties={"TAGS": "A"})
                    await producer.send("T", b"other queue", queue_id=1, properties={"TAGS": "B"})
                    await trio.sleep(0.05)
                    assert got == [], "nothing that it wants has come"
                await producer.send("T", b"wanted", properties={"TAGS": tag})
                with trio.fail_after(5):
                    while not got:
                        await trio.lowlevel.checkpoint()
            assert [message.body for message in got[0].messages] == [b"wanted"]  # type: ignore[attr-defined]


@pytest.mark.feature("86c")
async def test_a_held_pull_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        begin = trio.current_time()
        pulled = await peer.pull("T", 0, 0, hold_ms=250)
        assert (pulled.code, pulled.remark) == (19, "NO_MATCHED_LOGIC_QUEUE")
        assert 0.25 <= trio.current_time() - begin < 2


async def test_short_polling_when_long_polling_is_off(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, longPollingEnable=False, shortPollingTimeMills=50) as ready,
        peer_of(ready) as peer,
    ):
        await peer.create_topic("T")
        with trio.fail_after(5):
            assert (await peer.pull("T", 0, 0, hold_ms=15_000)).code == 19


async def test_a_deleted_topic_ends_its_held_pulls(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        async with trio.open_nursery() as nursery:

            async def pull() -> None:
                with trio.fail_after(5):
                    answer = await peer.pull_raw("T", 0, 0, hold_ms=15_000)
                assert answer.code == 17

            nursery.start_soon(pull)
            await trio.sleep(0.05)
            assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))).code == 0


# Messages sent back


async def test_a_message_sent_back_comes_again_and_dies_at_last(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        sent = await peer.send(
            "T", b"hard to swallow", properties={"UNIQ_KEY": "U" * 32, "TAGS": "A"}
        )
        (message,) = (await peer.pull("T")).messages
        for tries in (1, 2):
            header = SendBackHeader(
                message.log_offset, "G", 1, message.message_id, "T", max_reconsume_times=2
            )
            answer = await peer.call(Code.CONSUMER_SEND_MSG_BACK, header)
            assert (answer.code, answer.ext) == (0, None)
            assert (await peer.pull("%RETRY%G", 0, tries - 1)).code == 19, "level 1: a second later"
            (message,) = (await peer.pull("%RETRY%G", 0, tries - 1, hold_ms=5_000)).messages
            assert (message.body, message.reconsume_times, message.message_id) == (
                b"hard to swallow",
                tries,
                "U" * 32,
            )
            assert message.properties["RETRY_TOPIC"] == "T"
            assert message.properties["ORIGIN_MESSAGE_ID"] == sent.message_id, (
                "of the first message, not of its last copy"
            )
        header = SendBackHeader(
            message.log_offset, "G", 0, message.message_id, "T", max_reconsume_times=2
        )
        assert (await peer.call(Code.CONSUMER_SEND_MSG_BACK, header)).code == 0
        assert (await peer.pull("%RETRY%G", 0, 2)).code == 19
        (dead,) = (await peer.pull("%DLQ%G")).messages
        assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (
            b"hard to swallow",
            3,
            "T",
        )
        assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.message_id
        assert dead.properties.keys().isdisjoint({"DELAY", "REAL_TOPIC", "REAL_QID"}), (
            "it waits for nothing any more"
        )


async def test_a_message_sent_back_says_why_its_last_delivery_failed(tmp_path: Path) -> None:
    """Nothing is left of earlier reasons, and no message is refused because of one."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        sent = await peer.send("T")
        long = await peer.send("T", properties={"own": "x" * 32_000})
        for receipt, failure in (
            (sent, "ValueError: \x01\x02\n" + "y" * 300),
            (sent, None),
            (long, "ValueError"),
        ):
            header = SendBackHeader(decode_offset_message_id(receipt.message_id)[2], "G", -1)
            header.failure = failure
            answer = await peer.call(Code.CONSUMER_SEND_MSG_BACK, header)
            assert (answer.code, answer.remark) == (0, None)
        dead = (await peer.pull("%DLQ%G")).messages
        reasons = [message.properties.get("TRIOMQ_FAILURE") for message in dead]
        assert reasons == [("ValueError: \\x01\\x02\\n" + "y" * 300)[:200], None, None]
        again = SendBackHeader(dead[0].log_offset, "G", -1)
        assert (await peer.call(Code.CONSUMER_SEND_MSG_BACK, again)).code == 0
        (last,) = (await peer.pull("%DLQ%G", 0, 3)).messages
        assert "TRIOMQ_FAILURE" not in last.properties


@pytest.mark.feature("125a", "125b")
async def test_the_wait_for_the_next_try_grows_from_10_s(tmp_path: Path) -> None:
    """A message that has failed n times waits in the queue of level 3 + n, as long as that level
    says.
    """
    levels_ms = broker_config(tmp_path).store.delay_levels_ms
    waits: list[float] = []
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        for tries in range(16):
            sent = await peer.send("T", b"%d" % tries, reconsume_times=tries)
            log_offset = decode_offset_message_id(sent.message_id)[2]
            assert (
                await peer.call(Code.CONSUMER_SEND_MSG_BACK, SendBackHeader(log_offset, "G", 0))
            ).code == 0
            where = [
                queue
                for queue in range(18)
                if b"%d" % tries in (await peer.pull("SCHEDULE_TOPIC_XXXX", queue)).bodies
            ]
            waits += [levels_ms[queue] / 1000 for queue in where]
    assert waits[:3] == [10, 30, 60]
    assert waits == sorted(set(waits))
    assert len(waits) == 16


async def test_a_message_sent_back_may_have_separators_in_a_value(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        sent = await peer.send("T", properties="a\1b\1c\2")
        header = SendBackHeader(decode_offset_message_id(sent.message_id)[2], "G", -1)
        answer = await peer.call(Code.CONSUMER_SEND_MSG_BACK, header)
        assert (answer.code, answer.remark) == (0, None)
        (dead,) = (await peer.pull("%DLQ%G")).messages
        assert dead.properties["a"] == "b\1c"


async def test_sending_back_what_is_not_there(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        answer = await peer.call(Code.CONSUMER_SEND_MSG_BACK, SendBackHeader(12345, "G", 0))
        assert (answer.code, answer.remark) == (1, "look message by offset failed, 12345")
        await peer.call(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=b'{"groupName":"drop","retryQueueNums":0}',
        )
        assert (
            await peer.call(Code.CONSUMER_SEND_MSG_BACK, SendBackHeader(12345, "drop", 0))
        ).code == 0


async def test_sends_to_a_retry_topic_are_counted_too(tmp_path: Path) -> None:
    """What a consumer does when sending back fails: it sends to the retry topic itself."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        common = {"properties": {"UNIQ_KEY": "U" * 32, "DELAY": "1"}, "max_reconsume_times": 2}
        await peer.send("%RETRY%G", b"again", reconsume_times=2, **common)
        assert (await peer.pull("%RETRY%G", hold_ms=5_000)).bodies == [b"again"]
        await peer.send("%RETRY%G", b"dead", reconsume_times=3, **common)
        (dead,) = (await peer.pull("%DLQ%G")).messages
        assert (dead.body, "DELAY" in dead.properties) == (b"dead", False), "at once"


@pytest.mark.feature("111d", "112a", "112b", "113a", "113b", "114a", "114b")
async def test_a_delayed_message_comes_when_its_level_is_over(tmp_path: Path) -> None:
    levels = {"messageDelayLevel": "2h 1s"}
    async with running_broker(tmp_path, **levels) as ready, peer_of(ready) as peer:
        await peer.create_topic("T")
        await peer.create_topic("U", 1)
        begin = time.time()
        await peer.send("T", b"much later", queue_id=2, properties={"DELAY": "1"})
        sent = await peer.send(
            "T", b"later", queue_id=2, properties={"UNIQ_KEY": "U" * 32, "TAGS": "A", "DELAY": "2"}
        )
        assert sent.queue_id == 2
        await peer.send("U", b"a level that is too large", properties={"DELAY": "9"})
        await peer.send("T", b"now", queue_id=2, properties={"DELAY": "0"})
        assert (await peer.pull("T", 2)).bodies == [b"now"]
        assert (await peer.pull("SCHEDULE_TOPIC_XXXX", 0)).bodies == [b"much later"]
        assert (await peer.pull("SCHEDULE_TOPIC_XXXX", 1)).bodies == [
            b"later",
            b"a level that is too large",
        ]
        (message,) = (await peer.pull("T", 2, 1, hold_ms=5_000, expression="A")).messages
        assert 1.0 <= time.time() - begin < 4
        assert (message.body, message.message_id, message.properties["TAGS"]) == (
            b"later",
            "U" * 32,
            "A",
        )
        assert message.properties["DELAY"] == "2"
        assert (await peer.pull("U", hold_ms=5_000)).bodies == [b"a level that is too large"]
        assert (
            KvTable.decode(bytes((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)).table[
                "putMessageTimesTotal"
            ]
            == "6"
        ), "four sends, of which two were delivered later"


@pytest.mark.feature("33a", "33b")
@pytest.mark.parametrize("lock", [True, False])
async def test_parallel_sends_never_interleave_whatever_lock_is_configured(
    tmp_path: Path, lock: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_broker_config(
        None,
        environment={},
        definitions=[Entry("useReentrantLockWhenPutMessage", str(lock).lower())],
    )
    assert [warning for warning in loaded.warnings if "useReentrantLockWhenPutMessage" in warning]
    async with (
        running_broker(tmp_path, useReentrantLockWhenPutMessage=lock) as ready,
        AsyncExitStack() as stack,
    ):
        peers = [await stack.enter_async_context(peer_of(ready)) for _ in range(8)]
        await peers[0].create_topic("T", 4)

        async def send(sender: int) -> None:
            for number in range(25):
                await peers[sender].send(
                    "T", b"%d-%d;" % (sender, number) * (1 + 37 * number), queue_id=sender % 4
                )

        async with trio.open_nursery() as nursery:
            for sender in range(8):
                nursery.start_soon(send, sender)
    (file,) = (tmp_path / "commitlog").iterdir()
    data, at, found = file.read_bytes(), 0, []
    while data[at : at + 4] != bytes(4):
        found.append(decode_record(data, at, check_crc=True))
        assert found[-1].log_offset == at
        at += found[-1].size
    assert sorted(message.body for message in found) == sorted(
        b"%d-%d;" % (sender, number) * (1 + 37 * number)
        for sender in range(8)
        for number in range(25)
    )
