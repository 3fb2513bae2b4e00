"""``SendReceipt``: a broker's confirmation of a message."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import ResponseCode


class SendStatus(enum.Enum):
    """How safely a message is stored. All four are successes: consumers get the message."""

    STORED = ResponseCode.SUCCESS
    """stored as safely as the broker's flush and replication modes promise (Java: SEND_OK)"""
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    """in the page cache, but not on the disk in time (synchronous flush only)"""
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    """on the master, but not on a slave in time (synchronous replication only)"""
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    """on the master; no slave is connected (synchronous replication only)"""


STATUS_OF_CODE = {int(status.value): status for status in SendStatus}


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message is stored."""

    message_id: str
    """made by the producer; equal for all attempts and deliveries, so it identifies duplicates"""
    offset_message_id: str
    """made by the broker from its address and the log offset"""
    queue: MessageQueue
    queue_offset: int
    status: SendStatus
    region: str
    recall_handle: str | None
    """cancels a message with a delivery time; None for other messages"""


def split_receipt(receipt: SendReceipt, message_ids: Sequence[str]) -> list[SendReceipt]:
    """Return one receipt for each message of a batch.

    The broker's answer has all ids, joined by commas, and the first offset.
    """
    offset_ids = receipt.offset_message_id.split(",")
    if len(offset_ids) != len(message_ids):
        offset_ids = [receipt.offset_message_id] * len(message_ids)
    queue, offset = receipt.queue, receipt.queue_offset
    status, region = receipt.status, receipt.region
    return [
        SendReceipt(message_id, offset_id, queue, offset + number, status, region, None)
        for number, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids))
    ]
