"""The wire form of a user's message: checks, properties text, message id, compression.

Pure: the clock is an argument. What cannot be sent raises ``MessageInvalid``.

Source for the rules: client/…/Validators.java,
impl/producer/DefaultMQProducerImpl.java#tryToCompressMessage, common/…/message/MessageBatch.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import SupportsIndex

import attrs
import msgspec

from triomq.client.core.arguments import check_delay_level, key_words, shown, whole_number
from triomq.client.core.broker_errors import shorten
from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import MessageInvalid, TopicInvalid
from triomq.client.core.names import check_topic
from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.batch import ELEMENT_BYTES, encode_batch
from triomq.remoting.protocol.compression import compress_body
from triomq.remoting.protocol.ids import UniqueIds
from triomq.remoting.protocol.message import Message
from triomq.remoting.protocol.message_properties import (
    DELAY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    WAIT,
    properties_text,
    user_properties,
)
from triomq.remoting.protocol.names import RETRY_PREFIX, TOPICS_CLOSED_TO_CLIENTS

TAG_LENGTH_MAX = 128
_TAGS_REMEMBERED = 1024
_ID_LENGTH_MAX = 64
"""Longest message id for the fast path; ids made here have 32 or 56 characters."""
_prefixes: dict[tuple[str | None, bool], str] = {}
_BYTES = (bytes, bytearray, memoryview)


class OutgoingMessage(msgspec.Struct, eq=False, gc=False):
    """A checked message that only lacks its queue."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    flag: int
    sys_flag: int
    born_timestamp: int
    timed: bool = False
    """Whether it has a time of delivery."""


@attrs.define(eq=False)
class OutgoingBatch:
    """Messages that are sent, and stored, together."""

    carrier: OutgoingMessage
    """the whole batch as one message"""
    message_ids: list[str]


def check_sendable(topic: str) -> None:
    """Refuse a topic that no broker accepts messages for. Raises: ``TopicInvalid``."""
    check_topic(topic)
    if topic in TOPICS_CLOSED_TO_CLIENTS:
        raise TopicInvalid(f"topic {topic!r} belongs to the brokers; send to a topic of your own")


def check_text(what: str, value: str) -> str:
    """Return a value that must be a text."""
    if not isinstance(value, str):
        raise MessageInvalid(f"{what} must be a text, not {shown(value)}")
    return value


def check_tag(tag: str) -> None:
    """Refuse a tag that no subscription could name."""
    if not isinstance(tag, str):
        raise MessageInvalid(f"the tag must be a text, not {type(tag).__name__}")
    if tag != tag.strip() or "|" in tag or len(tag) > TAG_LENGTH_MAX or not tag.isprintable():
        raise MessageInvalid(
            f"tag {tag[:40]!r} cannot be used: 1 to {TAG_LENGTH_MAX} visible characters without '|'"
            " and without blanks at its ends; a message has one tag, further words belong into"
            " keys or properties"
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
    timer: tuple[str, str] | None = None,
) -> OutgoingMessage:
    """Check one message and return its wire form.

    Messages with nothing but a tag take the fast path: the properties text up to the id is made
    once.
    """
    if type(body) is not bytes or not 0 < len(body) <= settings.message_bytes_max:
        _check_body(topic, body, settings, deletes=bool(keys))
    if flag:
        flag = _check_flag(flag)
    try:
        if (
            not (keys or properties or delay_level or timer)
            and sharding_key is None
            and type(message_id) is str
            and len(message_id) <= _ID_LENGTH_MAX
            and message_id.isalnum()
            and message_id.isascii()
        ):
            try:
                prefix = _prefixes.get((tag, wait_stored))
            except TypeError:  # a tag that cannot be hashed is not a text: refused below
                prefix = None
            text = f"{prefix or _make_prefix(tag, wait_stored)}{message_id}\x02"
        else:
            text = _whole_text(
                message_id, tag, keys, properties, wait_stored, sharding_key, delay_level, timer
            )
    except MessageInvalid as error:
        raise shorten(error)  # noqa: B904
    sys_flag = 0
    if len(body) >= settings.compress_over_bytes:
        body, sys_flag = compress(body, settings)
    return OutgoingMessage(topic, body, text, message_id, flag, sys_flag, now_ms, timer is not None)


def _make_prefix(tag: str | None, wait_stored: bool) -> str:
    """Return the properties text up to the id for messages with only a tag; checked once, kept."""
    whole = _text(_properties("", tag, (), None, wait_stored))
    prefix = whole.removesuffix("\x02")
    if len(_prefixes) < _TAGS_REMEMBERED:
        _prefixes[tag, wait_stored] = prefix
    return prefix


