"""What goes into the log and what comes out of an append: Draft, Appended, and the limits a draft must keep.

An index sees the same pairs again: straight from an append, or read back from the log (then without bodies, which no index looks at).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triomq.broker.store.config import StoreConfig
from triomq.broker.store.errors import IllegalMessage

TRANSACTION_MASK = 0x0C
TRANSACTION_PREPARED = 0x04
TRANSACTION_ROLLBACK = 0x0C
RETRY_PREFIX = "%RETRY%"
TOPIC_BYTES_MAX = 127
RETRY_TOPIC_BYTES_MAX = 255
PROPERTIES_BYTES_MAX = 32_767
RECORD_EXTRA_BYTES_MAX = 65_536
"""A whole record may be this much longer than the largest body."""


@attrs.define(eq=False)
class Draft:
    """One message to append. Not frozen and without validators: made once per message (0.4 µs here, 1.2 µs frozen)."""

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


@attrs.define(eq=False)
class Appended:
    """Where a draft came to lie."""

    log_offset: int
    size: int
    queue_offset: int
    store_timestamp: int


@attrs.define(eq=False)
class Batch:
    """Drafts and their places, in log order, up to log offset ``end``."""

    drafts: Sequence[Draft]
    places: Sequence[Appended]
    end: int


def check_draft(draft: Draft, config: StoreConfig) -> None:
    """Raise IllegalMessage if the draft cannot be stored. Source: store/…/MessageExtEncoder.java#encode, broker/…/HookUtils.java."""
    topic = draft.topic.encode()
    limit = RETRY_TOPIC_BYTES_MAX if draft.topic.startswith(RETRY_PREFIX) else TOPIC_BYTES_MAX
    if len(topic) > limit:
        raise IllegalMessage(f"the topic has {len(topic)} bytes, at most {limit} are allowed")
    if not topic or b"/" in topic or b"\0" in topic or topic in (b".", b".."):
        raise IllegalMessage(f"the topic {draft.topic!r} cannot be the name of a directory")
    if not 0 <= draft.queue_id < 1 << 31:
        raise IllegalMessage(f"the queue id {draft.queue_id} is out of range")
    if len(draft.properties) > PROPERTIES_BYTES_MAX:
        raise IllegalMessage(f"the properties have {len(draft.properties)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed", properties=True)
    if len(draft.body) > config.message_size_bytes_max:
        raise IllegalMessage(
            f"the body has {len(draft.body)} bytes, at most {config.message_size_bytes_max} are allowed (maxMessageSize); send less, or raise it"
        )
    size_max = min(config.message_size_bytes_max + RECORD_EXTRA_BYTES_MAX, config.segment_size_bytes - 8)
    size = 91 + len(draft.body) + len(topic) + len(draft.properties) + 12 * 2 + 1  # never less than the true size
    if size > size_max:
        raise IllegalMessage(f"the record would have {size} bytes, at most {size_max} are allowed")
    if len(draft.born_host) not in (8, 20):
        raise IllegalMessage(f"the born host has {len(draft.born_host)} bytes, not 8 (IPv4) or 20 (IPv6)")
