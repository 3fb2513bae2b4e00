"""LogCopy: the log of another broker, appended here byte for byte.

Law: bytes come in any cuts, but only whole records whose lengths, place and body CRC are right go into the log, and the end of a segment only with all that
lies behind its BLANK. So the log of a slave ends between two records like any other log: indexes, flush, checkpoint and recovery need not know that it is a
copy. What has come of the next record waits in memory, at most one record. What lies behind a BLANK, up to a whole segment, does not: zeros are counted, and
anything else, which Java leaves there if it writes through a pool of buffers, goes to its place in the file at once, before its BLANK.

Queues and key index are made here from the records: they are not copied.
"""

from __future__ import annotations

import attrs

from triomq.broker.store.commitlog import CommitLog
from triomq.broker.store.copy_ahead import CopyAhead
from triomq.broker.store.draft import Appended, Batch, Draft
from triomq.broker.store.durability import Flusher
from triomq.broker.store.errors import CopyRefused, DiskFull, StoreUnavailable
from triomq.broker.store.health import Health
from triomq.broker.store.indexer import Indexer
from triomq.broker.store.log_scan import record_at
from triomq.broker.store.numbering import BATCH_COUNT, SPECIAL
from triomq.broker.store.record_run import RecordRun
from triomq.broker.store.write_behind import Piece, WriteBehind
from triomq.remoting.protocol.message import property_value
from triomq.remoting.protocol.record import BLANK, HEAD_V4, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

RECORD_BYTES_MAX = 128 * 1024 * 1024
"""So much of one record may wait in memory. Java's brokers take frames of 16 MiB unless a system property says otherwise."""
BULK_BYTES = 128 * 1024
"""As much at once is left to a thread: the way there and back costs as much as to write it."""


