"""QueueTable: all consume queues of the store as one index. ``apply`` gives every record its entry.

A queue exists in memory from its first append on, and on the disk from the first ``write_out``.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import trio

from triomq.broker.store.core.config import StoreConfig
from triomq.broker.store.core.draft import UNQUEUED, Appended, Draft
from triomq.broker.store.core.numbering import (
    BATCH_BASE,
    batch_place,
    dispatch_places,
    may_dispatch,
)
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.open_files import OpenFiles
from triomq.broker.store.io.remover import FOLDER, Remover
from triomq.broker.store.queues.batch import Batch
from triomq.broker.store.queues.batch_queue import BatchQueue
from triomq.broker.store.queues.consume_queue import ENTRY, ConsumeQueue, IsRecord, QueueFiles
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.protocol.java_hash import tags_code
from triomq.remoting.protocol.message_properties import DELAY, decode_properties, property_value
from triomq.remoting.protocol.names import LMQ_PREFIX
from triomq.remoting.protocol.sys_flags import INNER_BATCH, TRANSACTION_MASK

logger = logging.getLogger(__name__)

pack_entry = ENTRY.pack

Arrival = tuple[str, int, int, int]
"""(topic, queue id, new end offset, tags code)"""


def _directories(path: Path) -> list[str]:
    """Return the names of a directory's directories, in a quarter of the time of ``iterdir``."""
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def _shows_new_queue(queue: ConsumeQueue, place: Appended) -> bool:
    """Return whether a record with number 0 begins a new queue; see ``_begin_again``."""
    return 0 <= queue.log_end <= place.log_offset and queue.next_offset <= queue.end_offset


def _part(batch: Batch, numbers: list[int]) -> Batch:
    """Return the records of a batch that have these positions in it."""
    if len(numbers) == len(batch.places):
        return batch
    drafts = [batch.drafts[number] for number in numbers]
    places = [batch.places[number] for number in numbers]
    queues = [batch.queues[number] for number in numbers] if batch.queues else None
    return Batch(drafts, places, batch.start, batch.end, queues)


