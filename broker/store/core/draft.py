"""Draft and Appended: a message on its way into the log, and its place there; limits of drafts."""

from __future__ import annotations

import functools

import msgspec

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.errors import IllegalMessage
from triomq.broker.store.core.numbering import reserve_bytes
from triomq.remoting.protocol.message_properties import KEYS, PROPERTIES_BYTES_MAX, TAGS, UNIQ_KEY
from triomq.remoting.protocol.names import RETRY_PREFIX
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
"""Transaction states without an entry in a queue and without a queue offset."""
TOPIC_BYTES_MAX = 127
RETRY_TOPIC_BYTES_MAX = 255
HEAD_BYTES_MAX = 88 + 12 + 12 + 2 + RETRY_TOPIC_BYTES_MAX + 2
"""A record without its body and its properties."""
I4_MIN, I4_MAX = -(1 << 31), (1 << 31) - 1
I8_MAX = (1 << 63) - 1
KEYS_MAX = 1_000
"""Keys of a message; each key has an entry in the key index."""
RECORD_EXTRA_BYTES_MAX = 65_536
"""The length of a record beyond the largest body."""


class Draft(msgspec.Struct, eq=False, gc=False):
    """A message to append.

    A Struct, not attrs, because there is one for each message: 0.2 µs against 0.9 µs, which
    includes the cost of tracked objects in the garbage collector.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    """Encoded text, as it is written to the disk."""
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    """4 or 16 bytes of IP, then the port as i4."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags: str | None = None
    """TAGS, UNIQ_KEY and KEYS of ``properties``. The caller knows them already, so the indexes need
    not parse ``properties`` again.
    """
    unique_key: str | None = None
    keys: str | None = None
    special: bool = False
    """Whether the message takes other numbers than the next one of its queue: see
    ``numbering.py``.
    """


class Appended(msgspec.Struct, eq=False, gc=False):
    """The place of an appended draft. A Struct for the same reason: 0.09 µs against 0.22 µs."""

    log_offset: int
    size: int
    queue_offset: int
    store_timestamp: int


def copied_draft(message: StoredMessage, topic: str, queue_id: int, properties: bytes) -> Draft:
    """Return the draft of a stored message's copy in another topic or queue.

    ``properties``: their text in the copy; tag, keys and unique key stay those of the message.
    """
    known = message.properties
    return Draft(
        topic,
        queue_id,
        message.body,
        properties,
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        message.born_host_bytes,
        message.reconsume_times,
        tags=known.get(TAGS),
        unique_key=known.get(UNIQ_KEY),
        keys=known.get(KEYS),
    )


def is_directory_name(topic: str) -> bool:
    """Return whether a topic names a folder under ``consumequeue``, and does not lead out of it."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


@functools.lru_cache(maxsize=16_384)
def topic_fault(topic: str) -> str | None:
    """Return why this cannot be the topic of a stored message; None if it can."""
    text = topic.encode("utf-8", "surrogatepass")
    limit = RETRY_TOPIC_BYTES_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_BYTES_MAX
    if len(text) > limit:
        return f"the topic has {len(text)} bytes, at most {limit} are allowed"
    if not is_directory_name(topic) or text != topic.encode("utf-8", "replace"):
        return f"the topic {topic!r} cannot be the name of a directory"
    return None


def record_bytes_max(config: StoreConfig) -> int:
    """Return the largest allowed length of a record."""
    return min(
        config.message_size_bytes_max + RECORD_EXTRA_BYTES_MAX, config.segment_size_bytes - 8
    )


def check_draft(draft: Draft, config: StoreConfig) -> None:
    """Check a draft against the limits of the format and of the configuration.

    Raises: IllegalMessage. Source: store/…/MessageExtEncoder.java#encode, broker/…/HookUtils.java.
    """
    fault = topic_fault(draft.topic)
    if fault is not None:
        raise IllegalMessage(fault)
    body_size, properties_size = len(draft.body), len(draft.properties)
    if draft.special:
        properties_size += reserve_bytes(draft.properties)
    if properties_size > PROPERTIES_BYTES_MAX:
        raise IllegalMessage(
            f"the properties have {properties_size} bytes, at most {PROPERTIES_BYTES_MAX} are"
            " allowed"
        )
    if (
        draft.keys
        and len(draft.keys) > KEYS_MAX
        and (count := draft.keys.count(" ") + 1) > KEYS_MAX
    ):
        raise IllegalMessage(
            f"the message has {count} keys, at most {KEYS_MAX} are allowed, since each takes a"
            " place in the key index"
        )
    if draft.properties.endswith(b"\0"):
        raise IllegalMessage(
            "the properties end with a zero byte, as only a record torn by a crash does"
        )
    if body_size > config.message_size_bytes_max:
        raise IllegalMessage(
            f"the body has {body_size} bytes, at most {config.message_size_bytes_max} are allowed"
            " (maxMessageSize); send less, or raise it"
        )
    size_max = record_bytes_max(config)
    if body_size + properties_size + HEAD_BYTES_MAX > size_max:
        raise IllegalMessage(f"the record would have more than the allowed {size_max} bytes")
    if not (
        0 <= draft.queue_id <= I4_MAX
        and I4_MIN <= draft.flag <= I4_MAX
        and I4_MIN <= draft.reconsume_times <= I4_MAX
    ):
        raise IllegalMessage("queue id, flag or reconsume times is out of range")
    if not (
        0 <= draft.sys_flag <= I4_MAX
        and -I8_MAX <= draft.born_timestamp <= I8_MAX
        and len(draft.born_host) in (8, 20)
    ):
        raise IllegalMessage("sysFlag, born timestamp or born host is out of range")
