"""From a user's message to what goes on the wire: checks, properties text, message id, compression.  Pure but for the clock given in.

Source for the rules: client/…/Validators.java, impl/producer/DefaultMQProducerImpl.java#tryToCompressMessage, common/…/message/MessageBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import SupportsIndex

import attrs
import msgspec

from triomq.client.arguments import check_delay_level, key_words, shown, whole_number
from triomq.client.config import ProducerSettings
from triomq.client.errors import MessageInvalid, TopicInvalid
from triomq.client.names import check_topic
from triomq.remoting.errors import LocalProtocolError
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.compression import compress_body
from triomq.remoting.protocol.message import (
    DELAY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    WAIT,
    Message,
    UniqueIds,
    properties_text,
    user_properties,
)
from triomq.remoting.protocol.names import RETRY_PREFIX, TOPICS_CLOSED_TO_CLIENTS

DELAY_LEVEL_MAX = 18
TAG_LENGTH_MAX = 128
_TAGS_REMEMBERED = 1024
_ID_LENGTH_MAX = 64
"""of ids that are written by the short way; those made here have 32 or 56 characters"""
_good_tags: set[str] = set()
_beginnings: dict[tuple[str | None, bool], str] = {}
_BYTES = (bytes, bytearray, memoryview)
ELEMENT_BYTES = 22
"""what a message of a batch needs besides its body and properties"""


class Outgoing(msgspec.Struct, eq=False, gc=False):
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
    if topic in TOPICS_CLOSED_TO_CLIENTS:
        raise TopicInvalid(f"topic {topic!r} belongs to the brokers; send to a topic of your own")


def check_text(what: str, value: str) -> str:
    """Return what is a text.  Errors: `MessageInvalid`."""
    if not isinstance(value, str):
        raise MessageInvalid(f"{what} must be a text, not {shown(value)}")
    return value


def check_tag(tag: str) -> None:
    """Refuse a tag that no subscription could name.  Errors: `MessageInvalid`."""
    if not isinstance(tag, str):
        raise MessageInvalid(f"the tag must be a text, not {type(tag).__name__}")
    if tag != tag.strip() or "|" in tag or len(tag) > TAG_LENGTH_MAX or not tag.isprintable():
        raise MessageInvalid(
            f"tag {tag[:40]!r} cannot be used: 1 to {TAG_LENGTH_MAX} visible characters without '|' and without blanks at its ends; "
            "a message has one tag, further words belong into keys or properties"
        )


def prepare(
    topic: str,
    body: bytes,
    settings: ProducerSettings,
    message_id: str,
    now_ms: int,
    *,
    tag: str | None = None,
    keys: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    flag: int = 0,
    wait_stored: bool = True,
    sharding_key: str | None = None,
    delay_level: SupportsIndex = 0,
) -> Outgoing:
    """Check one message and bring it into its wire form.  Errors: `MessageInvalid`."""
    if type(body) is not bytes or not 0 < len(body) <= settings.message_bytes_max:
        _check_body(topic, body, settings)
    if flag:
        flag = _check_flag(flag)
    if (
        not (keys or properties or delay_level)
        and sharding_key is None
        and type(message_id) is str
        and len(message_id) <= _ID_LENGTH_MAX
        and message_id.isalnum()
        and message_id.isascii()
    ):
        try:
            beginning = _beginnings.get((tag, wait_stored))
        except TypeError:  # not hashable: no text either, as is said below
            beginning = None
        text = f"{beginning or _beginning(tag, wait_stored)}{message_id}\x02"
    else:
        text = _whole_text(message_id, tag, keys, properties, wait_stored, sharding_key, delay_level)
    sys_flag = 0
    if len(body) >= settings.compress_over_bytes:
        body, sys_flag = compress(body, settings)
    return Outgoing(topic, body, text, message_id, flag, sys_flag, now_ms)


def _beginning(tag: str | None, wait_stored: bool) -> str:
    """Return the properties text up to the id, for messages that have nothing but a tag; checked once, kept for the next.

    Errors: `MessageInvalid`.
    """
    whole = _text(_properties("", tag, (), None, wait_stored))
    beginning = whole.removesuffix("\x02")
    if len(_beginnings) < _TAGS_REMEMBERED:
        _beginnings[tag, wait_stored] = beginning
    return beginning


def _whole_text(
    message_id: str,
    tag: str | None,
    keys: Iterable[str],
    properties: Mapping[str, str] | None,
    wait_stored: bool,
    sharding_key: str | None,
    delay_level: SupportsIndex,
) -> str:
    """Return the properties text of a message that may have anything.  Errors: `MessageInvalid`."""
    made = _properties(message_id, tag, keys, properties, wait_stored)
    if sharding_key is not None:
        made[SHARDING_KEY] = check_text("the sharding key", sharding_key)
    if delay_level and (level := check_delay_level(delay_level, DELAY_LEVEL_MAX)):
        made[DELAY] = str(level)
    return _text(made)


def compress(body: bytes, settings: ProducerSettings) -> tuple[bytes, int]:
    """Return the body as it travels, and its flag bits; as it is if compression makes it no shorter.

    (Java sends the longer one, so that a body close to the limit may be refused by the broker, and everyone unpacks for nothing.)
    Errors: `MessageInvalid`, for instance for a level that does not exist.
    """
    try:
        packed, bits = compress_body(
            body,
            threshold_bytes=settings.compress_over_bytes,
            level=settings.compress_level,
            compression=settings.compression,
        )
    except Exception as error:  # each library has its own kinds
        raise MessageInvalid(
            f"the body cannot be compressed with {settings.compression.name} at level {settings.compress_level}: {error}"
        ) from error
    return (packed, bits) if len(packed) < len(body) else (body, 0)


def prepare_batches(
    messages: Sequence[Message],
    settings: ProducerSettings,
    ids: UniqueIds,
    now_ms: int,
    *,
    sharding_key: str | None = None,
) -> Iterator[OutgoingBatch]:
    """Check messages of one topic and pack them into batches of at most `batch_bytes_max` (a larger single message goes alone).

    All are checked before the first batch is yielded.  Errors: `MessageInvalid`.
    """
    topic, wait_stored = messages[0].topic, messages[0].wait_stored
    check_batch_topic(topic)
    if sharding_key is not None:
        check_text("the sharding key", sharding_key)
    elements: list[tuple[int, bytes, bytes]] = []
    message_ids: list[str] = []
    for message in messages:
        if not isinstance(message, Message):
            raise MessageInvalid(f"a batch is a list of Message(topic=…, body=…), not of {shown(message)}")
        if message.topic != topic or message.wait_stored is not wait_stored:
            raise MessageInvalid(
                "a batch goes to one topic with one wait_stored: sort the messages by them and send each list"
            )
        _check_body(topic, message.body, settings)
        flag = _check_flag(message.flag)
        message_id = ids.next(now_ms)
        message_ids.append(message_id)
        made = _properties(message_id, message.tag, message.keys, message.properties, wait_stored)
        if sharding_key is not None:
            made[SHARDING_KEY] = sharding_key
        elements.append((flag, message.body, _text(made).encode()))
    return _pack(topic, wait_stored, elements, message_ids, settings.batch_bytes_max, ids, now_ms)


def check_batch_topic(topic: str) -> None:
    """Refuse topics that take no batches.  Errors: `MessageInvalid`."""
    if topic.startswith(RETRY_PREFIX):
        raise MessageInvalid("a retry topic takes no batches: send the messages one by one")


def make_carrier(
    topic: str, wait_stored: bool, elements: Sequence[tuple[int, bytes, bytes]], batch_id: str, now_ms: int
) -> Outgoing:
    """Make one message of several: (flag, body, encoded properties) each."""
    text = properties_text({UNIQ_KEY: batch_id, WAIT: "true" if wait_stored else "false"})
    return Outgoing(topic, encode_batch(elements), text, batch_id, 0, 0, now_ms)


def _pack(
    topic: str,
    wait_stored: bool,
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
            size += ELEMENT_BYTES + len(elements[end][1]) + len(elements[end][2])
            if size > bytes_max and end > begin:
                break
            end += 1
        carrier = make_carrier(topic, wait_stored, elements[begin:end], ids.next(now_ms), now_ms)
        yield OutgoingBatch(carrier, message_ids[begin:end])
        begin = end


def _check_body(topic: str, body: object, settings: ProducerSettings) -> None:
    if not isinstance(body, _BYTES):
        raise MessageInvalid(
            f"the body must be bytes, not {type(body).__name__}: encode it, for example with .encode()"
        )
    size = len(body)
    if not size:
        raise MessageInvalid(f"a message to {topic!r} has an empty body; brokers refuse it, so send at least one byte")
    if size > settings.message_bytes_max:
        raise MessageInvalid(
            f"a message to {topic!r} has {size} bytes, the limit is {settings.message_bytes_max} (message_bytes_max, and "
            "maxMessageSize on the broker): split it, or store the payload elsewhere and send a reference"
        )


def _check_flag(flag: object) -> int:
    number = int(flag) if isinstance(flag, int) else whole_number(flag)
    if number is None or not -(1 << 31) <= number < 1 << 31:
        raise MessageInvalid(f"the flag must be a number of 32 bits, not {flag!r}")
    return number


def _properties(
    message_id: str,
    tag: str | None,
    keys: Iterable[str],
    properties: Mapping[str, str] | None,
    wait_stored: bool,
) -> dict[str, str]:
    made: dict[str, str] = {}
    if properties:
        if not isinstance(properties, Mapping):
            raise MessageInvalid(f"properties must be a dict of texts, not {shown(properties)}")
        try:
            made = user_properties(properties)
        except LocalProtocolError as error:
            raise MessageInvalid(str(error)) from error
    if tag is not None and type(tag) is not str:
        check_tag(tag)
    if tag:
        if tag not in _good_tags:
            check_tag(tag)
            if len(_good_tags) < _TAGS_REMEMBERED:
                _good_tags.add(tag)
        made[TAGS] = tag
    if keys and (words := key_words(keys)):
        made[KEYS] = " ".join(words)
    made[WAIT] = "true" if wait_stored else "false"
    made[UNIQ_KEY] = check_text("message_id", message_id)
    return made


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
