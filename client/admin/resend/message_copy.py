"""What a copy of a stored message carries, and where it goes. Pure.

Keys, tag, sharding key, the producer's id and the application's own properties stay. Properties
that tell the earlier way through brokers (retries, delays, transactions) go: with them the broker
would treat the copy as a retry. The copy names the message that it comes from.
"""

from __future__ import annotations

import attrs

from triomq.remoting.protocol.headers.send import SendMessageHeader
from triomq.remoting.protocol.message_properties import (
    CHECK_IMMUNITY_SECONDS,
    FAILURE,
    INNER_BASE,
    INNER_NUM,
    KEYS,
    ORIGIN_MESSAGE_ID,
    RESERVED_PROPERTIES,
    RETRY_TOPIC,
    SHARDING_KEY,
    TAGS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
    WAIT,
    joined_properties,
)
from triomq.remoting.protocol.names import DEFAULT_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import COMPRESSED, COMPRESSION_MASK

COPY_GROUP = "TOOLS_PRODUCER"
"""the producer group of copies"""
RESENT_FROM = "RESENT_FROM_MESSAGE_ID"
"""property of a copy: the id of the place where the message lay first"""
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
KEPT = frozenset({KEYS, TAGS, UNIQ_KEY, SHARDING_KEY, "BUYER_ID"})
"""reserved properties that a copy has as well"""
DROPPED = frozenset(
    {
        TRANSACTION_ID,
        TRANSACTION_CHECK_TIMES,
        CHECK_IMMUNITY_SECONDS,
        INNER_NUM,
        INNER_BASE,
        FAILURE,
    }
)
"""properties of brokers that have no reserved name"""
DEFAULT_QUEUES = 4
"""queues of a topic that the broker creates for the message, as in Java's producer"""


@attrs.frozen(kw_only=True)
class MessageCopy:
    """A message that is to be sent again."""

    topic: str
    """where it goes"""
    properties: dict[str, str]
    body: bytes
    flag: int
    sys_flag: int

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get(SHARDING_KEY)

    def header(self, broker_name: str, queue_id: int, now_ms: int) -> SendMessageHeader:
        """Return the header of the request that sends it to a queue."""
        return SendMessageHeader(
            producer_group=COPY_GROUP,
            topic=self.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_count=DEFAULT_QUEUES,
            queue_id=queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=now_ms,
            flag=self.flag,
            properties=joined_properties(self.properties),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=broker_name,
        )


def origin_topic(message: StoredMessage) -> str | None:
    """Return the topic that a dead letter was sent to first, None if it does not say."""
    properties = message.properties
    found = properties.get(DLQ_ORIGIN_TOPIC) or properties.get(RETRY_TOPIC)
    if found and not found.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return found
    return None


def origin_id(message: StoredMessage) -> str:
    """Return the id of the place where a message lay first; its own if it was not sent back."""
    properties = message.properties
    return (
        properties.get(DLQ_ORIGIN_MESSAGE_ID)
        or properties.get(ORIGIN_MESSAGE_ID)
        or message.offset_message_id
    )


def home_topic(message: StoredMessage) -> str | None:
    """Return the topic that a copy goes to by default.

    It is the topic of the message; for a retry or a dead letter the first one, or None.
    """
    if message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return origin_topic(message)
    return message.topic


def copy_to(message: StoredMessage, topic: str, group: str = "") -> MessageCopy:
    """Return a copy with the same body, id, tag, keys and own properties.

    With a ``group`` the copy goes to its retry topic, so no other group gets it; the group's
    consumers see it as a message of ``topic``. Without one it goes to ``topic``, and all groups of
    that get it.
    """
    properties = {
        name: value
        for name, value in message.properties.items()
        if name in KEPT or (name not in RESERVED_PROPERTIES and name not in DROPPED)
    }
    properties[RESENT_FROM] = origin_id(message)
    properties[WAIT] = "true"
    if group:
        properties[RETRY_TOPIC] = topic
        properties[ORIGIN_MESSAGE_ID] = message.properties.get(UNIQ_KEY, message.message_id)
    return MessageCopy(
        topic=RETRY_PREFIX + group if group else topic,
        properties=properties,
        body=bytes(message.body),
        flag=message.flag,
        sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
    )
