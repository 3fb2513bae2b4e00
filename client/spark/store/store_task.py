"""Read the records of one task: those that the entries of its queues name, in log order.

No record is searched: the entries say where each begins and how long it is. So the only work per
record is numpy's, and the check that the log has that record there.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from triomq.client.spark.decode import RecordDecoder
from triomq.client.spark.errors import SourceError, StoreFileDamaged
from triomq.client.spark.offsets import Queue
from triomq.client.spark.records import (
    PADDING,
    Block,
    Booleans,
    Integers,
    Records,
    laid_out,
    numbers,
)
from triomq.client.spark.store.log_files import OFFSET_END, RECORD_BYTES_MAX, LogFiles
from triomq.client.spark.store.served_topics import BATCH_QUEUES, QUEUES
from triomq.client.spark.store.store_options import StoreOptions
from triomq.client.spark.store.store_planning import EntryRange, open_log
from triomq.client.spark.store.stored_queue import FILLER_SIZE, StoredQueue
from triomq.remoting.protocol.inner_batch import INNER_FLAGS
from triomq.remoting.protocol.record import LENGTH, LOG_OFFSET_AT, QUEUE_OFFSET_AT
from triomq.remoting.protocol.record_reader import RECORD_BYTES_MIN

logger = logging.getLogger(__name__)

GAP_BYTES_MAX = 4096
"""Unwanted bytes up to this number are read with the wanted ones around them: one call less."""
QUEUE_ID_AT = 12


@attrs.frozen
class RecordPlaces:
    """Records of the log, ascending: where they begin, their sizes, and the number of the range."""

    log_offset: Integers
    size: Integers
    owner: Integers

    def __len__(self) -> int:
        return len(self.log_offset)

    def only(self, rows: "Integers | Booleans | slice") -> "RecordPlaces":
        return RecordPlaces(self.log_offset[rows], self.size[rows], self.owner[rows])


@attrs.define(eq=False)
class StoreTask:
    """One task's work."""

    ranges: Sequence[EntryRange]
    options: StoreOptions
    decoder: RecordDecoder
    _log: LogFiles = attrs.field(init=False)
    _queues: Sequence[Queue] = attrs.field(init=False)
    _firsts: Integers = attrs.field(init=False)
    _ends: Integers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._queues = [each.queue for each in self.ranges]
        self._firsts = np.array([each.first_offset for each in self.ranges], np.int64)
        self._ends = np.array([each.end_offset for each in self.ranges], np.int64)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the task. Raises: StoreFileDamaged, SourceError."""
        self._log = open_log(self.options)
        try:
            places = self._places()
            for part in parts_of(places, self.options.record_batch_bytes):
                yield from self._decoded(places.only(part))
        finally:
            self._log.close()

    # Where the records are

    def _places(self) -> RecordPlaces:
        """Return the records of all ranges in log order. Raises: StoreFileDamaged."""
        found = [self._places_of(number, each) for number, each in enumerate(self.ranges)]
        log_offset = np.concatenate([each.log_offset for each in found])
        order = np.argsort(log_offset, kind="stable")
        return RecordPlaces(
            log_offset[order],
            np.concatenate([each.size for each in found])[order],
            np.concatenate([each.owner for each in found])[order],
        )

    def _places_of(self, number: int, wanted: EntryRange) -> RecordPlaces:
        queue = wanted.queue
        folder = self.options.root / (BATCH_QUEUES if wanted.batched else QUEUES)
        stored = StoredQueue.find(
            queue, folder / queue.topic / str(queue.queue_id), batched=wanted.batched
        )
        try:
            entries = stored.entries(wanted.first, wanted.end)
            log_offset = entries["log_offset"].astype(np.int64)
            size = entries["size"].astype(np.int64)
            real = size != FILLER_SIZE
            good = (size >= RECORD_BYTES_MIN) & (size <= RECORD_BYTES_MAX)
            good &= (log_offset >= 0) & (log_offset < OFFSET_END)
            bad = np.flatnonzero(real & ~good)
            if len(bad):
                path, at = stored.place(wanted.first + int(bad[0]))
                what = (
                    f"the entry names a record of {size[bad[0]]} bytes at log offset"
                    f" {log_offset[bad[0]]}, which cannot be ({queue})"
                )
                self._skip(StoreFileDamaged(path, at, what), len(bad))
            kept = real & good
            return RecordPlaces(
                log_offset[kept], size[kept], np.full(int(kept.sum()), number, np.int64)
            )
        finally:
            stored.close()

    # The records

    def _decoded(self, places: RecordPlaces) -> list[pa.RecordBatch]:
        """Return the rows of some records. Raises: StoreFileDamaged."""
        raw, at, places = self._read(places)
        same = (numbers(raw, at, ">i4") == places.size) & (
            numbers(raw, at + LOG_OFFSET_AT, ">i8") == places.log_offset
        )
        if not same.all():
            self._skip_records(places.only(~same), "no record of this size begins here")
            at, places = at[same], places.only(same)
        offsets = numbers(raw, at + QUEUE_OFFSET_AT, ">i8")
        records, whole = laid_out(raw, self._queues, at, places.owner, offsets)
        whole &= self._belongs(records)
        if not whole.all():
            self._skip_records(
                places.only(~whole), "the record is damaged, or of another topic or queue"
            )
            records, places = records.only(whole), places.only(whole)
        packed = records.sys_flag & INNER_FLAGS == INNER_FLAGS
        wanted = (records.queue_offset >= self._firsts[places.owner]) & (
            records.queue_offset < self._ends[places.owner]
        )
        if not (wanted | packed).all():
            wanted |= packed
            self._skip_records(places.only(~wanted), "the record's offset is none of its queue's")
            records, places, packed = records.only(wanted), places.only(wanted), packed[wanted]
        if packed.any():
            return self._unwrapped(records, places)
        return self.decoder.batches(records)

    def _belongs(self, records: Records) -> Booleans:
        """Return which records are of the topic and queue whose entry names them."""
        ids = np.array([queue.queue_id for queue in self._queues], np.int64)
        belongs: Booleans = records.field(QUEUE_ID_AT, ">i4") == ids[records.owner]
        topics = [queue.topic for queue in self._queues]
        body_ends = records.body.starts + records.body.lengths
        for topic in set(topics):
            name = topic.encode()
            rows = np.array([each == topic for each in topics])[records.owner]
            starts = records.properties.starts - LENGTH.size - len(name)
            texts: npt.NDArray[np.bytes_] = np.ndarray(
                (len(records.raw) - len(name) + 1,), f"S{len(name)}", records.raw, 0, (1,)
            )
            at = np.clip(starts, 0, len(texts) - 1)
            prefix = starts - body_ends  # the length of the topic: one byte, or two
            equal = (texts[at] == name) & (prefix >= 1) & (prefix <= 2)
            belongs &= equal | ~rows
        return belongs

    def _unwrapped(self, records: Records, places: RecordPlaces) -> list[pa.RecordBatch]:
        """Return the rows of records, some of which hold several. Raises: StoreFileDamaged."""

        def block(rows: Integers) -> Block:
            wanted = self.ranges[int(places.owner[rows[0]])]
            body = b"".join(
                records.raw[start : start + size]
                for start, size in zip(
                    records.starts[rows].tolist(), records.size[rows].tolist(), strict=True
                )
            )
            return Block(wanted.queue, wanted.first_offset, wanted.end_offset, body)

        owners = np.unique(places.owner)
        try:
            return self.decoder.decode(
                [block(np.flatnonzero(places.owner == owner)) for owner in owners]
            )
        except SourceError:
            logger.debug("one of %d records is damaged", len(places))
        batches = []
        for row in range(len(places)):
            try:
                batches += self.decoder.decode([block(np.array([row]))])
            except SourceError as error:
                self._skip_records(places.only(slice(row, row + 1)), str(error.__cause__ or error))
        return batches

    def _read(self, places: RecordPlaces) -> tuple[bytes, Integers, RecordPlaces]:
        """Return the bytes of the records, their positions, and the records that could be read.

        Neighbours are read with one call. Raises: StoreFileDamaged.
        """
        pieces: list[bytes] = []
        moves = np.zeros(len(places), np.int64)
        missing: list[int] = []
        position = 0

        def take(first: int, stop: int) -> None:
            nonlocal position
            begin = int(places.log_offset[first])
            end = int((places.log_offset[first:stop] + places.size[first:stop]).max())
            pieces.append(self._log.read(begin, end - begin))
            moves[first:stop] = position - begin
            position += end - begin

        for first, stop in self._runs(places):
            try:
                take(first, stop)
            except StoreFileDamaged:
                for row in range(first, stop):  # find the one that cannot be read
                    try:
                        take(row, row + 1)
                    except StoreFileDamaged as damage:
                        self._skip(damage)
                        missing.append(row)
        raw = b"".join([*pieces, PADDING])
        if missing:
            kept = np.setdiff1d(np.arange(len(places)), missing)
            moves, places = moves[kept], places.only(kept)
        return raw, places.log_offset + moves, places

    def _runs(self, places: RecordPlaces) -> Iterator[tuple[int, int]]:
        """Yield [first, stop) of records that are read with one call."""
        ends = np.maximum.accumulate(places.log_offset + places.size)
        segments = np.searchsorted(self._log.bases, places.log_offset, side="right")
        far = places.log_offset[1:] - ends[:-1] > GAP_BYTES_MAX
        breaks = np.flatnonzero(far | (np.diff(segments) != 0)) + 1
        starts = [0, *breaks.tolist(), len(places)]
        yield from itertools.pairwise(starts)

    # Damage

    def _skip_records(self, places: RecordPlaces, what: str) -> None:
        """Warn about damaged records, or raise the error of the first. Raises: StoreFileDamaged."""
        log_offset, owner = int(places.log_offset[0]), int(places.owner[0])
        damage = self._log.segment_of(log_offset).damaged(
            log_offset, f"{what}; it should be a message of {self._queues[owner]}"
        )
        self._skip(damage, len(places))

    def _skip(self, damage: StoreFileDamaged, count: int = 1) -> None:
        if self.options.fail_on_data_loss:
            raise damage
        logger.warning(
            "%s at byte %d: %s; %d messages are skipped",
            damage.path,
            damage.position,
            damage.what,
            count,
        )


def parts_of(places: RecordPlaces, part_bytes: int) -> Iterator[slice]:
    """Yield the rows of parts of about ``part_bytes``, read gaps included."""
    if not len(places):
        return
    ends = np.maximum.accumulate(places.log_offset + places.size)
    gaps = np.diff(places.log_offset, prepend=places.log_offset[0])
    gaps[1:] = places.log_offset[1:] - ends[:-1]
    cost = places.size + np.where(gaps > GAP_BYTES_MAX, 0, np.maximum(gaps, 0))
    part = np.cumsum(cost) // part_bytes
    starts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(places)]
    for first, stop in itertools.pairwise(starts):
        yield slice(first, stop)
