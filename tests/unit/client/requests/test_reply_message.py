"""The body of a reply, by what its header says of it."""

from __future__ import annotations

import zlib

import pytest

from triomq import MessageInvalid, ReplyMessage
from triomq.client.requests.reply_message import reply_record
from triomq.remoting.protocol.headers.send import ReplyMessageHeader
from triomq.remoting.protocol.sys_flags import COMPRESSED, COMPRESSION_ZLIB

LONG = b"x" * 10_000


def reply(body: bytes, sys_flag: int) -> ReplyMessage:
    header = ReplyMessageHeader(
        producer_group="g",
        topic="DefaultCluster_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=1,
        flag=0,
        born_host="10.0.0.1:1",
        store_host="10.0.0.2:2",
        store_timestamp=2,
    )
    return ReplyMessage(reply_record(header, body, 3), "g", "broker-a")


@pytest.mark.parametrize("kind", [0, COMPRESSION_ZLIB])
def test_a_compressed_body(kind: int) -> None:
    assert reply(zlib.compress(LONG), COMPRESSED | kind).body == LONG


def test_a_plain_body_that_is_called_compressed() -> None:
    """The Go client sends that; Java's client takes the body as it is, too."""
    assert reply(LONG, COMPRESSED).body == LONG


def test_a_broken_body() -> None:
    with pytest.raises(MessageInvalid, match="cannot be inflated"):
        _ = reply(LONG, COMPRESSED | COMPRESSION_ZLIB).body
