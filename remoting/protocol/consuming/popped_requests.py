"""The requests about one popped message, for the SDK and for the service of gRPC clients. PURE.

Source: client/…/impl/MQClientAPIImpl.java#ackMessageAsync, changeInvisibleTimeAsync;
proxy/…/processor/ConsumerProcessor.java.
"""

from __future__ import annotations

from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, request
from triomq.remoting.protocol.headers.pop import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
)
from triomq.remoting.protocol.headers.send import SendBackHeader
from triomq.remoting.protocol.names import RETRY_PREFIX, pop_retry_topics
from triomq.remoting.protocol.receipt_handle import NORMAL, RETRY_V1, ReceiptHandle


def stored_topic(group: str, topic: str, handle: ReceiptHandle) -> str:
    """Return the topic that has a message: the one that was asked for, or a retry topic."""
    # A Java broker lists a retry topic that was asked for by its own name as one of kind 1.
    if handle.retry == NORMAL or topic.startswith(RETRY_PREFIX):
        return topic
    first, second = pop_retry_topics(group, topic)
    return first if handle.retry == RETRY_V1 else second


def ack_header(group: str, stored_in: str, handle: ReceiptHandle) -> AckMessageHeader:
    """Return the header of the request that acknowledges a message.

    ``stored_in``: its ``stored_topic``.
    """
    return AckMessageHeader(
        consumer_group=group,
        topic=stored_in,
        queue_id=handle.queue_id,
        receipt=handle.encode(),
        offset=handle.offset,
        broker_name=handle.broker_name,
    )


def ack_request(group: str, stored_in: str, handle: ReceiptHandle) -> Command:
    """Return the request that acknowledges a message. ``stored_in``: its ``stored_topic``."""
    return request(RequestCode.ACK_MESSAGE, ack_header(group, stored_in, handle))


def change_header(
    group: str, stored_in: str, handle: ReceiptHandle, invisible_ms: int
) -> ChangeInvisibleTimeHeader:
    """Return the header of the request that hides a message for another time, from now on.

    ``stored_in``: its ``stored_topic``.
    """
    return ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=stored_in,
        queue_id=handle.queue_id,
        receipt=handle.encode(),
        offset=handle.offset,
        invisible_ms=invisible_ms,
        broker_name=handle.broker_name,
    )


def change_request(group: str, stored_in: str, handle: ReceiptHandle, invisible_ms: int) -> Command:
    """Return the request that hides a message for another time, from now on."""
    header = change_header(group, stored_in, handle, invisible_ms)
    return request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


def changed_handle(
    handle: ReceiptHandle, answer: ChangeInvisibleTimeResponseHeader
) -> ReceiptHandle:
    """Return the new handle of a message whose time was changed; the old one counts no more."""
    return handle._replace(
        start_offset=handle.offset,
        pop_time=answer.pop_time,
        invisible_ms=answer.invisible_ms,
        revive_queue=answer.revive_queue_id,
    )


def dead_letter_request(
    group: str, origin_topic: str, broker_name: str, log_offset: int, message_id: str | None = None
) -> Command:
    """Return the request that stores a copy of a message as a dead letter of its group."""
    header = SendBackHeader(
        offset=log_offset,
        group=group,
        delay_level=-1,
        origin_message_id=message_id,
        origin_topic=origin_topic,
        unit_mode=False,
        max_reconsume_times=0,
        broker_name=broker_name,
    )
    return request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
