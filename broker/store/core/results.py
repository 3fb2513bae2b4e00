"""The results of the store's reads: plain values, made once per request."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs


class GetStatus(enum.Enum):
    """The outcome of a get. The names are Java's and travel as remarks.

    Source: store/…/GetMessageStatus.java.
    """

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"
    """Set by the broker, never by the store: a reset of the group's offset is pending."""


@attrs.define(eq=False)
class GetResult:
    """``chunks`` joined are whole records, ready to be sent.

    They may be slices of a memory map: keep them no longer than needed.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    chunks: Sequence[bytes | bytearray | memoryview] = ()
    count: int = 0
    size_bytes: int = 0
    far_behind: bool = False
    """The reader lags by more than the memory of this machine, so a slave could serve it as well
    (suggestWhichBrokerId).
    """


@attrs.define(eq=False)
class QueryResult:
    """Records found by key, oldest first, a chunk for each.

    ``last_update_…`` is the newest entry of the index: the client learns how far the index reaches.
    """

    chunks: Sequence[bytes]
    last_update_ms: int
    last_update_offset: int


@attrs.frozen
class GetLimits:
    """How much one get returns at the most, though always one record."""

    count_in_memory: int
    bytes_in_memory: int
    count_on_disk: int
    bytes_on_disk: int


RANGE_LIMITS = GetLimits(4096, 1024 * 1024, 4096, 1024 * 1024)
"""For readers of ranges, which take all messages of a queue at once, and are few."""