@attrs.define(eq=False)
class LogCopy:
    """The only writer of a slave's log."""

    log: CommitLog
    flusher: Flusher
    indexer: Indexer
    health: Health
    ahead: CopyAhead
    _run: RecordRun = attrs.field(factory=lambda: RecordRun(check_crc=True), init=False)
    _rest: bytearray = attrs.field(factory=bytearray, init=False)
    """What has come of the record at the end of the log."""
    _wanted: int = attrs.field(default=0, init=False)
    """With fewer bytes than this in ``_rest`` there is no whole record: a large one that comes in small pieces is not looked at piece by piece."""
    _blank_end: int = attrs.field(default=0, init=False)
    """Where the segment ends whose BLANK is all of ``_rest``; else 0."""
    _behind: int = attrs.field(default=0, init=False)
    """How many bytes have come behind that BLANK."""
    _keeps_ahead: bool = attrs.field(default=False, init=False)
    """Whether some of them are in the file."""

    writer: WriteBehind = attrs.field(init=False)
    """Where much comes at once a thread writes it, while somebody is ``using`` this: ``writer.write_some`` has it written, ``writer.commit_some`` makes it part of the log, and what that calls afterwards calls ``index_taken``."""

    def __attrs_post_init__(self) -> None:
        self.writer = WriteBehind(self.log, self._commit)

    @property
    def is_empty(self) -> bool:
        """Whether the log has not begun: then the first bytes say where it begins."""
        return not (self.log.segments.items or self._rest)

    @property
    def received(self) -> int:
        """Log offset of the next byte to come."""
        return self.writer.end + len(self._rest) + self._behind

    def drop_rest(self) -> None:
        """Forget the part of a record that has come: the next byte to come is that behind the last whole one."""
        self._rest.clear()
        self._wanted = self._blank_end = self._behind = 0
        if self._keeps_ahead:
            self.log.note_bytes_behind()
            self._keeps_ahead = False

    def take(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """``take_unindexed`` and ``index_taken``."""
        try:
            self.take_unindexed(start, data)
        finally:
            self.index_taken()

    def index_taken(self) -> None:
        """Show readers what ``take_unindexed`` has appended. Atomic: no checkpoint."""
        self.indexer.index_offered()

    @property
    def is_spent(self) -> bool:
        """Whether ``wait_indexed`` had better be called before more is taken: much has been copied that the indexes do not have, and much is to come."""
        return self.indexer.indexed.value < self.ahead.room_from(self.writer.end)

    async def wait_indexed(self) -> None:
        """Until it may be copied ahead again. Checkpoint: always. Not for long, if ever, on a disk that is full: the caller sets a deadline."""
        await self.indexer.indexed.wait_reached(self.ahead.room_from(self.writer.end))

    def take_unindexed(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Append what lies at ``start`` in the other log; the caller calls ``index_taken`` when it has reported that, before its next checkpoint. Atomic: no checkpoint.

        Raises CopyRefused if it does not continue this log, or is no record; DiskFull, StoreIoError, StoreUnavailable. Then whole records before the fault are in
        the log, or wait in ``writer``, and the caller begins again at ``received``.
        """
        self._check_health()
        if self.is_empty:
            self._begin_at(start)
        if start != self.received:
            raise CopyRefused(f"bytes of log offset {start} came, but this log goes on at {self.received}")
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
            raise DiskFull(fault.path)

    def _begin_at(self, start: int) -> None:
        """An empty log may begin at any segment."""
        size = self.log.config.segment_size_bytes
        if start % size:
            raise CopyRefused(
                f"the log would begin at {start}, which is no multiple of mappedFileSizeCommitLog={size}: "
                "set it to the master's value, since the files of both must have the same size"
            )
        self.log.appended.advance(start)
        self.flusher.flushed.advance(start)
        self.indexer.indexed.advance(start)

    def _append_whole(self, more: bytes | bytearray | memoryview) -> None:
        """Append all whole records, a piece for each segment; what is left waits in ``_rest``."""
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
                left = self.ahead.leaves(position)
                drafts: list[Draft] = []
                places: list[Appended] = []
                stored = 0
                limit = min(len(data), segment_end - begin)
                while position < segment_end:
                    stop = at = position - begin
                    if at < limit and left:
                        stop, passed = self._run.pass_over(data, at, limit, position)
                        stored = passed or stored
                    elif at < limit:
                        stop = self._run.take(data, at, limit, position, limit, drafts, places)
                    if stop > at:
                        position += stop - at
                        continue
                    found = self._next(data, at, position, segment_end)
                    if isinstance(found, int):  # the BLANK that ends the segment, or 0: not whole yet
                        position += found
                        if not found:
                            self._wanted = BLANK.unpack_from(data, at)[0] if len(data) - at >= BLANK.size else BLANK.size
                            break
                    elif isinstance(found, str):
                        fault = found
                        break
                    else:
                        position += found[1].size
                        if left:
                            stored = found[1].store_timestamp
                        else:
                            drafts.append(found[0])
                            places.append(found[1])
                if position == start:
                    break
                if places:
                    stored = places[-1].store_timestamp
                self._append(Batch(drafts, places, start, position), memoryview(data)[start - begin : position - begin], stored, left)
                start = position
        finally:
            self._rest = rest = bytearray(data[self.writer.end - begin :])
        if fault is not None:
            raise CopyRefused(f"what came for log offset {position} is no message: {fault}; the two logs differ, or the master's is damaged")
        if len(rest) >= BLANK.size and BLANK.unpack_from(rest)[1] == MAGIC_BLANK:  # its length is right
            behind = bytes(rest[BLANK.size :])
            del rest[BLANK.size :]
            self._blank_end, self._wanted = segment_end, 0
            self._pass_behind_blank(behind)

    def _pass_behind_blank(self, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        """Take what lies behind the BLANK, and append that when all of it has come; what is left of ``data``. Raises DiskFull, StoreIoError."""
        piece = bytes(data[: self._blank_end - self.received])
        if piece.count(0) != len(piece):
            self.log.write_ahead(piece, self.received, self.writer.end, erase=not self._keeps_ahead)
            self._keeps_ahead = True
        self._behind += len(piece)
        if self.received == self._blank_end:
            left = self.ahead.leaves(self.writer.end)
            self._append(Batch([], [], self.writer.end, self._blank_end), bytes(self._rest), 0, left)
            self._rest.clear()
            self._blank_end = self._behind = 0
            self._keeps_ahead = False
        return data[len(piece) :]

    def _append(self, batch: Batch, data: bytes | memoryview, stored: int, left: bool) -> None:
        """Whole records of one segment, to the log and to its indexes; ``stored`` and ``left`` are those of a ``Piece``."""
        writer, erase = self.writer, not self._keeps_ahead
        if writer.in_use and (len(data) >= BULK_BYTES or not writer.is_empty):
            segment = self.log.prepare_copied(batch.start, erase=erase)
            writer.put(Piece(batch, data, segment, stored, left))
        else:
            self.log.append_copied(data, stored, erase=erase)
            self._add(batch, left)

    def _commit(self, piece: Piece) -> None:
        """It is in the file."""
        self.log.note_copied(piece.stored)
        self._add(piece.batch, piece.left)

    def _add(self, batch: Batch, left: bool) -> None:
        """It is part of the log from now on."""
        if left:
            self.log.appended.advance(batch.end)
            self.ahead.note_left(batch.end)
            return
        for draft in batch.drafts:
            # The master's table of topics may come later than its first message: the record itself tells what queue it is for.
            if draft.sys_flag & SPECIAL and property_value(draft.properties, BATCH_COUNT) is not None:
                self.indexer.queues.open(draft.topic, draft.queue_id, batched=True)
        self.indexer.index_offered()  # the batch before, if there is one: one at a time is indexed in place
        self.log.appended.advance(batch.end)
        self.indexer.offer(batch)

    def _next(self, data: bytes, at: int, position: int, segment_end: int) -> tuple[Draft, Appended] | int | str:
        """A record that is not of the usual kind; the bytes of a BLANK and what lies behind it; 0 if it has not come whole; or why it is no record."""
        left = len(data) - at
        if left < BLANK.size:
            return 0
        size, magic = BLANK.unpack_from(data, at)
        if (magic == MAGIC_BLANK and size != segment_end - position) or (magic in (MAGIC_V1, MAGIC_V2) and position + size > segment_end):
            return f"the master's files end elsewhere than ours; set mappedFileSizeCommitLog={self.log.config.segment_size_bytes} to its value"
        if magic == MAGIC_BLANK:
            return segment_end - position if left >= segment_end - position else 0
        if magic not in (MAGIC_V1, MAGIC_V2) or not HEAD_V4.size <= size <= RECORD_BYTES_MAX:
            return f"size {size}, magic {magic & 0xFFFFFFFF:08x}"
        return record_at(data, at, size, position, True) if left >= size else 0
