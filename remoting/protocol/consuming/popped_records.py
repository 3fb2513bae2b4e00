"""From the answer to a pop to records with their receipt handles. Pure.

The header lists the offsets of each queue, from which clients make the handles. A message that came
from a retry topic looks like one of its original topic and brings its handle as the property
POP_CK.

Source: client/…/impl/MQClientAPIImpl.java#processPopResponse, remoting/…/header/ExtraInfoUtil.java.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.headers.pop import PopMessageResponseHeader
from triomq.remoting.protocol.message_properties import POP_CK
from triomq.remoting.protocol.receipt_handle import (
    LISTED_MAX,
    NORMAL,
    RETRY_V1,
    Place,
    ReceiptHandle,
    decode_offsets,
    decode_starts,
    number,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.record_reader import decode_records


@attrs.frozen
class PoppedRecord:
    """A record and the handle that acknowledges it."""

    record: StoredMessage
    handle: ReceiptHandle


def popped_records(
    header: PopMessageResponseHeader, body: bytes | memoryview, broker_name: str
) -> list[PoppedRecord]:
    """Return the messages of an answer in their order.

    Raises: RemoteProtocolError.
    """
    starts = decode_starts(header.start_offsets or "")
    offsets = decode_offsets(header.message_offsets or "")
    counts = decode_counts(header.order_counts or "")
    found = []
    for record in decode_records(body):
        handle = _own_handle(record, broker_name) or _listed_handle(
            record, header, starts, offsets, broker_name
        )
        count = counts.get(((handle.retry, handle.queue_id), handle.offset))
        if count is not None:
            record.reconsume_times = count
        found.append(PoppedRecord(record, handle))
    return found


def decode_counts(text: str) -> dict[tuple[Place, int], int]:
    """Return ``orderCountInfo``: earlier deliveries of messages, by place and offset.

    Items about whole queues, for old clients, are left out. Raises: RemoteProtocolError.
    """
    counts: dict[tuple[Place, int], int] = {}
    for item in text.split(";", LISTED_MAX) if text else []:
        parts = item.split(" ")
        if len(parts) == 3 and not parts[1].startswith("qo"):
            continue
        queue_text, _, offset_text = (
            parts[1].removeprefix("qo").partition("%") if len(parts) == 3 else ("", "", "")
        )
        values = [number(part) for part in (parts[0], queue_text, offset_text, parts[-1])]
        if None in values:
            raise RemoteProtocolError(
                f"{text[:60]!r} does not list deliveries", "use a RocketMQ or TrioMQ broker"
            )
        kind, queue_id, offset, count = (value or 0 for value in values)
        counts[(kind, queue_id), offset] = count
    return counts


def _own_handle(record: StoredMessage, broker_name: str) -> ReceiptHandle | None:
    """Return the handle of a message of a retry topic; None for another message."""
    text = record.properties.get(POP_CK)
    if text is None:
        return None
    handle = ReceiptHandle.decode(text)
    # A producer may have copied the property of a message that it had popped.
    if handle.retry == NORMAL or (handle.offset, handle.broker_name) != (
        record.queue_offset,
        broker_name,
    ):
        return None
    return handle


def _listed_handle(
    record: StoredMessage,
    header: PopMessageResponseHeader,
    starts: Mapping[Place, int],
    offsets: Mapping[Place, list[int]],
    broker_name: str,
) -> ReceiptHandle:
    # A Java broker lists a retry topic that was asked for by its own name under kind 1.
    for kind in (NORMAL, RETRY_V1):
        place = kind, record.queue_id
        if place in starts and record.queue_offset in offsets.get(place, ()):
            return ReceiptHandle(
                starts[place],
                header.pop_time,
                header.invisible_ms,
                header.revive_queue_id,
                kind,
                broker_name,
                record.queue_id,
                record.queue_offset,
            )
    raise RemoteProtocolError(
        f"the answer to a pop does not list offset {record.queue_offset} of queue"
        f" {record.queue_id}",
        "use a RocketMQ or TrioMQ broker",
    )
