"""Drafts made from the records of the log, for the indexes: strictly, or fast for many records.

``read_draft`` holds every rule about which records count. ``DraftReader`` reads the common records
of a block at a third of the cost, and stops at the first record that needs ``read_draft``: one
whose topic has a two-byte length, one that takes other numbers than the next of its queue, or one
that does not count. Rebuilding a store is this loop, so it unpacks only the fields that indexes
need, and searches the properties instead of decoding them.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import attrs

from triomq.broker.store.core.draft import Appended, Draft, is_directory_name
from triomq.remoting.protocol.checksum import crc32
from triomq.remoting.protocol.message_properties import (
    INNER_NUM,
    KEYS,
    MULTI_QUEUE_OFFSET,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    parse_properties,
)
from triomq.remoting.protocol.record import (
    HOST_BITS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    TOPIC_V1_MAX,
)
from triomq.remoting.protocol.record_reader import read_record
from triomq.remoting.protocol.sys_flags import BORN_HOST_V6, INNER_BATCH, STORE_HOST_V6


def _head(born_bytes: int, store_bytes: int) -> tuple[Callable[[bytes, int], tuple[Any, ...]], int]:
    layout = Struct(f">iIIi4xqqi8x{born_bytes}xq{store_bytes}x12xi")
    return layout.unpack_from, layout.size


HEADS = {
    born | store: _head(
        HOST_V6_BYTES if born else HOST_V4_BYTES, HOST_V6_BYTES if store else HOST_V4_BYTES
    )
    for born in (0, BORN_HOST_V6)
    for store in (0, STORE_HOST_V6)
}
"""Host bits of sysFlag -> the function that unpacks size, magic, CRC, queue id, queue offset, log
offset, sysFlag, store time and size of the body; and the size of all fields up to the body.
"""
unpack_head, HEAD_BYTES = HEADS[0]
HEAD_BYTES_MAX = max(size for _, size in HEADS.values())
INNER = "\2INNER_"
"""How the name of each property begins that makes a record special."""
TAGS_NAME, UNIQ_KEY_NAME, KEYS_NAME = (f"\2{name}\1" for name in (TAGS, UNIQ_KEY, KEYS))
ID_NAME = UNIQ_KEY_NAME[1:].encode()
MISSES_MAX = 16
"""After this many messages of a block that were like no earlier message, the reader stops to
compare: probably each message has something of its own besides the id.
"""
TOPICS_MAX = 65_536
"""Topics to keep before they are learned again: a copy of a log runs for months, and topics come
and go.
"""

Tail = tuple[str, int, int, str | None, str | None, str | None]
"""What follows the body: topic, bytes up to the end, position of the properties in them, TAGS,
UNIQ_KEY, KEYS.
"""
UNKNOWN: Tail = ("", -1, 0, None, None, None)


def read_draft(
    data: bytes, at: int, size: int, position: int, check_crc: bool
) -> tuple[Draft, Appended] | str:
    """Return the record of ``size`` bytes at ``data[at]``, or the reason why it does not count.

    `position`: the log offset of the record. A record with another offset in it is stale, from an
    earlier life of the file; Java does not compare the two.

    The draft has what the indexes need, not the body.
    """
    found = read_record(data, at, at + size, check_crc)
    if isinstance(found, str):
        return found
    if found.log_offset != position:
        return f"the record says that it lies at {found.log_offset}"
    if not is_directory_name(found.topic) or found.queue_id < 0:
        return f"the record belongs to queue {found.queue_id} of {found.topic!r}, which cannot be"
    if found.properties_bytes.endswith(b"\0"):
        # The CRC covers the body only. No stored message ends so (check_draft), but the part of a
        # page that never reached the disk does.
        return "the end of the record was never written"
    properties = decode_properties(found.properties_bytes)
    draft = Draft(
        found.topic,
        found.queue_id,
        b"",
        found.properties_bytes,
        0,
        found.sys_flag,
        0,
        b"",
        tags=properties.get(TAGS),
        unique_key=properties.get(UNIQ_KEY),
        keys=properties.get(KEYS),
        special=bool(found.sys_flag & INNER_BATCH)
        or INNER_NUM in properties
        or MULTI_QUEUE_OFFSET in properties,
    )
    return draft, Appended(position, size, found.queue_offset, found.store_timestamp)


@attrs.define(eq=False)
class DraftReader:
    """The fast reader, with the topics that it has met."""

    check_crc: bool
    _topics: dict[bytes, str | None] = attrs.field(factory=dict, init=False)
    """Encoded topic with its length -> topic; None for a text that cannot be a topic."""

    def read(
        self,
        data: bytes,
        at: int,
        limit: int,
        position: int,
        count_max: int,
        drafts: list[Draft],
        places: list[Appended],
    ) -> int:
        """Append the common records of ``data[at:limit]`` to both lists, at most ``count_max``.

        `position`: the log offset of ``data[at]``; the block lies in one segment.

        What follows a body is split around the id. If the bytes on both sides are those of an
        earlier message of the block, only the id is left to read.

        Returns: where the next record starts.
        """
        view, check_crc = memoryview(data), self.check_crc
        learned: dict[tuple[bytes, bytes], Tail] | None = {}
        misses = 0
        front = key = back = b""
        add_draft, add_place = drafts.append, places.append
        shift = position - at
        last_start = limit - HEAD_BYTES_MAX
        for _ in range(count_max):
            if at > last_start:
                break
            size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, stored, body_size = (
                unpack_head(data, at)
            )
            body_at = at + HEAD_BYTES
            if sys_flag & HOST_BITS:
                unpack, head_bytes = HEADS[sys_flag & HOST_BITS]
                (size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, stored,
                 body_size) = unpack(data, at)  # fmt: skip
                body_at = at + head_bytes
            end, tail_at = at + size, body_at + body_size
            if (
                magic != MAGIC_V1
                or end > limit
                or body_size < 0
                or tail_at + 3 > end
                or log_offset != at + shift
                or queue_id < 0
                or sys_flag & INNER_BATCH
            ):
                break
            if check_crc and body_size and crc32(view[body_at:tail_at]) & 0x7FFFFFFF != crc:
                break
            tail = data[tail_at:end]
            known = UNKNOWN
            if learned is not None:
                front, _, value = tail.rpartition(ID_NAME)
                key, _, back = value.partition(b"\2")
                known = learned.get((front, back), UNKNOWN)
            topic, tail_bytes, properties_at, tags, unique_key, keys = known
            try:
                # An id may be empty, or end in a page that never reached the disk.
                if tail_bytes == end - tail_at and key and tail[-1]:
                    unique_key = key.decode()
                else:
                    read = self._read_tail(tail)
                    if read is None:
                        break
                    topic, _, properties_at, tags, unique_key, keys = read
                    if learned is not None:
                        # Otherwise this is the end of a longer name, or a part of a value.
                        if unique_key and (
                            len(front) == properties_at
                            or (len(front) > properties_at and front.endswith(b"\2"))
                        ):
                            learned[front, back] = read
                        misses += 1
                        if misses > MISSES_MAX:
                            learned = None
            except UnicodeDecodeError:
                break
            properties = tail[properties_at:]
            add_draft(
                Draft(topic, queue_id, b"", properties, 0, sys_flag, 0, b"", 0, 0, tags,
                      unique_key, keys)
            )  # fmt: skip
            add_place(Appended(log_offset, size, queue_offset, stored))
            at = end
        return at

    def skip(self, data: bytes, at: int, limit: int, position: int) -> tuple[int, int]:
        """Skip the common records of ``data[at:limit]`` that count; they are indexed later.

        Properties do not decide whether a record counts, so they are not read, and special records
        are skipped, too.

        Returns: where the first record starts that does not count or is not common, and the store
        time of the record before it, 0 if there is none.
        """
        view, check_crc, topics = memoryview(data), self.check_crc, self._topics
        shift = position - at
        last_start = limit - HEAD_BYTES_MAX
        last_stored = 0
        while at <= last_start:
            size, magic, crc, queue_id, _, log_offset, sys_flag, stored, body_size = unpack_head(
                data, at
            )
            body_at = at + HEAD_BYTES
            if sys_flag & HOST_BITS:
                unpack, head_bytes = HEADS[sys_flag & HOST_BITS]
                size, magic, crc, queue_id, _, log_offset, _, stored, body_size = unpack(data, at)
                body_at = at + head_bytes
            end, tail_at = at + size, body_at + body_size
            if (
                magic != MAGIC_V1
                or end > limit
                or body_size < 0
                or tail_at + 3 > end
                or log_offset != at + shift
                or queue_id < 0
            ):
                break
            length_at = tail_at + data[tail_at] + 1
            properties_at = length_at + 2
            if (
                properties_at > end
                or end - properties_at != data[length_at] << 8 | data[length_at + 1]
                or data[length_at] > 0x7F
                or not data[end - 1]
            ):
                break
            field = data[tail_at:length_at]
            if not (topics.get(field) or self._topic(field)) or (
                check_crc and body_size and crc32(view[body_at:tail_at]) & 0x7FFFFFFF != crc
            ):
                break
            at, last_stored = end, stored
        return at, last_stored

    def _read_tail(self, tail: bytes) -> Tail | None:
        """Return what follows a body, at least three bytes; None if that needs ``read_draft``.

        Raises: UnicodeDecodeError.
        """
        properties_at = tail[0] + 3
        if (
            properties_at > len(tail)
            or len(tail) - properties_at != tail[properties_at - 2] << 8 | tail[properties_at - 1]
            or tail[properties_at - 2] > 0x7F
            or not tail[-1]
        ):
            return None
        field = tail[: properties_at - 2]
        topic = self._topics.get(field) or self._topic(field)
        text = "\2" + tail[properties_at:].decode()
        if topic is None or INNER in text:
            return None
        # The last of a name counts. `rpartition` and `in` take half the time of `rfind` and `find`,
        # whose arguments are parsed in a slower way.
        tags = unique_key = keys = None
        _, found, value = text.rpartition(TAGS_NAME)
        if found:
            tags = value.partition("\2")[0] or parse_properties(text).get(TAGS)
        _, found, value = text.rpartition(UNIQ_KEY_NAME)
        if found:
            unique_key = value.partition("\2")[0] or parse_properties(text).get(UNIQ_KEY)
        if KEYS_NAME in text:
            value = text.rpartition(KEYS_NAME)[2]
            keys = value.partition("\2")[0] or parse_properties(text).get(KEYS)
        return topic, len(tail), properties_at, tags, unique_key, keys

    def _topic(self, field: bytes) -> str | None:
        if field in self._topics:
            return self._topics[field]
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        topic = str(field[1:], "utf-8", "replace")
        self._topics[field] = (
            topic if field[0] <= TOPIC_V1_MAX and is_directory_name(topic) else None
        )
        return self._topics[field]
