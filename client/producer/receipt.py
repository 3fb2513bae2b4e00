"""`SendReceipt`: what a broker says about a message that it took."""

from __future__ import annotations

import enum

import attrs

from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import ResponseCode


class SendStatus(enum.Enum):
    """How safe a stored message is.  All four are successes: the message is on the broker and consumers get it."""

    STORED = ResponseCode.SUCCESS
    """as safe as the broker's flush and replication modes promise (Java: SEND_OK)"""
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    """in the page cache, not on the disk in time (synchronous flush only)"""
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    """on the master, not on a slave in time (synchronous replication only)"""
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    """on the master, no slave is there (synchronous replication only)"""


STATUS_OF_CODE = {int(status.value): status for status in SendStatus}


@attrs.frozen
class SendReceipt:
    """Where a message lies."""

    message_id: str
    """made by the producer before the first try, equal for all tries and deliveries: use it to recognise duplicates"""
    offset_message_id: str
    """made by the broker: its address and the log offset"""
    queue: MessageQueue
    queue_offset: int
    status: SendStatus
    region: str
    recall_handle: str | None
    """cancels a message with a delivery time, None for others"""
