"""What the store answers: plain values, made once per request."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs


class GetStatus(enum.Enum):
    """How a get ended; names are Java's, they travel as remarks. Source: store/…/GetMessageStatus.java."""

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
    """Never from the store: the broker answers so while a reset of the group's offset is pending."""


@attrs.define(eq=False)
class GetResult:
    """``chunks`` joined are whole records, ready to be sent. They may be slices of a memory map: keep them no longer than needed."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    chunks: Sequence[bytes | bytearray | memoryview] = ()
    count: int = 0
    size_bytes: int = 0
    far_behind: bool = False
    """The reader lags by more than the memory of this machine: a slave could serve it as well (suggestWhichBrokerId)."""


@attrs.define(eq=False)
class QueryResult:
    """Records found by key, oldest first; one chunk each. The newest entry of the index tells the asker how far it reaches."""

    chunks: Sequence[bytes]
    last_update_ms: int
    last_update_offset: int


@attrs.frozen(kw_only=True)
class StoreStatistics:
    """Numbers for runtime information; cheap to take."""

    oldest: int
    appended: int
    flushed: int
    confirmed: int
    indexed: int
    segment_count: int
    queue_count: int
    index_file_count: int
    backlog_bytes: int
    backlog_overruns: int
    flush_count: int
    last_store_timestamp: int
    append_count: int
    """Messages appended since the start."""
    append_bytes: int
    append_max_ms: float
    """Longest append so far: a stall of the page cache shows here."""
    open_queue_files: int
    writable: bool
