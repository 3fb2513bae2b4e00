"""The records of a transaction: half, op record, committed message, and copies of a half. Pure.

A half is an ordinary record in RMQ_SYS_TRANS_HALF_TOPIC that knows its real topic and queue. An op
record in RMQ_SYS_TRANS_OP_HALF_TOPIC names halves that are finished, by their queue offsets. The
committed message is a new record in the real topic. Source:
broker/transaction/queue/TransactionalMessageBridge.java, TransactionalMessageServiceImpl.java,
TransactionalOpBatchService.java, broker/processor/EndTransactionProcessor.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from triomq.broker.store.core.draft import Appended, Draft, copied_draft
from triomq.remoting.protocol.message_properties import (
    CHECK_IMMUNITY_SECONDS,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAGS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    WAIT,
    joined_properties,
    properties_text,
)
from triomq.remoting.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from triomq.remoting.protocol.record import StoredMessage, encode_record
from triomq.remoting.protocol.sys_flags import TRANSACTION_COMMIT, TRANSACTION_MASK

OP_PROPERTIES = joined_properties({WAIT: "true", TAGS: "d"}).encode()
OP_BODY_BYTES = 4096
"""Default length of an op record's body; a longer list of halves becomes several op records."""
COPY_BYTES = 120
"""What the properties of a copy may have more than those of the half."""
CHECKS_MAX = 1_000_000
"""A larger number of checks in a record is not believed."""


def make_half(draft: Draft) -> None:
    """Turn the draft of a message into its half; sysFlag has no transaction bits on the disk."""
    real = {REAL_TOPIC: draft.topic, REAL_QUEUE_ID: str(draft.queue_id)}
    if draft.unique_key:
        real[TRANSACTION_ID] = draft.unique_key
    # The place of a first record that another broker had: here it would be that of another half.
    foreign = PREPARED_QUEUE_OFFSET.encode() + b"\x01"
    if foreign in draft.properties:
        parts = draft.properties.split(b"\x02")
        draft.properties = b"\x02".join([part for part in parts if not part.startswith(foreign)])
    separator = b"" if not draft.properties or draft.properties.endswith(b"\x02") else b"\x02"
    draft.properties += separator + properties_text(real).encode()
    draft.topic, draft.queue_id = HALF_TOPIC, 0
    draft.sys_flag &= ~TRANSACTION_MASK
    draft.special = False


def committed(half: StoredMessage) -> Draft:
    """Return the draft of the message that consumers get."""
    properties = {
        name: value
        for name, value in half.properties.items()
        if name not in (REAL_TOPIC, REAL_QUEUE_ID, PREPARED_QUEUE_OFFSET)
    }
    draft = _copy(half, half.properties[REAL_TOPIC], real_queue_id(half.properties), properties)
    draft.sys_flag |= TRANSACTION_COMMIT
    draft.prepared_transaction_offset = half.log_offset
    return draft


def moved(half: StoredMessage, *, checks: int) -> Draft:
    """Return the draft of a copy at the end of the half queue, after ``checks`` checks."""
    properties = {
        **half.properties,
        WAIT: "false",
        PREPARED_QUEUE_OFFSET: str(first_queue_offset(half)),
    }
    if checks:
        properties[TRANSACTION_CHECK_TIMES] = str(checks)
    return _copy(half, HALF_TOPIC, half.queue_id, properties)


def abandoned(half: StoredMessage) -> Draft:
    """Return the draft of a half that nobody ends; it keeps its real topic for the operator."""
    return _copy(half, CHECK_MAX_TIME_TOPIC, 0, dict(half.properties))


def resumed(given_up: StoredMessage) -> Draft:
    """Return the draft of a half that was given up and begins again, with no check counted."""
    properties = {
        name: value
        for name, value in given_up.properties.items()
        if name not in (TRANSACTION_CHECK_TIMES, PREPARED_QUEUE_OFFSET)
    }
    return _copy(given_up, HALF_TOPIC, 0, properties)


def op_drafts(
    queue_offsets: Sequence[int], store_host: bytes, now_ms: int, body_bytes: int
) -> Iterator[Draft]:
    """Yield the drafts of the op records that finish these halves."""
    part: list[str] = []
    size = 0
    for offset in queue_offsets:
        text = f"{offset},"
        if part and size + len(text) > body_bytes:
            yield _op_draft("".join(part), store_host, now_ms)
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield _op_draft("".join(part), store_host, now_ms)


def _op_draft(body: str, store_host: bytes, now_ms: int) -> Draft:
    return Draft(OP_HALF_TOPIC, 0, body.encode(), OP_PROPERTIES, 0, 0, now_ms, store_host, tags="d")


def finished_offsets(body: bytes) -> list[int]:
    """Return the queue offsets that an op record names: ``12,13,27,`` or, from 4.9, ``12``.

    Anything else in between is skipped, as in Java.
    """
    return [int(word) for word in body.split(b",") if word.isdigit() and len(word) < 20]


def check_record(half: StoredMessage, copy: Draft, place: Appended) -> bytes:
    """Return the body of a check: the copy of the half, with its real topic and queue."""
    return encode_record(
        topic=half.properties[REAL_TOPIC],
        queue_id=real_queue_id(half.properties),
        queue_offset=place.queue_offset,
        log_offset=place.log_offset,
        body=half.body,
        properties=copy.properties,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host_bytes,
        store_timestamp=place.store_timestamp,
        store_host=half.store_host_bytes,
        flag=half.flag,
        sys_flag=half.sys_flag,
        reconsume_times=half.reconsume_times,
    )


def checks_of(half: StoredMessage) -> int:
    """Return how often producers were asked."""
    return min(_number(half.properties, TRANSACTION_CHECK_TIMES, 0), CHECKS_MAX)


def immune_seconds(half: StoredMessage, timeout: float, now_ms: int) -> float:
    """Return how long the sender wants this half to be left alone from now on.

    Only if it asked for more than the time-out, and only before the first check.
    """
    text = half.properties.get(CHECK_IMMUNITY_SECONDS, "")
    if checks_of(half) or not text.isascii() or not text.isdigit() or len(text) > 9:
        return 0.0
    seconds = int(text)
    if seconds <= timeout:
        return 0.0
    return min(half.store_timestamp / 1000 + seconds - now_ms / 1000, float(seconds))


def first_queue_offset(half: StoredMessage) -> int:
    """Return the queue offset that the producer knows: that of the first record."""
    return _number(half.properties, PREPARED_QUEUE_OFFSET, half.queue_offset)


def producer_group(half: StoredMessage) -> str:
    return half.properties.get(PRODUCER_GROUP, "")


def real_queue_id(properties: Mapping[str, str]) -> int:
    """Return the queue that the message was sent to; 0 if the record does not say."""
    return min(_number(properties, REAL_QUEUE_ID, 0), 0x7FFFFFFF)


def is_half(message: StoredMessage) -> bool:
    """Return whether a record is a half that can be committed."""
    return message.topic == HALF_TOPIC and bool(message.properties.get(REAL_TOPIC))


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else default


def _copy(half: StoredMessage, topic: str, queue_id: int, properties: Mapping[str, str]) -> Draft:
    draft = copied_draft(half, topic, queue_id, joined_properties(properties).encode())
    draft.sys_flag &= ~TRANSACTION_MASK
    return draft
