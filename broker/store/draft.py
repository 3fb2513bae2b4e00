"""What goes into the log and what comes out of an append: Draft, Appended, and the limits a draft must keep.

An index sees the same pairs again: straight from an append, or read back from the log (then without bodies, which no index looks at).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec

from triomq.broker.store.config import StoreConfig
from triomq.broker.store.consume_queue import ConsumeQueue
from triomq.broker.store.errors import IllegalMessage
from triomq.broker.store.numbering import SPECIAL, reserve_bytes
from triomq.remoting.protocol.message import PROPERTIES_BYTES_MAX, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from triomq.remoting.protocol.names import RETRY_PREFIX

UNQUEUED = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
"""Transaction kinds that have no entry in a queue and use up no queue offset."""
TOPIC_BYTES_MAX = 127
RETRY_TOPIC_BYTES_MAX = 255
HEAD_BYTES_MAX = 88 + 12 + 12 + 2 + RETRY_TOPIC_BYTES_MAX + 2
"""All of a record but body and properties."""
I4_MAX = (1 << 31) - 1
I8_MAX = (1 << 63) - 1
KEYS_MAX = 1_000
"""Keys of one message: each has an entry in the key index."""
RECORD_EXTRA_BYTES_MAX = 65_536
"""A whole record may be this much longer than the largest body."""


class Draft(msgspec.Struct, eq=False, gc=False):
    """One message to append.

    A Struct, not attrs, because there is one per message: 0.2 µs against 0.9 µs, which includes what the garbage collector pays for tracked objects.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    """Encoded text, as it will lie on disk."""
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    """4 or 16 bytes of IP, then the port as i4."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags: str | None = None
    """TAGS, UNIQ_KEY and KEYS of ``properties``, which the caller knows already: the indexes need not parse them again."""
    unique_key: str | None = None
    keys: str | None = None


class Appended(msgspec.Struct, eq=False, gc=False):
    """Where a draft came to lie. A Struct for the same reason: 0.09 µs against 0.22 µs."""

    log_offset: int
    size: int
    queue_offset: int
    store_timestamp: int


class Batch(msgspec.Struct, eq=False):
    """Drafts and their places, in log order: all records of the log in [start, end)."""

    drafts: Sequence[Draft]
    places: list[Appended]
    start: int
    end: int
    queues: list[ConsumeQueue] | None = None
    """The queue of each draft, if it has been looked up already."""


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches that follow each other in the log, as one."""
    if len(batches) == 1:
        return batches[0]
    drafts = [draft for batch in batches for draft in batch.drafts]
    places = [place for batch in batches for place in batch.places]
    return Batch(drafts, places, batches[0].start, batches[-1].end)


def is_directory_name(topic: str) -> bool:
    """A topic is a folder under ``consumequeue``; it must not lead out of it."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


@functools.lru_cache(maxsize=16_384)
def topic_fault(topic: str) -> str | None:
    """Why this cannot be the topic of a stored message, None if it can."""
    text = topic.encode("utf-8", "surrogatepass")
    limit = RETRY_TOPIC_BYTES_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_BYTES_MAX
    if len(text) > limit:
        return f"the topic has {len(text)} bytes, at most {limit} are allowed"
    if not is_directory_name(topic) or text != topic.encode("utf-8", "replace"):
        return f"the topic {topic!r} cannot be the name of a directory"
    return None


def record_bytes_max(config: StoreConfig) -> int:
    """How long a record may be."""
    return min(config.message_size_bytes_max + RECORD_EXTRA_BYTES_MAX, config.segment_size_bytes - 8)


def check_draft(draft: Draft, config: StoreConfig) -> None:
    """Raise IllegalMessage if the draft cannot be stored. Source: store/…/MessageExtEncoder.java#encode, broker/…/HookUtils.java."""
    fault = topic_fault(draft.topic)
    if fault is not None:
        raise IllegalMessage(fault)
    body_size, properties_size = len(draft.body), len(draft.properties)
    if draft.sys_flag & SPECIAL:
        properties_size += reserve_bytes(draft.properties)
    if properties_size > PROPERTIES_BYTES_MAX:
        raise IllegalMessage(f"the properties have {properties_size} bytes, at most {PROPERTIES_BYTES_MAX} are allowed", properties=True)
    if draft.keys and len(draft.keys) > KEYS_MAX and (count := draft.keys.count(" ") + 1) > KEYS_MAX:
        raise IllegalMessage(f"the message has {count} keys, at most {KEYS_MAX} are allowed, since each takes a place in the key index", properties=True)
    if draft.properties.endswith(b"\0"):
        raise IllegalMessage("the properties end with a zero byte, as only a record torn by a crash does")
    if body_size > config.message_size_bytes_max:
        raise IllegalMessage(
            f"the body has {body_size} bytes, at most {config.message_size_bytes_max} are allowed (maxMessageSize); send less, or raise it"
        )
    size_max = record_bytes_max(config)
    if body_size + properties_size + HEAD_BYTES_MAX > size_max:
        raise IllegalMessage(f"the record would have more than the allowed {size_max} bytes")
    if not (0 <= draft.queue_id <= I4_MAX and -I4_MAX <= draft.flag <= I4_MAX and 0 <= draft.reconsume_times <= I4_MAX):
        raise IllegalMessage("queue id, flag or reconsume times is out of range")
    if not (0 <= draft.sys_flag <= I4_MAX and -I8_MAX <= draft.born_timestamp <= I8_MAX and len(draft.born_host) in (8, 20)):
        raise IllegalMessage("sysFlag, born timestamp or born host is out of range")
