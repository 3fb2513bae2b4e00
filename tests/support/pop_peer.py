"""A client's side of POP: requests, and the handles that Java's client makes of the answers."""

from __future__ import annotations

import time
from typing import Any

import attrs
from brokers import BrokerPeer

from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.headers.pop import (
    AckMessageHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from triomq.remoting.protocol.receipt_handle import (
    NORMAL,
    ReceiptHandle,
    decode_offsets,
    decode_starts,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records

INVISIBLE_MS = 1_500


@attrs.define(eq=False)
class Popped:
    """A message with its handle."""

    message: StoredMessage
    handle: ReceiptHandle
    topic: str

    @property
    def body(self) -> bytes:
        return self.message.body


async def pop(
    peer: BrokerPeer, *, count: int = 32, invisible_ms: int = INVISIBLE_MS, **more: Any
) -> tuple[int, list[Popped]]:
    """Pop, and make the handles as Java's client does."""
    values: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "T",
        "queue_id": -1,
        "message_count_max": count,
        "invisible_ms": invisible_ms,
        "poll_ms": 0,
        "init_mode": 0,
        "born_timestamp": int(time.time() * 1000),
        **more,
    }
    answer = await peer.call(Code.POP_MESSAGE, PopMessageHeader(**values), timeout=30)
    if answer.code:
        return answer.code, []
    return 0, popped(answer, values["topic"], "broker-a")


def popped(answer: Command, topic: str, broker_name: str) -> list[Popped]:
    """Return the messages of an answer, with the handles that Java's client makes."""
    header = answer.header(PopMessageResponseHeader)
    starts = decode_starts(header.start_offsets or "")
    offsets = decode_offsets(header.message_offsets or "")
    found = []
    for message in decode_records(bytes(answer.body)):
        text = message.properties.get("POP_CK")
        if text is not None:
            handle = ReceiptHandle.decode(text)
            found.append(Popped(message, handle, retry_of(topic)))
            continue
        place = NORMAL, message.queue_id
        assert message.queue_offset in offsets[place]
        handle = ReceiptHandle(
            starts[place],
            header.pop_time,
            header.invisible_ms,
            header.revive_queue_id,
            NORMAL,
            broker_name,
            message.queue_id,
            message.queue_offset,
        )
        found.append(Popped(message, handle, topic))
    assert len(found) == sum(map(len, offsets.values()))
    return found


def retry_of(topic: str) -> str:
    """Return the topic in which messages of group G come again."""
    return f"%RETRY%G_{topic}"


async def acknowledge(peer: BrokerPeer, popped: Popped) -> None:
    handle = popped.handle
    header = AckMessageHeader("G", popped.topic, handle.queue_id, handle.encode(), handle.offset)
    answer = await peer.call(Code.ACK_MESSAGE, header)
    assert answer.code == 0, answer.remark
