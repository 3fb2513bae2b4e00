"""LogCopy: the log of another broker, appended here byte for byte.

Law: bytes come cut at any place, but only whole records with the right lengths, place and body CRC
go into the log, and the end of a segment only with all bytes behind its BLANK. So the log of a
slave ends between two records like any other log: indexes, flush, checkpoint and recovery need not
know that it is a copy. The first part of the next record waits in memory, at most one record. The
bytes behind a BLANK, up to a whole segment, do not: zeros are counted, and other bytes, which Java
leaves there if it writes through a pool of buffers, are written to their place in the file at once,
before their BLANK.

Queues and key index are not copied, but built from the records.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.core.errors import CopyRefused, DiskFull, StoreUnavailable
from triomq.broker.store.core.health import Health
from triomq.broker.store.core.numbering import BATCH_COUNT
from triomq.broker.store.follow.deferred_indexing import DeferredIndexing
from triomq.broker.store.follow.write_behind import Piece, WriteBehind
from triomq.broker.store.indexing.indexer import Indexer
from triomq.broker.store.log.commit_log import CommitLog
from triomq.broker.store.log.draft_reader import DraftReader, read_draft
from triomq.broker.store.log.flusher import Flusher
from triomq.broker.store.queues.batch import Batch
from triomq.remoting.protocol.message_properties import property_value
from triomq.remoting.protocol.record import BLANK, HEAD_V4, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

RECORD_BYTES_MAX = 128 * 1024 * 1024
"""Limit of a record that waits in memory. Java's brokers take frames of 16 MiB, unless a system
property says otherwise.
"""
BULK_BYTES = 128 * 1024
"""From this size on a thread writes the bytes: a change to a thread and back costs as much as
writing them.
"""


@attrs.define(eq=False)
class LogCopy:
    """The only writer of a slave's log."""

    log: CommitLog
    flusher: Flusher
    indexer: Indexer
    health: Health
    deferral: DeferredIndexing
    _reader: DraftReader = attrs.field(factory=lambda: DraftReader(check_crc=True), init=False)
    _rest: bytearray = attrs.field(factory=bytearray, init=False)
    """The first part of the next record."""
    _wanted: int = attrs.field(default=0, init=False)
    """Bytes that ``_rest`` needs for a whole record: a large record that comes in small pieces is
    not checked after each piece.
    """
    _blank_end: int = attrs.field(default=0, init=False)
    """If ``_rest`` is the BLANK of a segment: the end of that segment; otherwise 0."""
    _behind: int = attrs.field(default=0, init=False)
    """Bytes received behind that BLANK."""
    _keeps_ahead: bool = attrs.field(default=False, init=False)
    """Whether some of those bytes are in the file."""

    writer: WriteBehind = attrs.field(init=False)
    """Writes large pieces in a thread, while a caller is ``using`` it. ``write_some`` writes them,
    ``commit_some`` makes them part of the log, and its callback calls ``index_taken``.
    """

    def __attrs_post_init__(self) -> None:
        self.writer = WriteBehind(self.log, self._commit)

    @property
    def is_empty(self) -> bool:
        """Whether the log has not begun. Then the first bytes decide where it begins."""
        return not (self.log.segments.items or self._rest)

    @property
    def received(self) -> int:
        """The log offset of the next byte to receive."""
        return self.writer.end + len(self._rest) + self._behind

    def drop_rest(self) -> None:
        """Forget the part of a record at the end: the next byte follows the last whole record."""
        self._rest.clear()
        self._wanted = self._blank_end = self._behind = 0
        if self._keeps_ahead:
            self.log.note_bytes_behind()
            self._keeps_ahead = False

    def index_taken(self) -> None:
        """Show readers the records that ``take_unindexed`` has appended. Checkpoint: never."""
        self.indexer.index_offered()

    @property
    def is_spent(self) -> bool:
        """Whether to call ``wait_indexed``: too many copied records are not indexed yet."""
        return self.indexer.indexed.value < self.deferral.room_from(self.writer.end)

    async def wait_indexed(self) -> None:
        """Wait until indexing may be deferred again. Set a deadline: a full disk may take forever.

        Checkpoint: always.
        """
        await self.indexer.indexed.wait_reached(self.deferral.room_from(self.writer.end))

    def take_unindexed(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Append bytes of the other log from ``start`` on, without indexing.

        The caller then reports them and calls ``index_taken``, before its next checkpoint.

        After an error whole records before it are in the log, or wait in ``writer``, and the caller
        goes on at ``received``.

        Raises: CopyRefused if the bytes do not continue this log, or are not records; DiskFull,
        StoreIoError, StoreUnavailable.
        Checkpoint: never.
        """
        self._check_health()
        if self.is_empty:
            self._begin_at(start)
        if start != self.received:
            raise CopyRefused(
                f"bytes of log offset {start} came, but this log goes on at {self.received}"
            )
        try:
            if self._blank_end:
                data = self._pass_behind_blank(data)
            self._append_whole(data)
        except (CopyRefused, DiskFull):
            self.drop_rest()
            raise

    def _check_health(self) -> None:
        health = self.health
        if health.closing or health.failed:
            raise StoreUnavailable("it is closing")
        fault = health.index_fault or health.queue_fault
        if fault is not None:
            raise fault.with_traceback(None)

    def _begin_at(self, start: int) -> None:
        """Begin an empty log at the start of a segment."""
        size = self.log.config.segment_size_bytes
        if start % size:
            raise CopyRefused(
                f"the log would begin at {start}, which is no multiple of"
                f" mappedFileSizeCommitLog={size}: set it to the master's value, since the files of"
                " both must have the same size"
            )
        self.log.appended.advance(start)
        self.flusher.flushed.advance(start)
        self.indexer.indexed.advance(start)

    def _append_whole(self, more: bytes | bytearray | memoryview) -> None:
        """Append all whole records, a piece per segment; the remaining bytes wait in ``_rest``."""
        rest = self._rest
        if len(rest) + len(more) < self._wanted or self._blank_end:
            rest += more
            return
        data = b"".join((rest, more)) if rest else bytes(more)
        size = self.log.config.segment_size_bytes
        begin = start = position = self.writer.end
        fault: str | None = None
        try:
            while fault is None:
                segment_end = start - start % size + size
                deferred = self.deferral.defers(position)
                drafts: list[Draft] = []
                places: list[Appended] = []
                stored = 0
                limit = min(len(data), segment_end - begin)
                while position < segment_end:
                    stop = at = position - begin
                    if at < limit and deferred:
                        stop, passed = self._reader.skip(data, at, limit, position)
                        stored = passed or stored
                    elif at < limit:
                        stop = self._reader.read(data, at, limit, position, limit, drafts, places)
                    if stop > at:
                        position += stop - at
                        continue
                    found = self._next(data, at, position, segment_end)
                    # The bytes of the BLANK that ends the segment, or 0: not whole yet.
                    if isinstance(found, int):
                        position += found
                        if not found:
                            self._wanted = (
                                BLANK.unpack_from(data, at)[0]
                                if len(data) - at >= BLANK.size
                                else BLANK.size
                            )
                            break
                    elif isinstance(found, str):
                        fault = found
                        break
                    else:
                        position += found[1].size
                        if deferred:
                            stored = found[1].store_timestamp
                        else:
                            drafts.append(found[0])
                            places.append(found[1])
                if position == start:
                    break
                if places:
                    stored = places[-1].store_timestamp
                self._append(
                    Batch(drafts, places, start, position),
                    memoryview(data)[start - begin : position - begin],
                    stored,
                    deferred,
                )
                start = position
        finally:
            self._rest = rest = bytearray(data[self.writer.end - begin :])
        if fault is not None:
            raise CopyRefused(
                f"the bytes for log offset {position} are not a message: {fault}; the two logs"
                " differ, or the master's is damaged"
            )
        # The length of this BLANK was checked above.
        if len(rest) >= BLANK.size and BLANK.unpack_from(rest)[1] == MAGIC_BLANK:
            behind = bytes(rest[BLANK.size :])
            del rest[BLANK.size :]
            self._blank_end, self._wanted = segment_end, 0
            self._pass_behind_blank(behind)

    def _pass_behind_blank(
        self, data: bytes | bytearray | memoryview
    ) -> bytes | bytearray | memoryview:
        """Take the bytes behind the BLANK, and return the rest of ``data``.

        The BLANK is appended when all bytes behind it have come.

        Raises: DiskFull, StoreIoError.
        """
        piece = bytes(data[: self._blank_end - self.received])
        if piece.count(0) != len(piece):
            self.log.write_ahead(piece, self.received, self.writer.end, erase=not self._keeps_ahead)
            self._keeps_ahead = True
        self._behind += len(piece)
        if self.received == self._blank_end:
            deferred = self.deferral.defers(self.writer.end)
            self._append(
                Batch([], [], self.writer.end, self._blank_end), bytes(self._rest), 0, deferred
            )
            self._rest.clear()
            self._blank_end = self._behind = 0
            self._keeps_ahead = False
        return data[len(piece) :]

    def _append(self, batch: Batch, data: bytes | memoryview, stored: int, deferred: bool) -> None:
        """Append whole records of one segment. ``stored``, ``deferred``: see ``Piece``."""
        writer, erase = self.writer, not self._keeps_ahead
        if writer.in_use and (len(data) >= BULK_BYTES or not writer.is_empty):
            segment = self.log.prepare_copied(batch.start, erase=erase)
            writer.put(Piece(batch, data, segment, stored, deferred))
        else:
            self.log.append_copied(data, stored, erase=erase)
            self._add(batch, deferred)

    def _commit(self, piece: Piece) -> None:
        """Make a piece that is in the file part of the log."""
        self.log.note_copied(piece.stored)
        self._add(piece.batch, piece.deferred)

    def _add(self, batch: Batch, deferred: bool) -> None:
        """Make records part of the log from now on."""
        if deferred:
            self.log.appended.advance(batch.end)
            self.deferral.note_deferred(batch.end)
            return
        for draft in batch.drafts:
            # The master's table of topics may come after a topic's first message, so the record
            # itself says which kind of queue it is for.
            if draft.special and property_value(draft.properties, BATCH_COUNT) is not None:
                self.indexer.queues.open(draft.topic, draft.queue_id, batched=True)
        # Index the batch before, if there is one: only a single batch is indexed in place.
        self.indexer.index_offered()
        self.log.appended.advance(batch.end)
        self.indexer.offer(batch)

    def _next(
        self, data: bytes, at: int, position: int, segment_end: int
    ) -> tuple[Draft, Appended] | int | str:
        """Return a record of an unusual kind, or the reason why the bytes are not a record.

        For a BLANK return the number of its bytes and of all bytes behind it; 0 if a record or a
        BLANK is not whole yet.
        """
        left = len(data) - at
        if left < BLANK.size:
            return 0
        size, magic = BLANK.unpack_from(data, at)
        if (magic == MAGIC_BLANK and size != segment_end - position) or (
            magic in (MAGIC_V1, MAGIC_V2) and position + size > segment_end
        ):
            return (
                "the master's files have another size than ours; set"
                f" mappedFileSizeCommitLog={self.log.config.segment_size_bytes} to its value"
            )
        if magic == MAGIC_BLANK:
            return segment_end - position if left >= segment_end - position else 0
        if magic not in (MAGIC_V1, MAGIC_V2) or not HEAD_V4.size <= size <= RECORD_BYTES_MAX:
            return f"size {size}, magic {magic & 0xFFFFFFFF:08x}"
        return read_draft(data, at, size, position, True) if left >= size else 0
