"""Which messages of a store a query reads, and how they are cut into tasks.

The begin and end of each queue come from its entries, once, while the query is planned, so that the
rows are those that the broker would serve. Then the log is cut into pieces; a task reads the
entries of all queues that point into its piece, and so each byte of the log once.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import attrs

from triomq.client.spark.errors import SourceError
from triomq.client.spark.offsets import Bounds, Offsets, Queue
from triomq.client.spark.positions import at_timestamps, resolve
from triomq.client.spark.query_begin import times_of_queues
from triomq.client.spark.store.log_files import LogFiles
from triomq.client.spark.store.served_topics import BATCH_QUEUES, QUEUES, broker_name, wanted_queues
from triomq.client.spark.store.stopped import check_stopped
from triomq.client.spark.store.store_options import StoreOptions
from triomq.client.spark.store.stored_queue import StoredEntry, StoredQueue, usual_file_bytes

logger = logging.getLogger(__name__)


class EntryRange(NamedTuple):
    """Entries [first, end) of a queue, and the messages [first_offset, end_offset) of its query."""

    queue: Queue
    batched: bool
    first: int
    end: int
    first_offset: int
    end_offset: int


@attrs.frozen
class StorePlan:
    """The messages of one query, exactly."""

    begins: Offsets
    ends: Offsets
    """Where a live query goes on: it has every readable queue, also those without messages."""
    tasks: Sequence[tuple[EntryRange, ...]]

    @property
    def message_count(self) -> int:
        return sum(max(0, end - self.begins[queue]) for queue, end in self.ends.items())


@attrs.frozen
class ReadableQueue:
    """A queue, and the entries whose records can be read: [first, end)."""

    stored: StoredQueue
    first: int
    end: int
    bounds: Bounds

    def end_before(self, log_offset: int) -> int:
        """Return the offset behind the last message whose record ends at ``log_offset`` at most."""
        number = cut_off(self.stored, log_offset, self.first, self.end)
        end = self.stored.bounds_of(self.first, number).end
        self.stored.close()
        return end


def cut_off(stored: StoredQueue, log_offset: int, first: int, end: int) -> int:
    """Return the first entry whose record ends behind a log offset, or ``end``."""
    return stored.first_not(lambda entry: entry.log_offset + entry.size <= log_offset, first, end)


def plan_store(options: StoreOptions) -> StorePlan:
    """Fix the begin and the end of each queue, and cut the log into tasks.

    Raises: OptionError, SourceError, StoreInUse, StoreFileDamaged, DataLoss, OSError.
    """
    log = open_log(options)
    try:
        queues, begins, ends = fixed(options, log)
        ranges = [
            entry_range(queues[queue], begin, ends[queue])
            for queue, begin in sorted(begins.items())
            if begin < ends[queue]
        ]
        return StorePlan(begins, ends, plan_pieces(ranges, queues, log, options))
    finally:
        log.close()


def plan_steps(options: StoreOptions, step_bytes: int) -> list[tuple[Offsets, Offsets]]:
    """Return begins and ends of parts that follow each other, of about ``step_bytes`` of the log.

    The last part has what is left, which may be nothing.

    Raises: as ``plan_store``.
    """
    log = open_log(options)
    try:
        queues, begins, last_ends = fixed(options, log)
    finally:
        log.close()
    steps = []
    for cut in range(log.start + step_bytes, log.end, step_bytes):
        ends = {
            queue: min(max(begin, queues[queue].end_before(cut)), last_ends[queue])
            for queue, begin in begins.items()
        }
        if ends not in (begins, last_ends):
            steps.append((begins, ends))
            begins = ends
    return [*steps, (begins, last_ends)]


def open_log(options: StoreOptions) -> LogFiles:
    """Return the log of a store that no broker writes. Raises: SourceError, StoreInUse."""
    check_stopped(options.root, snapshot=options.snapshot)
    try:
        return LogFiles.find(options.log_folders)
    except OSError as error:
        raise SourceError(
            f"the log of {options.root} cannot be read: {error}; mount it at the same path on the"
            " driver and on all workers, or name its folders with commitLogPath"
        ) from error


def fixed(
    options: StoreOptions, log: LogFiles
) -> tuple[dict[Queue, ReadableQueue], Offsets, Offsets]:
    """Return the queues, and where the query begins and ends in each. Raises: as ``plan_store``."""
    broker = broker_name(options.root, options.broker)
    queues = readable_queues(
        wanted_queues(options.root, options.subscribe, options.pattern, broker), log, options
    )
    begins = offsets_of("starting", options, queues, log)
    ends = offsets_of("ending", options, queues, log)
    return queues, begins, {queue: max(end, begins[queue]) for queue, end in ends.items()}


def readable_queues(
    found: Sequence[StoredQueue], log: LogFiles, options: StoreOptions
) -> dict[Queue, ReadableQueue]:
    """Return the queues with the entries that the log has records for.

    Raises: StoreFileDamaged, if ``failOnDataLoss`` is true.
    """
    usual = {
        batched: usual_file_bytes(options.root / (BATCH_QUEUES if batched else QUEUES))
        for batched in {stored.batched for stored in found}
    }
    queues = {}
    for stored in found:
        for damage in stored.damages(usual[stored.batched]):
            if options.fail_on_data_loss:
                raise damage
            logger.warning("%s at byte %d: %s", damage.path, damage.position, damage.what)
        queues[stored.queue] = readable(stored, log, options)
        stored.close()
    return queues


def readable(stored: StoredQueue, log: LogFiles, options: StoreOptions) -> ReadableQueue:
    """Return a queue from its first record in the log to its end. Raises: StoreFileDamaged."""
    written = stored.written_end()
    first = stored.first_not(lambda entry: entry.log_offset < log.start, stored.first, written)
    end = written
    if options.confirm_offset is not None:
        end = cut_off(stored, options.confirm_offset, first, end)
    if options.snapshot:
        whole = stored.whole_end(log, first, end)
        if whole < end:
            logger.warning(
                "%s: the log does not have the records of the last %d entries; the queue ends"
                " before them",
                stored.queue,
                end - whole,
            )
        end = whole
    return ReadableQueue(stored, first, end, stored.bounds_of(first, end))


# Begins and ends


def offsets_of(
    which: Literal["starting", "ending"],
    options: StoreOptions,
    queues: Mapping[Queue, ReadableQueue],
    log: LogFiles,
) -> Offsets:
    """Return where the query begins, or ends (exclusive), in each queue.

    Raises: OptionError, DataLoss, StoreFileDamaged.
    """
    begin = which == "starting"
    wanted = options.starting_offsets if begin else options.ending_offsets
    wanted_times = options.starting_times if begin else options.ending_times
    bounds = {queue: found.bounds for queue, found in queues.items()}
    if wanted_times is None:
        lossy = options.fail_on_data_loss
        return resolve(f"{which}Offsets", wanted, bounds, fail_on_data_loss=lossy)
    times = times_of_queues(f"{which}OffsetsByTimestamp", wanted_times, bounds)
    found = {queue: offset_at(queues[queue], moment, log) for queue, moment in times.items()}
    strategy = options.timestamp_strategy if begin else "latest"
    return at_timestamps(found, bounds, times, strategy)


def offset_at(queue: ReadableQueue, moment_ms: int, log: LogFiles) -> int:
    """Return the offset of the first message stored at a time or later, or the queue's end.

    Raises: StoreFileDamaged.
    """
    number = queue.stored.first_not(
        lambda entry: log.store_time(entry.log_offset) < moment_ms, queue.first, queue.end
    )
    if number == queue.end:
        return queue.bounds.end
    return queue.stored.entry(number).base if queue.stored.batched else number


# Tasks


def entry_range(queue: ReadableQueue, begin: int, end: int) -> EntryRange:
    """Return the entries of the messages [begin, end)."""
    stored = queue.stored
    first = stored.number_of(begin, queue.first, queue.end)
    last = stored.number_of(end - 1, queue.first, queue.end) + 1
    return EntryRange(stored.queue, stored.batched, first, min(last, queue.end), begin, end)


def plan_pieces(
    ranges: Sequence[EntryRange],
    queues: Mapping[Queue, ReadableQueue],
    log: LogFiles,
    options: StoreOptions,
) -> list[tuple[EntryRange, ...]]:
    """Cut the ranges where their log offsets pass ``partitionBytes``; join small neighbours."""
    cuts = list(cuts_of(log, options.partition_bytes))
    pieces: list[list[EntryRange]] = [[] for _ in range(len(cuts) + 1)]
    for whole in ranges:
        stored = queues[whole.queue].stored
        number = 0
        for first, end in stored.parts(whole.first, whole.end):
            while first < end:
                last = end
                if number < len(cuts):
                    last = stored.first_not(partial(is_before, cuts[number]), first, end)
                if first < last:
                    pieces[number].append(whole._replace(first=first, end=last))
                first = last
                number += first < end  # the rest lies behind this cut
        stored.close()
    return joined(pieces, options.min_records_per_partition)


def is_before(cut: int, entry: StoredEntry) -> bool:
    return entry.log_offset < cut


def cuts_of(log: LogFiles, piece_bytes: int) -> Iterable[int]:
    """Yield the log offsets between pieces: within segments every ``piece_bytes``, and at ends."""
    for segment in log.segments:
        pieces = max(1, -(-segment.length // piece_bytes))
        for piece in range(1, pieces + 1):
            yield segment.base + segment.length * piece // pieces


def joined(pieces: Iterable[list[EntryRange]], least: int) -> list[tuple[EntryRange, ...]]:
    """Return tasks of at least ``least`` entries, if so many are left."""
    tasks: list[tuple[EntryRange, ...]] = []
    task: list[EntryRange] = []
    newest: dict[Queue, int] = {}
    count = 0
    for piece in pieces:
        for each in piece:
            place = newest.get(each.queue)
            if place is not None and task[place].end == each.first:
                task[place] = task[place]._replace(end=each.end)
            else:
                newest[each.queue] = len(task)
                task.append(each)
            count += each.end - each.first
        if count >= least:
            tasks.append(tuple(task))
            task, newest, count = [], {}, 0
    if task:
        tasks.append(tuple(task))
    return tasks
