"""A message of a 5.x producer as the remoting protocol sends it. PURE; called for every message.

Source: proxy/grpc/v2/producer/SendMessageActivity.java.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.checks import time_ms, topic_name
from triomq.remoting.messaging.status_codes import Refused
from triomq.remoting.protocol.java_hash import java_hash
from triomq.remoting.protocol.message_properties import (
    CHECK_IMMUNITY_SECONDS,
    KEYS,
    PRODUCER_GROUP,
    RECONSUME_TIME,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
)
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from triomq.remoting.protocol.sys_flags import COMPRESSED, TRANSACTION_PREPARED

BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TRACE_CONTEXT = "TRACE_CONTEXT"

# Attributes of enums are looked up by name at each use, which costs more than a constant.
_NORMAL, _FIFO = pb.MessageType.NORMAL, pb.MessageType.FIFO
_DELAY, _TRANSACTION = pb.MessageType.DELAY, pb.MessageType.TRANSACTION
_GZIP = pb.Encoding.GZIP


@attrs.frozen
class SentMessage:
    """A message for SEND_MESSAGE. ``kind``: its type, a value of the enum MessageType."""

    topic: str
    body: bytes = attrs.field(repr=lambda body: f"{len(body)} bytes")
    properties: dict[str, str]
    sys_flag: int
    born_timestamp: int
    """In ms by the clock of the server, as in a Java proxy; the client's is a property."""
    kind: int


def sent_message(message: pb.Message, born_host: str, now_ms: int) -> SentMessage:
    """Return a checked message as the remoting protocol sends it.

    ``born_host``: the client's address, for a message that does not name its own.
    ``now_ms``: the time, for a message that does not have its own.
    """
    system = message.system_properties
    topic = topic_name(message.topic)
    user_properties = message.user_properties
    properties = dict(user_properties) if user_properties else {}
    properties[UNIQ_KEY] = system.message_id
    properties[PRODUCER_GROUP] = topic
    properties[BORN_HOST] = system.born_host or born_host
    properties[BORN_TIMESTAMP] = str(
        time_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    )
    if tag := system.tag:
        properties[TAGS] = tag
    if keys := system.keys:
        properties[KEYS] = " ".join(keys)
    if group := system.message_group:
        properties[SHARDING_KEY] = group
    kind = _FIFO if SHARDING_KEY in properties else _NORMAL  # a user may set it, too
    if system.HasField("delivery_timestamp"):
        # A time before 1970 is as due as any in the past, and brokers do not read its minus sign.
        properties[TIMER_DELIVER_MS] = str(max(time_ms(system.delivery_timestamp), 0))
        kind = _DELAY
    if trace_context := system.trace_context:
        properties[TRACE_CONTEXT] = trace_context
    if (attempt := system.delivery_attempt) > 0:
        properties[RECONSUME_TIME] = str(attempt)
    sys_flag = COMPRESSED if system.body_encoding == _GZIP else 0
    if system.message_type == _TRANSACTION:
        kind = _TRANSACTION
        sys_flag |= TRANSACTION_PREPARED
        properties[TRAN_MSG] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            properties[CHECK_IMMUNITY_SECONDS] = str(seconds)
    return SentMessage(topic, message.body, properties, sys_flag, now_ms, kind)


def require_type(kind: int, accepted: Sequence[int], topic: str = "") -> None:
    """Check that a topic takes messages of this type; retry and dead-letter topics take any.

    ``accepted``: as ``accepted_types`` returns them.

    Raises: Refused (MESSAGE_PROPERTY_CONFLICT_WITH_TYPE).
    """
    if kind in accepted or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return
    takes = ", ".join(map(_type_name, accepted))
    raise Refused(
        pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"current message type not match with topic accept message types: topic {topic} takes"
        f" {takes} messages (attribute message.type), this one is {_type_name(kind)}; send it to a"
        " topic of its type, or change the attribute",
    )


def _type_name(kind: int) -> str:
    return str(pb.MessageType.Name(kind))


def queue_of_group(message_group: str, count: int) -> int:
    """Return the place of a message group among ``count`` writable queues in their order.

    A Java proxy takes Guava's ``Hashing.consistentHash`` of the group's hash: with one more queue,
    only one group in ``count + 1`` moves, and all of these to the new queue. The random numbers are
    those of a linear congruential generator modulo 2⁶⁴, of which the upper 31 bits count.

    Source: proxy/grpc/v2/producer/SendMessageActivity.java#SendMessageQueueSelector.
    """
    state = java_hash(message_group) & _LOW_64
    place = 0
    while True:
        state = (state * 2862933555777941757 + 1) & _LOW_64
        # In Java, the sum is a 32-bit int, which overflows at 2³¹.
        high = (state >> 33) + 1
        if high == 1 << 31:
            return place
        following = int((place + 1) / (high / 2147483648.0))
        if following >= count:
            return place
        place = following


_LOW_64 = (1 << 64) - 1
