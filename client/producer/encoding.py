"""From a user's message to what goes on the wire: checks, properties text, message id, compression.  Pure but for the clock given in.

Source for the rules: client/…/Validators.java, impl/producer/DefaultMQProducerImpl.java#tryToCompressMessage, common/…/message/MessageBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from triomq.client.config import ProducerSettings
from triomq.client.errors import MessageInvalid, TopicInvalid
from triomq.client.names import check_topic
from triomq.remoting.errors import LocalProtocolError
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.compression import compress_body
from triomq.remoting.protocol.message import (
    DELAY,
    PROPERTIES_BYTES_MAX,
    SHARDING_KEY,
    UNIQ_KEY,
    WAIT,
    Message,
    UniqueIds,
    properties_text,
)

FORBIDDEN_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Topics that only brokers write."""

DELAY_LEVEL_MAX = 18
_BYTES = (bytes, bytearray, memoryview)
_ELEMENT_BYTES = 22
"""what a message of a batch needs besides its body and properties"""


@attrs.define(eq=False)
class Outgoing:
    """A checked message, ready but for its queue."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    flag: int
    sys_flag: int
    born_timestamp: int


@attrs.define(eq=False)
class OutgoingBatch:
    """Messages that travel, and are stored, together."""

    carrier: Outgoing
    """the whole batch as one message"""
    message_ids: list[str]


def check_sendable(topic: str) -> None:
    """Refuse topics that no broker lets anybody write.  Errors: `TopicInvalid`."""
    check_topic(topic)
    if topic in FORBIDDEN_TOPICS:
        raise TopicInvalid(f"topic {topic!r} belongs to the brokers; send to a topic of your own")


def prepare(
    message: Message,
    settings: ProducerSettings,
    ids: UniqueIds,
    now_ms: int,
    *,
    message_id: str | None = None,
    sharding_key: str | None = None,
    delay_level: int = 0,
) -> Outgoing:
    """Check one message and bring it into its wire form.  Errors: `MessageInvalid`."""
    _check_body(message, settings)
    message_id = message_id or ids.next(now_ms)
    properties = _properties(message, message_id)
    if sharding_key is not None:
        properties[SHARDING_KEY] = sharding_key
    if delay_level:
        if not 0 < delay_level <= DELAY_LEVEL_MAX:
            raise MessageInvalid(
                f"delay_level {delay_level} does not exist: 1 (1 s) to {DELAY_LEVEL_MAX} (2 h), 0 for no delay"
            )
        properties[DELAY] = str(delay_level)
    body, sys_flag = compress_body(
        message.body, threshold_bytes=settings.compress_over_bytes, level=settings.compress_level
    )
    return Outgoing(message.topic, body, _text(properties), message_id, message.flag, sys_flag, now_ms)


def prepare_batches(
    messages: Sequence[Message], settings: ProducerSettings, ids: UniqueIds, now_ms: int
) -> Iterator[OutgoingBatch]:
    """Check messages of one topic and pack them into batches of at most `batch_bytes_max` (a larger single message goes alone).

    All are checked before the first batch is yielded.  Errors: `MessageInvalid`.
    """
    topic, wait_stored = messages[0].topic, messages[0].wait_stored
    elements: list[tuple[int, bytes, bytes]] = []
    message_ids: list[str] = []
    for message in messages:
        if message.topic != topic or message.wait_stored != wait_stored:
            raise MessageInvalid(
                "a batch goes to one topic with one wait_stored: sort the messages by them and send each list"
            )
        _check_body(message, settings)
        message_id = ids.next(now_ms)
        message_ids.append(message_id)
        elements.append((message.flag, message.body, _text(_properties(message, message_id)).encode()))
    batch_properties = {WAIT: "true" if wait_stored else "false"}
    return _pack(topic, batch_properties, elements, message_ids, settings.batch_bytes_max, ids, now_ms)


def _pack(
    topic: str,
    properties: dict[str, str],
    elements: list[tuple[int, bytes, bytes]],
    message_ids: list[str],
    bytes_max: int,
    ids: UniqueIds,
    now_ms: int,
) -> Iterator[OutgoingBatch]:
    begin = 0
    while begin < len(elements):
        end, size = begin, 0
        while end < len(elements):
            size += _ELEMENT_BYTES + len(elements[end][1]) + len(elements[end][2])
            if size > bytes_max and end > begin:
                break
            end += 1
        batch_id = ids.next(now_ms)
        text = properties_text({UNIQ_KEY: batch_id, **properties})
        carrier = Outgoing(topic, encode_batch(elements[begin:end]), text, batch_id, 0, 0, now_ms)
        yield OutgoingBatch(carrier, message_ids[begin:end])
        begin = end


def _check_body(message: Message, settings: ProducerSettings) -> None:
    body: object = message.body
    if not isinstance(body, _BYTES):
        raise MessageInvalid(
            f"the body must be bytes, not {type(body).__name__}: encode it, for example with .encode()"
        )
    size = len(body)
    if not size:
        raise MessageInvalid(
            f"a message to {message.topic!r} has an empty body; brokers refuse it, so send at least one byte"
        )
    if size > settings.message_bytes_max:
        raise MessageInvalid(
            f"a message to {message.topic!r} has {size} bytes, the limit is {settings.message_bytes_max} (message_bytes_max, and "
            "maxMessageSize on the broker): split it, or store the payload elsewhere and send a reference"
        )


def _properties(message: Message, message_id: str) -> dict[str, str]:
    try:
        properties = message.wire_properties()
    except LocalProtocolError as error:
        raise MessageInvalid(str(error)) from error
    properties[UNIQ_KEY] = message_id
    return properties


def _text(properties: dict[str, str]) -> str:
    try:
        text = properties_text(properties)
    except LocalProtocolError as error:
        raise MessageInvalid(str(error)) from error
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise MessageInvalid(f"a property is not valid text: {error}") from error
    if size > PROPERTIES_BYTES_MAX:
        raise MessageInvalid(
            f"the properties have {size} bytes, the limit is {PROPERTIES_BYTES_MAX}: put them into the body"
        )
    return text
