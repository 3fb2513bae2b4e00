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
unpack_head, HEAD_BYTES = HEADS[0]
HEAD_BYTES_MAX = max(size for _, size in HEADS.values())
INNER = "\2INNER_"
"""How the names of all properties begin that make a record unusual."""
TAGS_NAME, UNIQ_KEY_NAME, KEYS_NAME = (f"\2{name}\1" for name in (TAGS, UNIQ_KEY, KEYS))
ID_NAME = UNIQ_KEY_NAME[1:].encode()
MISSES_MAX = 16
"""After so many messages of a run that were like no earlier one, each is expected to have something of its own besides the id."""
TOPICS_MAX = 65_536
"""After so many topics they are learned anew: the copy of a log runs for months, and topics come and go."""

Form = tuple[str, int, int, str | None, str | None, str | None]
"""What stands behind a body: topic, bytes in all, place of the properties in them, TAGS, UNIQ_KEY, KEYS."""
UNKNOWN: Form = ("", -1, 0, None, None, None)


@attrs.define(eq=False)
class RecordRun:
    """Takes usual records from blocks of the log; keeps the topics that it has met."""

    check_crc: bool
    _topics: dict[bytes, str | None] = attrs.field(factory=dict, init=False)
    """Encoded topic, its length in front -> topic; None for one that cannot be."""

    def take(self, data: bytes, at: int, limit: int, position: int, count_max: int, drafts: list[Draft], places: list[Appended]) -> int:
        """Append to both lists the usual records of ``data[at:limit]``, which lies at log offset ``position`` of one segment, at most so many; where the next starts.

        What stands behind a body is split around the id. If the texts on both sides are those of an earlier message of the run, only the id is left to read.
        """
        view, check_crc = memoryview(data), self.check_crc
        forms: dict[tuple[bytes, bytes], Form] | None = {}
        misses = 0
        front = key = back = b""
        add_draft, add_place = drafts.append, places.append
        shift = position - at
        last_start = limit - HEAD_BYTES_MAX
        for _ in range(count_max):
            if at > last_start:
                break
            size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, stored, body_size = unpack_head(data, at)
            body_at = at + HEAD_BYTES
            if sys_flag & HOSTS:
                unpack, head_bytes = HEADS[sys_flag & HOSTS]
                size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, stored, body_size = unpack(data, at)
                body_at = at + head_bytes
            end, rest_at = at + size, body_at + body_size
            if magic != MAGIC_V1 or end > limit or body_size < 0 or rest_at + 3 > end or log_offset != at + shift or queue_id < 0 or sys_flag & UNUSUAL:
                break
            if check_crc and body_size and crc32(view[body_at:rest_at]) & 0x7FFFFFFF != crc:
                break
            rest = data[rest_at:end]
            known = UNKNOWN
            if forms is not None:
                front, _, value = rest.rpartition(ID_NAME)
                key, _, back = value.partition(b"\2")
                known = forms.get((front, back), UNKNOWN)
            topic, rest_bytes, properties_at, tags, unique_key, keys = known
            try:
                if rest_bytes == end - rest_at and key and rest[-1]:  # an id may be empty, or end in a page that never reached the disk
                    unique_key = key.decode()
                else:
                    form = self._form(rest)
                    if form is None:
                        break
                    topic, _, properties_at, tags, unique_key, keys = form
                    if forms is not None:
                        if unique_key and (len(front) == properties_at or (len(front) > properties_at and front.endswith(b"\2"))):  # else it is no name
                            forms[front, back] = form
                        misses += 1
                        if misses > MISSES_MAX:
                            forms = None
            except UnicodeDecodeError:
                break
            add_draft(Draft(topic, queue_id, b"", rest[properties_at:], 0, sys_flag, 0, b"", 0, 0, tags, unique_key, keys))
            add_place(Appended(log_offset, size, queue_offset, stored))
            at = end
        return at

    def pass_over(self, data: bytes, at: int, limit: int, position: int) -> tuple[int, int]:
        """For records of ``data[at:limit]`` that are indexed later: where the first starts that does not count or is not usual, and the store time of the one before it (0 if there is none).

        What properties say makes no difference to whether a record counts: they are not read, and special ones are passed, too.
        """
        view, check_crc, topics = memoryview(data), self.check_crc, self._topics
        shift = position - at
        last_start = limit - HEAD_BYTES_MAX
        stored_last = 0
        while at <= last_start:
            size, magic, crc, queue_id, _, log_offset, sys_flag, stored, body_size = unpack_head(data, at)
            body_at = at + HEAD_BYTES
            if sys_flag & HOSTS:
                unpack, head_bytes = HEADS[sys_flag & HOSTS]
                size, magic, crc, queue_id, _, log_offset, sys_flag, stored, body_size = unpack(data, at)
                body_at = at + head_bytes
            end, rest_at = at + size, body_at + body_size
            if magic != MAGIC_V1 or end > limit or body_size < 0 or rest_at + 3 > end or log_offset != at + shift or queue_id < 0:
                break
            lengths_at = rest_at + data[rest_at] + 1
            properties_at = lengths_at + 2
            if properties_at > end or end - properties_at != data[lengths_at] << 8 | data[lengths_at + 1] or data[lengths_at] > 0x7F or not data[end - 1]:
                break
            name = data[rest_at:lengths_at]
            if not (topics.get(name) or self._topic(name)) or (check_crc and body_size and crc32(view[body_at:rest_at]) & 0x7FFFFFFF != crc):
                break
            at, stored_last = end, stored
        return at, stored_last

    def _form(self, rest: bytes) -> Form | None:
        """Read what stands behind a body, at least three bytes; None if it needs a closer look. Raises UnicodeDecodeError."""
        properties_at = rest[0] + 3
        if properties_at > len(rest) or len(rest) - properties_at != rest[properties_at - 2] << 8 | rest[properties_at - 1] or rest[properties_at - 2] > 0x7F or not rest[-1]:
            return None
        name = rest[: properties_at - 2]
        topic = self._topics.get(name) or self._topic(name)
        text = "\2" + rest[properties_at:].decode()
        if topic is None or INNER in text:
            return None
        # The last of a name counts. `rpartition` and `in` take half the time of `rfind` and `find`, which parse their arguments in the old way.
        tags = unique_key = keys = None
        _, found, value = text.rpartition(TAGS_NAME)
        if found:
            tags = value.partition("\2")[0] or parse_properties(text).get(TAGS)
        _, found, value = text.rpartition(UNIQ_KEY_NAME)
        if found:
            unique_key = value.partition("\2")[0] or parse_properties(text).get(UNIQ_KEY)
        if KEYS_NAME in text:
            keys = text.rpartition(KEYS_NAME)[2].partition("\2")[0] or parse_properties(text).get(KEYS)
        return topic, len(rest), properties_at, tags, unique_key, keys

    def _topic(self, key: bytes) -> str | None:
        if key in self._topics:
            return self._topics[key]
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        topic = str(key[1:], "utf-8", "replace")
        self._topics[key] = topic if key[0] <= TOPIC_V1_MAX and is_directory_name(topic) else None
        return self._topics[key]