def _whole_text(
    message_id: str,
    tag: str | None,
    keys: Iterable[str],
    properties: Mapping[str, str] | None,
    wait_stored: bool,
    sharding_key: str | None,
    delay_level: SupportsIndex,
    timer: tuple[str, str] | None = None,
) -> str:
    """Return the properties text of any message."""
    made = _properties(message_id, tag, keys, properties, wait_stored)
    if sharding_key is not None:
        made[SHARDING_KEY] = check_text("the sharding key", sharding_key)
    if delay_level and (level := check_delay_level(delay_level)):
        made[DELAY] = str(level)
    if timer is not None:
        made[timer[0]] = timer[1]
    return _text(made)


def compress(body: bytes, settings: ProducerSettings) -> tuple[bytes, int]:
    """Return the body as it travels, and its flag bits.

    A body that compression does not shorten is unchanged. (Java sends the longer one, which may be
    refused if it is close to the limit, and every reader decompresses for nothing.)

    Raises: ``MessageInvalid``, for example for a level that does not exist.
    """
    try:
        packed, bits = compress_body(
            body,
            threshold_bytes=settings.compress_over_bytes,
            level=settings.compress_level,
            compression=settings.compression,
        )
    except Exception as error:  # each compression library has its own error classes
        raise MessageInvalid(
            f"the body cannot be compressed with {settings.compression.name} at level"
            f" {settings.compress_level}: {error}"
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
    """Check the messages of one topic and pack them into batches of at most ``batch_bytes_max``.

    A single message that is larger goes alone. All are checked before the first batch is yielded.
    """
    topic, wait_stored = messages[0].topic, messages[0].wait_stored
    if topic.startswith(RETRY_PREFIX):
        raise MessageInvalid("a retry topic takes no batches: send the messages one by one")
    if sharding_key is not None:
        check_text("the sharding key", sharding_key)
    elements: list[tuple[int, bytes, bytes]] = []
    message_ids: list[str] = []
    for message in messages:
        if not isinstance(message, Message):
            raise MessageInvalid(
                f"a batch is a list of Message(topic=…, body=…), not of {shown(message)}"
            )
        if message.topic != topic or message.wait_stored is not wait_stored:
            raise MessageInvalid(
                "a batch goes to one topic with one wait_stored: sort the messages by them and send"
                " each list"
            )
        _check_body(topic, message.body, settings, deletes=bool(message.keys))
        flag = _check_flag(message.flag)
        message_id = ids.next(now_ms)
        message_ids.append(message_id)
        made = _properties(message_id, message.tag, message.keys, message.properties, wait_stored)
        if sharding_key is not None:
            made[SHARDING_KEY] = sharding_key
        elements.append((flag, message.body, _text(made).encode()))
    return _pack(topic, wait_stored, elements, message_ids, settings.batch_bytes_max, ids, now_ms)


def make_carrier(
    topic: str,
    wait_stored: bool,
    elements: Sequence[tuple[int, bytes, bytes]],
    batch_id: str,
    now_ms: int,
) -> OutgoingMessage:
    """Return one message made of several: (flag, body, encoded properties) each."""
    text = properties_text({UNIQ_KEY: batch_id, WAIT: "true" if wait_stored else "false"})
    return OutgoingMessage(topic, encode_batch(elements), text, batch_id, 0, 0, now_ms)


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


def _check_body(topic: str, body: object, settings: ProducerSettings, *, deletes: bool) -> None:
    """Refuse a body that no broker takes. ``deletes``: without a body the message deletes a key."""
    if not isinstance(body, _BYTES):
        raise MessageInvalid(
            f"the body must be bytes, not {type(body).__name__}: encode it, for example with"
            f" {'.encode()' if isinstance(body, str) else 'json.dumps(…).encode()'}"
        )
    size = len(body)
    if not size and not deletes:
        raise MessageInvalid(
            f"a message to {topic!r} has an empty body, so send at least one byte; only with keys,"
            " in a compaction topic, an empty body has a meaning: it deletes the key"
        )
    if size > settings.message_bytes_max:
        raise MessageInvalid(
            f"a message to {topic!r} has {size} bytes, the limit is {settings.message_bytes_max}"
            " (message_bytes_max, and maxMessageSize on the broker): split it, or store the"
            " payload elsewhere and send a reference"
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
            raise MessageInvalid(str(error)) from None
    if tag is not None:
        check_tag(tag)
    if tag:
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
            f"the properties have {size} bytes, the limit is {PROPERTIES_BYTES_MAX}: put them into"
            " the body"
        )
    return text