@attrs.define(eq=False)
class QueueTable:
    """(topic, queue id) -> ConsumeQueue."""

    config: StoreConfig
    disk: Disk
    queues: dict[tuple[str, int], ConsumeQueue] = attrs.field(factory=dict, init=False)
    dirty: dict[ConsumeQueue, None] = attrs.field(factory=dict, init=False)
    """Queues with entries that are only in memory, in the order of the first such entry."""
    has_batch_queues: Callable[[str], bool] = lambda topic: False
    """Whether the attribute queue.type of a topic is BatchCQ. Called when a queue is created."""
    on_forget: list[Callable[[str, int], None]] = attrs.field(factory=list, init=False)
    """Called with the topic and the id of a queue that is deleted."""
    light_count: int = attrs.field(default=0, init=False)
    """Number of queues whose topic begins with %LMQ%."""
    remover: Remover = attrs.field(init=False)
    _files: QueueFiles = attrs.field(init=False)
    _batch_files: QueueFiles = attrs.field(init=False)
    _unsynced: set[ConsumeQueue] = attrs.field(factory=set, init=False)
    _arrived: list[ConsumeQueue] = attrs.field(factory=list, init=False)
    _deleted: dict[tuple[str, int], deque[ConsumeQueue]] = attrs.field(factory=dict, init=False)
    """Deleted queues with records that are not indexed yet. Those records must not get into the
    next queue of the same name.
    """
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self.remover = Remover(self.disk, self.config.root / FOLDER, trio.CapacityLimiter(1))
        open_files = OpenFiles(self.disk, self.config.open_files_max)
        self._files = QueueFiles(self.disk, open_files, self.config.queue_file_size_bytes)
        self._batch_files = QueueFiles(
            self.disk, open_files, self.config.batch_queue_file_size_bytes
        )

    @property
    def open_files(self) -> OpenFiles:
        return self._files.open_files

    @property
    def directory(self) -> Path:
        return self.config.root / "consumequeue"

    @property
    def batch_directory(self) -> Path:
        return self.config.root / "batchconsumequeue"

    def open(self, topic: str, queue_id: int, *, batched: bool = False) -> ConsumeQueue:
        """Return the queue; create it if it does not exist.

        It becomes a batch queue if the topic has batch queues, or if ``batched`` is true.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if batched or self.has_batch_queues(topic):
                queue = BatchQueue(
                    topic, queue_id, self.batch_directory / topic / str(queue_id), self._batch_files
                )
            else:
                queue = ConsumeQueue(
                    topic, queue_id, self.directory / topic / str(queue_id), self._files
                )
            self.queues[topic, queue_id] = queue
            if topic.startswith(LMQ_PREFIX):
                self.light_count += 1
        return queue

    # As an index

    def apply(self, batch: Batch) -> None:
        """Add the entries of a batch that are missing. Cannot fail halfway: it writes to no file.

        Checkpoint: never.
        """
        if self._deleted:
            for piece in self._without_deleted(batch):
                self._apply(piece)
        else:
            self._apply(batch)

    def _apply(self, batch: Batch) -> None:
        table = self.queues
        queues = batch.queues or [
            table.get((draft.topic, draft.queue_id)) or self._queue_of(draft, place)
            for draft, place in zip(batch.drafts, batch.places)
        ]
        for draft, place, queue in zip(batch.drafts, batch.places, queues):
            if queue.special:
                if not queue.deleted:
                    self._apply_special(queue, draft, place)
                elif not batch.queues:  # a queue of the same name has begun within this batch
                    self._apply_any(self._queue_of(draft, place), draft, place)
                # Otherwise the queue was deleted after the append, and a new queue of the same name
                # would have its files in the same place.
                continue
            queue_offset = place.queue_offset
            code = tags_code(draft.tags)
            if (
                queue_offset == queue.end_offset
                and not draft.special
                and not draft.sys_flag & TRANSACTION_MASK
            ):
                if not queue.tail:
                    self.dirty[queue] = None
                queue.tail += pack_entry(place.log_offset, place.size, code)
                queue.end_offset = queue_offset + 1
                queue.log_end = place.log_offset + place.size
            else:
                self._apply_unusual(queue, draft, place, code)
                continue
            if not queue.arrived:
                self._arrived.append(queue)
            queue.arrived[code] = queue_offset + 1

    def _without_deleted(self, batch: Batch) -> Iterator[Batch]:
        """Yield the batch without the records of queues that were deleted after the append.

        In the log they precede all records of the next queue of that name.

        The rest comes in pieces: an omitted record gets its entries in further queues after the
        entries of all records before it.
        """
        kept: list[int] = []
        for number, (draft, place) in enumerate(zip(batch.drafts, batch.places)):
            key = draft.topic, draft.queue_id
            deleted = self._deleted.get(key)
            unqueued = draft.sys_flag & TRANSACTION_MASK in UNQUEUED
            if (
                deleted is None
                or unqueued
                or (batch.queues and batch.queues[number] is not deleted[0])
            ):
                kept.append(number)
                continue
            base, count = (
                batch_place(draft.properties, place.queue_offset)
                if deleted[0].batched
                else (place.queue_offset, 1)
            )
            self._pass_record(key, base + count)
            if draft.special:
                if kept:
                    yield _part(batch, kept)
                    kept = []
                self._dispatch(draft, place, tags_code(draft.tags))
        if kept:
            yield _part(batch, kept)

    def _pass_record(self, key: tuple[str, int], end_offset: int) -> None:
        """Note how far the oldest deleted queue of that name is passed; forget it at its end."""
        deleted = self._deleted[key]
        deleted[0].end_offset = end_offset
        if end_offset >= deleted[0].next_offset:
            deleted.popleft()
            if not deleted:
                del self._deleted[key]

    def _queue_of(self, draft: Draft, place: Appended) -> ConsumeQueue:
        """Return the queue of a record that was read from the log.

        The record itself says whether it belongs to a batch queue: a slave may get the record
        before it gets the topic.
        """
        queue = self.queues.get((draft.topic, draft.queue_id))
        if queue is not None:
            return queue
        numbered = draft.special and batch_place(draft.properties, -1)[0] == place.queue_offset
        return self.open(
            draft.topic, draft.queue_id, batched=numbered or bool(draft.sys_flag & INNER_BATCH)
        )

    def _apply_any(self, queue: ConsumeQueue, draft: Draft, place: Appended) -> None:
        """Add the entry of any record to any queue."""
        if queue.special:
            self._apply_special(queue, draft, place)
        else:
            self._apply_unusual(queue, draft, place, tags_code(draft.tags))

    def _apply_unusual(self, queue: ConsumeQueue, draft: Draft, place: Appended, code: int) -> None:
        """Add the entries of a record that is not simply the next one of its only queue."""
        if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return
        self._add(queue, place.queue_offset, place, code)
        if draft.special:
            self._dispatch(draft, place, code)

    def _apply_special(self, queue: ConsumeQueue, draft: Draft, place: Appended) -> None:
        """Add the entry of a record of the schedule topic, or of a batch consume queue."""
        if not isinstance(queue, BatchQueue):
            self._apply_unusual(queue, draft, place, self._delivery_time(draft, place))
            return
        if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return
        code = tags_code(draft.tags)
        base, count = batch_place(draft.properties, place.queue_offset)
        if (
            not base
            and _shows_new_queue(queue, place)
            and property_value(draft.properties, BATCH_BASE) is not None
        ):  # Java gives a single message no number
            again = self._begin_again(queue)
            assert isinstance(again, BatchQueue)
            queue = again
        if queue.add_batch(base, count, place.log_offset, place.size, code, place.store_timestamp):
            self._note(queue, code)
        else:
            self._log_skipped(queue, base, place)
        self._dispatch(draft, place, code)

    def _dispatch(self, draft: Draft, place: Appended, code: int) -> None:
        """Add the entries of a record in further queues.

        Source: ConsumeQueue.java#multiDispatchLmqQueue.
        """
        if self.config.multi_dispatch and may_dispatch(draft.topic):
            # A name that is listed twice has the same number twice.
            for name, number in dict.fromkeys(dispatch_places(draft.properties)):
                if (name, 0) in self._deleted:
                    self._pass_record((name, 0), number + 1)
                else:
                    self._add(self.open(name, 0), number, place, code)

    def _add(self, queue: ConsumeQueue, queue_offset: int, place: Appended, code: int) -> None:
        if not queue_offset and _shows_new_queue(queue, place):
            queue = self._begin_again(queue)
        if queue_offset > queue.end_offset and queue.end_offset:
            logger.warning(
                "%s-%s: entries %s to %s are missing in the log; readers skip them",
                queue.topic,
                queue.queue_id,
                queue.end_offset,
                queue_offset - 1,
            )
        if queue.add(queue_offset, place.log_offset, place.size, code):
            self._note(queue, code)
        else:
            self._log_skipped(queue, queue_offset, place)

    def _log_skipped(self, queue: ConsumeQueue, queue_offset: int, place: Appended) -> None:
        """Log that a record got no entry: with a wrong number, no reader of the queue finds it."""
        if place.log_offset >= queue.log_end:
            self._limit.warning(
                logger,
                "%s-%s: the message at log offset %s has the number %s, but the queue goes on at"
                " %s: it is in no queue (mqadmin message show finds it)",
                queue.topic,
                queue.queue_id,
                place.log_offset,
                queue_offset,
                queue.end_offset,
            )

    def _begin_again(self, queue: ConsumeQueue) -> ConsumeQueue:
        """Replace a queue that was deleted and created again.

        The log shows it: a record behind the queue's last one has number 0.

        This happens on a slave that was not told of the deletion, and when queues are rebuilt from
        the log, which still has the records of the old queue. (Java keeps the old entries, and no
        reader ever sees the new messages.) It never happens to a queue with numbers that are
        assigned and not indexed yet: this process has assigned them.
        """
        logger.warning(
            "%s-%s was deleted and created again: its entries up to log offset %s are dropped",
            queue.topic,
            queue.queue_id,
            queue.log_end,
        )
        self.delete((queue.topic, queue.queue_id))
        return self.open(queue.topic, queue.queue_id, batched=queue.batched)

    def _note(self, queue: ConsumeQueue, code: int) -> None:
        self.dirty[queue] = None
        if not queue.arrived:
            self._arrived.append(queue)
        queue.arrived[code] = queue.end_offset

    def _delivery_time(self, draft: Draft, place: Appended) -> int:
        """Return the tags code of a record of the schedule topic: the time of its delivery in ms.

        Source: store/…/CommitLog.java#checkMessageAndReturnSize.
        """
        level = decode_properties(draft.properties).get(DELAY, "")
        number = int(level) if level.isascii() and level.isdigit() else 0
        if number == 0:
            return tags_code(draft.tags)
        levels = self.config.delay_levels_ms
        return place.store_timestamp + (levels[min(number, len(levels)) - 1] if levels else 1_000)

    def take_arrivals(self) -> list[Arrival]:
        """Return what ``apply`` has added since the last call."""
        arrivals = [
            (queue.topic, queue.queue_id, end, code)
            for queue in self._arrived
            for code, end in queue.arrived.items()
        ]
        for queue in self._arrived:
            queue.arrived.clear()
        self._arrived.clear()
        return arrivals

    @property
    def log_end(self) -> int:
        """The end of the last record that any queue has; -1 if there is none."""
        return max((queue.log_end for queue in self.queues.values()), default=-1)

    def truncate(
        self, log_offset: int, *, clean: bool = False, is_record: IsRecord | None = None
    ) -> None:
        """Drop the entries of records at or after ``log_offset``; see ``ConsumeQueue.truncate``."""
        for queue in self.queues.values():
            queue.truncate(log_offset, clean=clean, is_record=is_record)
            queue.next_offset = queue.end_offset
            if queue.unsynced or not queue.names_durable:
                # Dropped entries must not come back after the checkpoint has moved on.
                self._unsynced.add(queue)

    def number_on(self) -> None:
        """Give the next message of each queue the number behind its last entry.

        Entries of copied records leave the numbers alone. Checkpoint: never.
        """
        for queue in self.queues.values():
            queue.next_offset = max(queue.next_offset, queue.end_offset)

    def write_out(self, least_bytes: int = 0) -> Iterator[ConsumeQueue]:
        """Write the entries in memory to their files, one queue per step.

        The caller can let other tasks run between two steps.

        Queues that become dirty meanwhile are left out. Queues with fewer than ``least_bytes`` in
        memory keep them: a write of one entry costs as much as a write of hundreds.
        """
        for queue in [queue for queue in self.dirty if queue.unwritten_bytes >= least_bytes]:
            if queue in self.dirty:  # not deleted meanwhile
                queue.write_out()
                del self.dirty[queue]
                self._unsynced.add(queue)
                yield queue

    def take_unsynced(self) -> tuple[list[Path], list[Path]]:
        """Return (files, directories) changed since the last call. Force out the files first."""
        files: list[Path] = []
        directories: dict[Path, None] = {}
        for queue in self._unsynced:
            files += [queue.path(base) for base in queue.unsynced]
            queue.unsynced.clear()
            if not queue.names_durable:
                queue.names_durable = True
                directories.update(
                    dict.fromkeys((queue.directory, *list(queue.directory.parents)[:3]))
                )
        self._unsynced.clear()
        return files, list(directories)

    # Loading and deleting

    def load(self) -> None:
        """Find the queues on the disk. Recovery finds the end of each queue later.

        Raises: StoreDamaged, OSError.
        """
        self.disk.make_directory(self.directory)
        self.remover.load()
        for root in (self.directory, self.batch_directory):
            for topic in _directories(root) if root.is_dir() else ():
                for name in _directories(root / topic):
                    if name.isdecimal() and name == str(int(name)):  # as in Java
                        queue = self.open(topic, int(name), batched=root == self.batch_directory)
                        # A former topic of this name may have had queues of the other kind.
                        if queue.batched == (root == self.batch_directory):
                            queue.load()

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues, and have their files removed. A new topic starts at 0.

        Checkpoint: never.
        """
        found = [self._forget(key) for key in list(self.queues) if key[0] == topic]
        for directory in {queue.directory.parent: None for queue in found}:
            self.remover.take(directory)

    def expired(self, log_min: int, keep: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Return the keys of queues that end below ``log_min``, except of topics to ``keep``.

        Source: ConsumeQueueStore.java#cleanExpired.
        """
        return [
            key
            for key, queue in self.queues.items()
            if self.is_expired(queue, log_min) and not keep(key[0])
        ]

    def is_expired(self, queue: ConsumeQueue, log_min: int) -> bool:
        return 0 <= queue.log_end <= log_min and queue.next_offset == queue.end_offset

    def delete(self, key: tuple[str, int]) -> None:
        """Forget a queue with its numbers, and have its files removed. Checkpoint: never."""
        queue = self._forget(key)
        self.remover.take(queue.directory)

    def forget_empty_topics(self, topics: Iterable[str]) -> None:
        """Remove the directories of those of the topics that have no queue any more.

        Checkpoint: never.
        """
        kept = {topic for topic, _ in self.queues}
        for topic in topics:
            if topic not in kept:
                for root in (self.directory, self.batch_directory):
                    self.remover.take(root / topic)

    def delete_all(self) -> None:
        """Remove every queue, because there is no log."""
        for topic in {topic for topic, _ in self.queues}:
            self.delete_topic(topic)

    def _forget(self, key: tuple[str, int]) -> ConsumeQueue:
        queue = self.queues.pop(key)
        if queue.next_offset > queue.end_offset:
            self._deleted.setdefault(key, deque()).append(queue)
        self.dirty.pop(queue, None)
        self._unsynced.discard(queue)
        queue.forget()
        for forget in self.on_forget:
            forget(*key)
        self.light_count -= queue.topic.startswith(LMQ_PREFIX)
        return queue

    def close(self) -> None:
        self._files.open_files.close()
