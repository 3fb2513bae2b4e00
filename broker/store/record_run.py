"""Usual records read from the log, many in one go: the same verdicts as ``log_scan.record_at``, at a third of the cost.

A record is usual if it is whole, its topic has the one-byte length of the first version, and nothing in its properties asks for more than an entry in its own
queue. At the first that is not, the caller looks closer: nothing is refused here. Every rule about what counts as a record stands in ``record_at``; here are
only those that let one through without asking it. Rebuilding a store is this loop, so it unpacks only the fields that indexes need and searches the properties
instead of taking them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import attrs

from triomq.broker.store.draft import Appended, Draft, is_directory_name
from triomq.broker.store.numbering import SPECIAL
from triomq.remoting.protocol.checksum import crc32
from triomq.remoting.protocol.message import (
    BORN_HOST_V6,
    INNER_BATCH,
    KEYS,
    STORE_HOST_V6,
    TAGS,
    UNIQ_KEY,
    parse_properties,
)
from triomq.remoting.protocol.record import HOST_V4_BYTES, HOST_V6_BYTES, MAGIC_V1, SYS_FLAG_AT, TOPIC_V1_MAX

HOSTS = BORN_HOST_V6 | STORE_HOST_V6
HOSTS_AT = SYS_FLAG_AT + 3
"""Byte of a record that says how long its hosts are."""
UNUSUAL = SPECIAL | INNER_BATCH


def _head(born_bytes: int, store_bytes: int) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int]:
    layout = Struct(f">iIIi4xqqi8x{born_bytes}xq{store_bytes}x12xi")
    return layout.unpack_from, layout.size


HEADS = {
    born | store: _head(HOST_V6_BYTES if born else HOST_V4_BYTES, HOST_V6_BYTES if store else HOST_V4_BYTES)
    for born in (0, BORN_HOST_V6)
    for store in (0, STORE_HOST_V6)
}
"""Flags of the hosts -> what unpacks size, magic, CRC, queue id, queue offset, log offset, flags, store time and size of the body; how many bytes these take."""
HEAD_BYTES_MAX = max(size for _, size in HEADS.values())
INNER = "\2INNER_"
"""How the names of all properties begin that make a record unusual."""
TAGS_NAME, UNIQ_KEY_NAME, KEYS_NAME = (f"\2{name}\1" for name in (TAGS, UNIQ_KEY, KEYS))


@attrs.define(eq=False)
class RecordRun:
    """Takes usual records from blocks of the log; keeps the topics that it has met."""

    check_crc: bool
    _topics: dict[bytes, str | None] = attrs.field(factory=dict, init=False)
    """Encoded topic, its length in front -> topic; None for one that cannot be."""

    def take(self, data: bytes, at: int, limit: int, position: int, count_max: int, drafts: list[Draft], places: list[Appended]) -> int:
        """Append to both lists the usual records of ``data[at:limit]``, which lies at log offset ``position`` of one segment, at most so many; where the next starts."""
        view, topics, check_crc = memoryview(data), self._topics, self.check_crc
        add_draft, add_place = drafts.append, places.append
        shift = position - at
        last_start = limit - HEAD_BYTES_MAX
        for _ in range(count_max):
            if at > last_start:
                break
            layout, head_bytes = HEADS[data[at + HOSTS_AT] & HOSTS]
            size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, stored, body_size = layout(data, at)
            body_at = at + head_bytes
            end, topic_at = at + size, body_at + body_size
            if magic != MAGIC_V1 or end > limit or body_size < 0 or topic_at + 3 > end or log_offset != at + shift or queue_id < 0 or sys_flag & UNUSUAL:
                break
            properties_at = topic_at + 3 + data[topic_at]
            if properties_at > end or end - properties_at != data[properties_at - 2] << 8 | data[properties_at - 1] or not data[end - 1]:
                break
            key = data[topic_at : properties_at - 2]
            topic = topics.get(key) or self._topic(key)
            if topic is None or (check_crc and body_size and crc32(view[body_at:topic_at]) & 0x7FFFFFFF != crc):
                break
            properties = data[properties_at:end]
            try:
                text = "\2" + properties.decode()
            except UnicodeDecodeError:
                break
            if text[-1] != "\2":
                text += "\2"
            if INNER in text:
                break
            # The last of a name counts. `rpartition` and `in` take half the time of `rfind` and `find`, which parse their arguments in the old way.
            tags = unique_key = keys = None
            _, found, rest = text.rpartition(TAGS_NAME)
            if found:
                tags = rest.partition("\2")[0] or parse_properties(text).get(TAGS)
            _, found, rest = text.rpartition(UNIQ_KEY_NAME)
            if found:
                unique_key = rest.partition("\2")[0] or parse_properties(text).get(UNIQ_KEY)
            if KEYS_NAME in text:
                keys = text.rpartition(KEYS_NAME)[2].partition("\2")[0] or parse_properties(text).get(KEYS)
            add_draft(Draft(topic, queue_id, b"", properties, 0, sys_flag, 0, b"", 0, 0, tags, unique_key, keys))
            add_place(Appended(log_offset, size, queue_offset, stored))
            at = end
        return at

    def _topic(self, key: bytes) -> str | None:
        if key in self._topics:
            return self._topics[key]
        topic = str(key[1:], "utf-8", "replace")
        self._topics[key] = topic if key[0] <= TOPIC_V1_MAX and is_directory_name(topic) else None
        return self._topics[key]
