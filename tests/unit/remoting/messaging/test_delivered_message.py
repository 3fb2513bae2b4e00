"""Stored messages as 5.x consumers get them."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging import delivered_message as module
from triomq.remoting.messaging.checks import check_message
from triomq.remoting.messaging.delivered_message import delivered_message
from triomq.remoting.messaging.sent_message import sent_message
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.compression import Compression, compress_body
from triomq.remoting.protocol.message_properties import RESERVED_PROPERTIES, encode_properties
from triomq.remoting.protocol.record import StoredMessage, encode_host, encode_record
from triomq.remoting.protocol.record_reader import decode_records

BORN_MS, STORED_MS = 1_764_201_600_123, 1_764_201_601_456
HANDLE = "a handle"


def stored(
    properties: dict[str, str] | None = None, body: bytes = b"a body", **fields: Any
) -> StoredMessage:
    values: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 3,
        "queue_offset": 77,
        "log_offset": 4711,
        "born_timestamp": BORN_MS,
        "born_host": encode_host(bytes([192, 0, 2, 7]), 50_000),
        "store_timestamp": STORED_MS,
        "store_host": encode_host(bytes([192, 0, 2, 1]), 10_911),
    }
    record = encode_record(
        body=body, properties=encode_properties(properties or {}), **{**values, **fields}
    )
    (message,) = decode_records(record, check_crc=True)
    return message


def delivered(*args: Any, **fields: Any) -> pb.Message:
    return delivered_message(
        stored(*args, **fields), topic="orders", handle=HANDLE, invisible_ms=30_500
    )


def test_every_field_of_a_plain_message() -> None:
    made = delivered({"UNIQ_KEY": "0102", "region": "eu", "TAGS": "a", "KEYS": "k1 k2"})
    expected = pb.Message(
        topic=pb.Resource(name="orders"), body=b"a body", user_properties={"region": "eu"}
    )
    system = expected.system_properties
    system.tag = "a"
    system.keys.extend(["k1", "k2"])
    system.message_id = "0102"
    system.body_digest.type = pb.DigestType.MD5
    system.body_digest.checksum = hashlib.md5(b"a body").hexdigest().upper()
    system.body_encoding = pb.Encoding.IDENTITY
    system.message_type = pb.MessageType.NORMAL
    system.born_timestamp.FromMilliseconds(BORN_MS)
    system.born_host = "192.0.2.7"
    system.store_timestamp.FromMilliseconds(STORED_MS)
    system.store_host = "192.0.2.1:10911"
    system.receipt_handle = HANDLE
    system.queue_id = 3
    system.queue_offset = 77
    system.invisible_duration.FromMilliseconds(30_500)
    system.delivery_attempt = 1
    assert made == expected


def test_a_message_of_an_old_producer_has_an_offset_id() -> None:
    message = stored()
    made = delivered_message(message, topic="orders", handle=HANDLE, invisible_ms=None)
    assert made.system_properties.message_id == message.offset_message_id
    for name in ("tag", "message_group", "delivery_timestamp", "dead_letter_queue"):
        assert not made.system_properties.HasField(name)


def test_nothing_to_acknowledge() -> None:
    made = delivered_message(stored(), topic="orders", handle="", invisible_ms=None)
    assert not made.system_properties.HasField("receipt_handle")
    assert not made.system_properties.HasField("invisible_duration")


def test_offset_0_is_there() -> None:
    made = delivered(queue_offset=0)
    assert made.system_properties.HasField("queue_offset")


def test_the_topic_is_as_the_client_names_it() -> None:
    topic = pb.Resource(resource_namespace="tenant", name="orders")
    message = stored(topic="%RETRY%tenant%g")
    made = delivered_message(message, topic=topic, handle=HANDLE, invisible_ms=1)
    assert made.topic == topic


def test_reserved_properties_are_hidden() -> None:
    own = {
        "__SHARDINGKEY": "g",
        "__transactionId__": "t",
        "TRACE_CONTEXT": "c",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "9",
        "mine": "m",
    }
    made = delivered(dict.fromkeys(RESERVED_PROPERTIES, "1") | own)
    assert dict(made.user_properties) == own
    assert made.system_properties.message_group == "g"
    assert made.system_properties.trace_context == "c"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "NORMAL"),
        ({"__SHARDINGKEY": "g"}, "FIFO"),
        ({"DELAY": "3", "__SHARDINGKEY": "g"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1"}, "DELAY"),
        ({"TIMER_DELAY_MS": "1"}, "DELAY"),
        ({"TRAN_MSG": "true", "TIMER_DELIVER_MS": "1"}, "TRANSACTION"),
        ({"TRAN_MSG": "false"}, "NORMAL"),
    ],
)
def test_types(properties: dict[str, str], expected: str) -> None:
    made = delivered(properties)
    assert pb.MessageType.Name(made.system_properties.message_type) == expected


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"TIMER_DELIVER_MS": str(BORN_MS)}, BORN_MS),
        ({"TIMER_DELIVER_MS": str(BORN_MS), "TIMER_OUT_MS": "1"}, BORN_MS),
        ({"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": str(BORN_MS)}, BORN_MS),
        ({"TIMER_DELAY_SEC": "9"}, None),
        ({"TIMER_DELIVER_MS": "soon"}, None),
        ({"TIMER_DELIVER_MS": "-5"}, None),
        ({"TIMER_DELIVER_MS": "9" * 19}, 253_402_300_799_999),
        ({"TIMER_DELIVER_MS": "9" * 20}, None),
    ],
)
def test_times_of_delivery(properties: dict[str, str], expected: int | None) -> None:
    system = delivered(properties).system_properties
    assert system.HasField("delivery_timestamp") == (expected is not None)
    if expected is not None:
        assert system.delivery_timestamp.ToMilliseconds() == expected


def test_a_dead_letter_names_its_origin() -> None:
    origin = {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "0102"}
    made = delivered(origin).system_properties
    assert made.dead_letter_queue == pb.DeadLetterQueue(topic="orders", message_id="0102")
    for name in origin:
        half = delivered({name: origin[name]}).system_properties
        assert not half.HasField("dead_letter_queue")


def test_hosts() -> None:
    address = bytes.fromhex("20010db8000000000000000000000007")
    made = delivered(
        born_host=encode_host(address, 50_000), store_host=encode_host(address, 10_911)
    ).system_properties
    assert (made.born_host, made.store_host) == ("2001:db8::7", "[2001:db8::7]:10911")
    assert delivered({"__BORNHOST": "laptop"}).system_properties.born_host == "laptop"


@pytest.mark.parametrize(("times", "attempt"), [(0, 1), (4, 5), (2**31 - 1, 2**31 - 1)])
def test_attempts(times: int, attempt: int) -> None:
    assert delivered(reconsume_times=times).system_properties.delivery_attempt == attempt


@pytest.mark.parametrize("time_ms", [-(2**63), 2**63 - 1])
def test_times_that_no_client_can_read_are_cut(time_ms: int) -> None:
    made = delivered(born_timestamp=time_ms, store_timestamp=time_ms).system_properties
    expected = 0 if time_ms < 0 else 253_402_300_799_999
    assert made.born_timestamp.ToMilliseconds() == expected
    assert made.store_timestamp.ToMilliseconds() == expected


# Bodies

PLAIN = bytes(range(256)) * 40 + b"the end"


def check_digest(made: pb.Message) -> None:
    digest = made.system_properties.body_digest
    assert digest.checksum == hashlib.md5(made.body).hexdigest().upper()


def test_a_gzip_body_stays_as_it_is() -> None:
    body = gzip.compress(PLAIN)
    made = delivered(body=body, sys_flag=1)
    assert made.body == body
    assert made.system_properties.body_encoding == pb.Encoding.GZIP
    check_digest(made)


@pytest.mark.parametrize("sys_flag", [0x1, 0x301])
@pytest.mark.parametrize("level", [0, 1, 5, 9])
@pytest.mark.parametrize("plain", [PLAIN, b"", b"x", b"\0" * 600_000])
def test_a_zlib_body_becomes_a_gzip_file(plain: bytes, level: int, sys_flag: int) -> None:
    made = delivered(body=zlib.compress(plain, level), sys_flag=sys_flag)
    assert made.body.startswith(b"\x1f\x8b\x08")
    assert gzip.decompress(made.body) == plain
    assert made.system_properties.body_encoding == pb.Encoding.GZIP
    check_digest(made)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_other_compressions_are_delivered_plain(compression: Compression) -> None:
    pytest.importorskip({"LZ4": "lz4", "ZSTD": "zstandard"}[compression.name])
    body, sys_flag = compress_body(PLAIN, compression=compression)
    made = delivered(body=body, sys_flag=sys_flag)
    assert made.body == PLAIN
    assert made.system_properties.body_encoding == pb.Encoding.IDENTITY
    check_digest(made)


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (b"not compressed", 0x1),
        (zlib.compress(PLAIN)[:-1], 0x1),
        (zlib.compress(PLAIN)[:-1] + b"x", 0x1),  # a wrong checksum
        (zlib.compress(PLAIN) + b"more", 0x1),
        (b"", 0x1),
        (b"not compressed", 0x101),
        (b"not compressed", 0x701),
    ],
)
def test_a_damaged_body_is_left_to_its_consumer(body: bytes, sys_flag: int) -> None:
    made = delivered(body=body, sys_flag=sys_flag)
    assert made.body == body
    assert made.system_properties.body_encoding == pb.Encoding.GZIP
    check_digest(made)


def test_a_very_long_body_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    body = zlib.compress(bytes(1_000_001))
    monkeypatch.setattr(module, "PLAIN_BYTES_MAX", 1_000_000)
    assert delivered(body=body, sys_flag=1).body == body
    monkeypatch.setattr(module, "PLAIN_BYTES_MAX", 1_000_001)
    assert gzip.decompress(delivered(body=body, sys_flag=1).body) == bytes(1_000_001)


# From the producer to the consumer

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
WORDS = TEXTS.filter(lambda text: " " not in text and text.strip() != "")
# These carry fields of the system, and yet users may set them.
FIELD_NAMES = ("__SHARDINGKEY", "TRACE_CONTEXT", "CHECK_IMMUNITY_TIME_IN_SECONDS")
NAMES = TEXTS.filter(lambda text: text not in RESERVED_PROPERTIES.union(FIELD_NAMES))
GROUPS = WORDS.filter(lambda text: len(text.encode()) < 64)
TIMES_MS = st.integers(0, BORN_MS + 86_400_000)


@st.composite
def messages(draw: st.DrawFn) -> pb.Message:
    message = pb.Message(
        topic=pb.Resource(name="orders"),
        body=draw(st.binary(min_size=1, max_size=100)),
        user_properties=draw(st.dictionaries(NAMES, TEXTS, max_size=4)),
    )
    system = message.system_properties
    system.message_id = draw(WORDS)
    system.message_type = draw(st.sampled_from(pb.MessageType.values()[:5]))
    system.body_encoding = pb.Encoding.IDENTITY
    system.keys.extend(draw(st.lists(WORDS, max_size=3)))
    system.born_timestamp.FromMilliseconds(draw(TIMES_MS))
    if draw(st.booleans()):
        system.tag = draw(WORDS.filter(lambda text: "|" not in text))
    if draw(st.booleans()):
        system.message_group = draw(GROUPS)
    if draw(st.booleans()):
        system.trace_context = draw(TEXTS)
    if draw(st.booleans()):
        system.delivery_timestamp.FromMilliseconds(draw(TIMES_MS))
    if draw(st.booleans()):
        system.orphaned_transaction_recovery_duration.seconds = draw(st.integers(0, 3600))
    return message


@given(messages())
def test_a_message_arrives_as_it_was_sent(message: pb.Message) -> None:
    check_message(message, BORN_MS)
    sent = sent_message(message, "192.0.2.7:50000", BORN_MS)
    made = delivered_message(
        stored(
            sent.properties,
            sent.body,
            topic=sent.topic,
            sys_flag=sent.sys_flag,
            born_timestamp=sent.born_timestamp,
        ),
        topic=message.topic,
        handle=HANDLE,
        invisible_ms=None,
    )
    assert (made.topic, made.body) == (message.topic, message.body)
    before, after = message.system_properties, made.system_properties
    for name in ("message_id", "keys", "tag", "message_group", "trace_context", "body_encoding"):
        assert getattr(after, name) == getattr(before, name)
    for name in ("tag", "message_group", "trace_context", "delivery_timestamp"):
        assert after.HasField(name) == before.HasField(name)
    assert after.delivery_timestamp == before.delivery_timestamp
    assert after.message_type == sent.kind
    user = dict(made.user_properties)
    for name in FIELD_NAMES:
        user.pop(name, None)
    assert user == dict(message.user_properties)


ANY_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(ANY_TEXTS, ANY_TEXTS, ANY_TEXTS)
def test_no_text_of_a_message_becomes_another_property(first: str, second: str, third: str) -> None:
    """A message is refused, or no text of it ends a property and begins another."""
    message = pb.Message(topic=pb.Resource(name="orders"), body=b"b", user_properties={"a": third})
    system = message.system_properties
    system.message_id = "1"
    system.tag, system.trace_context, system.born_host = first, second, third
    system.message_group = first
    system.keys.append(second)
    sent = sent_message(message, "h", BORN_MS)
    kept = {name: value for name, value in sent.properties.items() if value}
    assert _refused(message) or stored(sent.properties).properties == kept


def _refused(message: pb.Message) -> bool:
    try:
        check_message(message, BORN_MS)
    except Refused:
        return True
    return False
