"""Receipt handles: what a consumer gives back to acknowledge a message that it popped.

A handle is a text of eight fields with single blanks between them, the property POP_CK. The header
of an answer says the same of all its messages in lists, from which clients make the handles.

Source: remoting/…/header/ExtraInfoUtil.java, common/consumer/ReceiptHandle.java.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from triomq.remoting.core.errors import RemoteProtocolError

NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2
"""The topic of a message: the one that was asked for, or one of its two retry topics."""
ORDERED_QUEUE = 999
"""The revive queue in the handles of orderly groups, which have no check points."""
LISTED_MAX = 4096
"""Limit of the items of a list; an answer has at most 32 messages of each queue and topic."""

_HANDLE = re.compile(
    "([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19}) ([^ ]+) ([0-9]{1,19})"
    " ([0-9]{1,19})(?: [^ ]*)?"
).fullmatch

Place = tuple[int, int]
"""(kind of the topic, queue id)"""


class ReceiptHandle(NamedTuple):
    """One message of one pop."""

    start_offset: int
    """The smallest queue offset of the pop in this queue."""
    pop_time: int
    """ms"""
    invisible_ms: int
    revive_queue: int
    retry: int
    broker_name: str
    queue_id: int
    offset: int

    def encode(self) -> str:
        """Return the text of the handle."""
        return " ".join(map(str, self))

    @property
    def visible_at(self) -> int:
        """When the message comes again (ms)."""
        return self.pop_time + self.invisible_ms

    @classmethod
    def decode(cls, text: str) -> ReceiptHandle:
        """Return the fields of a handle; the ninth one of a gRPC handle is left out.

        Raises: RemoteProtocolError.
        """
        found = _HANDLE(text)
        if found is None:
            raise _invalid(text)
        start, pop_time, invisible, revive, retry, broker_name, queue_id, offset = found.groups()
        numbers = int(start), int(pop_time), int(invisible), int(revive), int(retry)
        made = cls(*numbers, broker_name, int(queue_id), int(offset))
        largest = max(*numbers, made.queue_id, made.offset)
        if made.retry > RETRY_V2 or made.offset < made.start_offset or largest >= 1 << 63:
            raise _invalid(text)
        return made


def number(text: str) -> int | None:
    """Return the value of a decimal number of 64 bits that is at least 0; None for another text."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        return None
    value = int(text)
    return value if value < 1 << 63 else None


def encode_starts(starts: Mapping[Place, int]) -> str:
    """Return ``startOffsetInfo``: the first offset of each queue of an answer."""
    return ";".join(f"{kind} {queue_id} {start}" for (kind, queue_id), start in starts.items())


def encode_offsets(offsets: Mapping[Place, Sequence[int]]) -> str:
    """Return ``msgOffsetInfo``: the offsets of the messages of each queue of an answer."""
    return ";".join(
        f"{kind} {queue_id} {','.join(map(str, listed))}"
        for (kind, queue_id), listed in offsets.items()
    )


def encode_counts(counts: Iterable[tuple[Place, int, int]]) -> str:
    """Return ``orderCountInfo``: place, offset and earlier deliveries of each message."""
    return ";".join(
        f"{kind} qo{queue_id}%{offset} {count}" for (kind, queue_id), offset, count in counts
    )


def decode_starts(text: str) -> dict[Place, int]:
    """Return the first offset of each queue. Raises: RemoteProtocolError."""
    starts = {}
    for place, rest in _items(text):
        start = number(rest)
        if start is None:
            raise _invalid(text)
        starts[place] = start
    return starts


def decode_offsets(text: str) -> dict[Place, list[int]]:
    """Return the offsets of the messages of each queue. Raises: RemoteProtocolError."""
    offsets: dict[Place, list[int]] = {}
    for place, rest in _items(text):
        found = [number(part) for part in rest.split(",", LISTED_MAX)]
        if None in found:
            raise _invalid(text)
        offsets[place] = [offset for offset in found if offset is not None]
    return offsets


def _items(text: str) -> list[tuple[Place, str]]:
    items: list[tuple[Place, str]] = []
    for item in text.split(";", LISTED_MAX) if text else []:
        parts = item.split(" ")
        kind, queue_id = (number(part) for part in (*parts[:2], "", "")[:2])
        if len(parts) != 3 or kind is None or queue_id is None:
            raise _invalid(text)
        items.append(((kind, queue_id), parts[2]))
    if len({place for place, _ in items}) < len(items):
        raise _invalid(text)
    return items


def _invalid(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"{text[:60]!r} is not a receipt handle, or not the offsets of a pop",
        "give back the handle as it came with the message",
    )
