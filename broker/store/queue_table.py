"""All consume queues of the store, as one index: ``apply`` gives every record its entry.

Queues exist in memory from their first append on and on disk from the first ``write_out``.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import trio

from triomq.broker.store.batch_queue import BatchQueue
from triomq.broker.store.config import StoreConfig
from triomq.broker.store.consume_queue import ENTRY, ConsumeQueue, IsRecord, QueueFiles
from triomq.broker.store.disk import Disk
from triomq.broker.store.draft import UNQUEUED, Appended, Batch, Draft
from triomq.broker.store.numbering import (
    BATCH_BASE,
    SPECIAL,
    UNUSUAL,
    batch_place,
    dispatch_places,
    may_dispatch,
)
from triomq.broker.store.open_files import OpenFiles
from triomq.broker.store.remover import FOLDER, Remover
from triomq.remoting.log_limit import LogLimit
from triomq.remoting.protocol.message import (
    DELAY,
    INNER_BATCH,
    TRANSACTION_MASK,
    decode_properties,
    property_value,
    tags_code,
)
from triomq.remoting.protocol.names import LMQ_PREFIX

logger = logging.getLogger(__name__)

pack_entry = ENTRY.pack

Arrival = tuple[str, int, int, int]
"""(topic, queue id, new end offset, tags code)"""


def _directories(path: Path) -> list[str]:
    """Names of the directories in one; ``Path.iterdir`` and ``is_dir`` take four times as long, and there may be 50,000."""
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir()]


def _shows_new_queue(queue: ConsumeQueue, place: Appended) -> bool:
    """Whether a record with number 0 begins another queue of that name; see ``_begin_again``."""
    return 0 <= queue.log_end <= place.log_offset and queue.next_offset <= queue.end_offset


def _part(batch: Batch, numbers: list[int]) -> Batch:
    """Some records of a batch, in its order."""
    if len(numbers) == len(batch.places):
        return batch
    drafts, places = [batch.drafts[number] for number in numbers], [batch.places[number] for number in numbers]
    return Batch(drafts, places, batch.start, batch.end, [batch.queues[number] for number in numbers] if batch.queues else None)


@attrs.define(eq=False)
class QueueTable:
    """(topic, queue id) -> ConsumeQueue."""

    config: StoreConfig
    disk: Disk
    queues: dict[tuple[str, int], ConsumeQueue] = attrs.field(factory=dict, init=False)
    dirty: dict[ConsumeQueue, None] = attrs.field(factory=dict, init=False)
    """Queues with entries in memory only, in the order in which they became so."""
    has_batch_queues: Callable[[str], bool] = lambda topic: False
    """Whether a topic's attribute queue.type is BatchCQ; asked when a queue is made."""
    light_count: int = attrs.field(default=0, init=False)
    """Queues whose names begin with %LMQ%."""
    remover: Remover = attrs.field(init=False)
    _files: QueueFiles = attrs.field(init=False)
    _batch_files: QueueFiles = attrs.field(init=False)
    _unsynced: set[ConsumeQueue] = attrs.field(factory=set, init=False)
    _arrived: list[ConsumeQueue] = attrs.field(factory=list, init=False)
    _leaving: dict[tuple[str, int], deque[ConsumeQueue]] = attrs.field(factory=dict, init=False)
    """Deleted queues of which the log has records that are not indexed yet: they must not get into the next queue of that name."""
    _limit: LogLimit = attrs.field(factory=LogLimit, init=False)

    def __attrs_post_init__(self) -> None:
        self.remover = Remover(self.disk, self.config.root / FOLDER, trio.CapacityLimiter(1))
        open_files = OpenFiles(self.disk, self.config.open_files_max)
        self._files = QueueFiles(self.disk, open_files, self.config.queue_file_size_bytes)
        self._batch_files = QueueFiles(self.disk, open_files, self.config.batch_queue_file_size_bytes)

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
        """The queue, made if it does not exist: a batch queue if the topic has such, or if ``batched`` says so."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            if batched or self.has_batch_queues(topic):
                queue = BatchQueue(topic, queue_id, self.batch_directory / topic / str(queue_id), self._batch_files)
            else:
                queue = ConsumeQueue(topic, queue_id, self.directory / topic / str(queue_id), self._files)
            self.queues[topic, queue_id] = queue
            if topic.startswith(LMQ_PREFIX):
                self.light_count += 1
        return queue

    # As an index

    def apply(self, batch: Batch) -> None:
        """Add the entries of a batch; what is there already is skipped. Atomic: no checkpoint, and it cannot fail halfway: nothing is written to files."""
        if self._leaving:
            for piece in self._without_leaving(batch):
                self._apply(piece)
        else:
            self._apply(batch)

    def _apply(self, batch: Batch) -> None:
        table = self.queues
        queues = batch.queues or [
            table.get((draft.topic, draft.queue_id)) or self._queue_of(draft, place) for draft, place in zip(batch.drafts, batch.places)
        ]
        for draft, place, queue in zip(batch.drafts, batch.places, queues):
            if queue.special:
                if not queue.deleted:
                    self._apply_special(queue, draft, place)
                elif not batch.queues:  # it has begun again within this batch
                    self._apply_closely(self._queue_of(draft, place), draft, place)
                # Else it was deleted after the append: its files would lie where a new queue of the same name has its own.
                continue
            queue_offset = place.queue_offset
            code = tags_code(draft.tags)
            if queue_offset == queue.end_offset and not draft.sys_flag & UNUSUAL:
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

    def _without_leaving(self, batch: Batch) -> Iterator[Batch]:
        """Leave out the records of queues that were deleted after their append. Read from the log, they come before all of the next queue's.

        The rest comes in pieces: entries that a record left out has in further queues are made when those of all records before it have been.
        """
        kept: list[int] = []
        for number, (draft, place) in enumerate(zip(batch.drafts, batch.places)):
            key = draft.topic, draft.queue_id
            leaving = self._leaving.get(key)
            unqueued = draft.sys_flag & TRANSACTION_MASK in UNQUEUED
            if leaving is None or unqueued or (batch.queues and batch.queues[number] is not leaving[0]):
                kept.append(number)
                continue
            base, count = batch_place(draft.properties, place.queue_offset) if leaving[0].batched else (place.queue_offset, 1)
            self._pass_by(key, base + count)
            if draft.sys_flag & SPECIAL:
                if kept:
                    yield _part(batch, kept)
                    kept = []
                self._dispatch(draft, place, tags_code(draft.tags))
        if kept:
            yield _part(batch, kept)

    def _pass_by(self, key: tuple[str, int], end_offset: int) -> None:
        """The log is indexed up to here in the oldest deleted queue of that name; after the last of its records it is forgotten."""
        leaving = self._leaving[key]
        leaving[0].end_offset = end_offset
        if end_offset >= leaving[0].next_offset:
            leaving.popleft()
            if not leaving:
                del self._leaving[key]

    def _queue_of(self, draft: Draft, place: Appended) -> ConsumeQueue:
        """The queue of a record that was read from the log.

        A record of a batch queue tells that itself: a slave may get it before it hears of the topic.
        """
        queue = self.queues.get((draft.topic, draft.queue_id))
        if queue is not None:
            return queue
        numbered = bool(draft.sys_flag & SPECIAL) and batch_place(draft.properties, -1)[0] == place.queue_offset
        return self.open(draft.topic, draft.queue_id, batched=numbered or bool(draft.sys_flag & INNER_BATCH))

    def _apply_closely(self, queue: ConsumeQueue, draft: Draft, place: Appended) -> None:
        """Any record, whatever its queue."""
        if queue.special:
            self._apply_special(queue, draft, place)
        else:
            self._apply_unusual(queue, draft, place, tags_code(draft.tags))

    def _apply_unusual(self, queue: ConsumeQueue, draft: Draft, place: Appended, code: int) -> None:
        """A record that is not simply the next one of its queue, or has entries in further queues as well."""
        if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return
        self._add(queue, place.queue_offset, place, code)
        if draft.sys_flag & SPECIAL:
            self._dispatch(draft, place, code)

    def _apply_special(self, queue: ConsumeQueue, draft: Draft, place: Appended) -> None:
        """A record of the schedule topic or of a topic with batch consume queues."""
        if not isinstance(queue, BatchQueue):
            self._apply_unusual(queue, draft, place, self._delivery_time(draft, place))
            return
        if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return
        code = tags_code(draft.tags)
        base, count = batch_place(draft.properties, place.queue_offset)
        if not base and _shows_new_queue(queue, place) and property_value(draft.properties, BATCH_BASE) is not None:  # Java's single messages have no number at all
            again = self._begin_again(queue)
            assert isinstance(again, BatchQueue)
            queue = again
        if queue.add_batch(base, count, place.log_offset, place.size, code, place.store_timestamp):
            self._note(queue, code)
        else:
            self._tell_skipped(queue, base, place)
        self._dispatch(draft, place, code)

    def _dispatch(self, draft: Draft, place: Appended, code: int) -> None:
        """The entries in further queues. Source: ConsumeQueue.java#multiDispatchLmqQueue."""
        if self.config.multi_dispatch and may_dispatch(draft.topic):
            for name, number in dict.fromkeys(dispatch_places(draft.properties)):  # a name twice has the same number twice
                if (name, 0) in self._leaving:
                    self._pass_by((name, 0), number + 1)
                else:
                    self._add(self.open(name, 0), number, place, code)

    def _add(self, queue: ConsumeQueue, queue_offset: int, place: Appended, code: int) -> None:
        if not queue_offset and _shows_new_queue(queue, place):
            queue = self._begin_again(queue)
        if queue_offset > queue.end_offset and queue.end_offset:
            logger.warning("%s-%s: entries %s to %s are missing in the log; readers skip them", queue.topic, queue.queue_id, queue.end_offset, queue_offset - 1)
        if queue.add(queue_offset, place.log_offset, place.size, code):
            self._note(queue, code)
        else:
            self._tell_skipped(queue, queue_offset, place)

    def _tell_skipped(self, queue: ConsumeQueue, queue_offset: int, place: Appended) -> None:
        """A record got no entry: it has one already, or its number cannot be right and its message is found by nobody who reads the queue."""
        if place.log_offset >= queue.log_end:
            self._limit.log(
                logger,
                logging.WARNING,
                "%s-%s: the message at log offset %s has the number %s, but the queue goes on at %s: it is in no queue (mqadmin queryMsgById finds it)",
                queue.topic,
                queue.queue_id,
                place.log_offset,
                queue_offset,
                queue.end_offset,
            )

    def _begin_again(self, queue: ConsumeQueue) -> ConsumeQueue:
        """A queue in place of one that the log shows to have been deleted and made again: a record after its last one has number 0.

        So it is for a slave that did not hear of it, and when queues are made from the log, which still has the records of the old one. (Java keeps the old
        entries, and no reader ever sees the new messages.) Never for a queue with numbers that are given and not indexed yet: those are of this process.
        """
        logger.warning("%s-%s was deleted and made again: its entries up to log offset %s are dropped", queue.topic, queue.queue_id, queue.log_end)
        self.delete((queue.topic, queue.queue_id))
        return self.open(queue.topic, queue.queue_id, batched=queue.batched)

    def _note(self, queue: ConsumeQueue, code: int) -> None:
        self.dirty[queue] = None
        if not queue.arrived:
            self._arrived.append(queue)
        queue.arrived[code] = queue.end_offset

    def _delivery_time(self, draft: Draft, place: Appended) -> int:
        """The tags code of a delayed message is the time of its delivery. Source: store/…/CommitLog.java#checkMessageAndReturnSize."""
        level = decode_properties(draft.properties).get(DELAY, "")
        number = int(level) if level.isascii() and level.isdigit() else 0
        if number == 0:
            return tags_code(draft.tags)
        levels = self.config.delay_levels_ms
        return place.store_timestamp + (levels[min(number, len(levels)) - 1] if levels else 1_000)

    def take_arrivals(self) -> list[Arrival]:
        """What ``apply`` has added since the last call."""
        arrivals = [(queue.topic, queue.queue_id, end, code) for queue in self._arrived for code, end in queue.arrived.items()]
        for queue in self._arrived:
            queue.arrived.clear()
        self._arrived.clear()
        return arrivals

    @property
    def log_end(self) -> int:
        """End of the last record that any queue has; -1 if there is none."""
        return max((queue.log_end for queue in self.queues.values()), default=-1)

    def truncate(self, log_offset: int, *, clean: bool = False, is_record: IsRecord | None = None) -> None:
        """Drop the entries of all records that start at or after ``log_offset``; ``is_record`` as ``ConsumeQueue.truncate`` has it."""
        for queue in self.queues.values():
            queue.truncate(log_offset, clean=clean, is_record=is_record)
            queue.next_offset = queue.end_offset
            if queue.unsynced or not queue.names_durable:
                self._unsynced.add(queue)  # what was cut off must not come back after the checkpoint has moved on

    def write_out(self, least_bytes: int = 0) -> Iterator[ConsumeQueue]:
        """Write the entries that lie in memory to their files, one queue a step, so that the caller may let others run in between.

        One that becomes dirty meanwhile is left. Queues with fewer bytes than ``least_bytes`` keep them: a write costs as much for one entry as for hundreds.
        """
        for queue in [queue for queue in self.dirty if queue.unwritten_bytes >= least_bytes]:
            if queue in self.dirty:  # else it was deleted meanwhile
                queue.write_out()
                del self.dirty[queue]
                self._unsynced.add(queue)
                yield queue

    def take_unsynced(self) -> tuple[list[Path], list[Path]]:
        """(files, directories) that ``write_out`` has touched since the last call: what must be forced to the disk, files first."""
        files: list[Path] = []
        directories: dict[Path, None] = {}
        for queue in self._unsynced:
            files += [queue.path(base) for base in queue.unsynced]
            queue.unsynced.clear()
            if not queue.names_durable:
                queue.names_durable = True
                directories.update(dict.fromkeys((queue.directory, *list(queue.directory.parents)[:3])))
        self._unsynced.clear()
        return files, list(directories)

    # Loading and deleting

    def load(self) -> None:
        """Find the queues on disk; where each ends is for recovery to say. Raises StoreDamaged, OSError."""
        self.disk.make_directory(self.directory)
        self.remover.load()
        for root in (self.directory, self.batch_directory):
            for topic in _directories(root) if root.is_dir() else ():
                for name in _directories(root / topic):
                    if name.isdecimal() and name == str(int(name)):  # others are ignored, as in Java
                        queue = self.open(topic, int(name), batched=root == self.batch_directory)
                        if queue.batched == (root == self.batch_directory):  # else a topic of this name had queues of the other kind before
                            queue.load()

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and have their files removed. A topic of the same name starts at 0 again. No checkpoint."""
        found = [self._forget(key) for key in list(self.queues) if key[0] == topic]
        for directory in {queue.directory.parent: None for queue in found}:
            self.remover.take(directory)

    def expired(self, log_min: int, keep: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Keys of the queues whose last record is below ``log_min``. Source: ConsumeQueueStore.java#cleanExpired."""
        return [key for key, queue in self.queues.items() if self.is_expired(queue, log_min) and not keep(key[0])]

    def is_expired(self, queue: ConsumeQueue, log_min: int) -> bool:
        return 0 <= queue.log_end <= log_min and queue.next_offset == queue.end_offset

    def delete(self, key: tuple[str, int]) -> None:
        """Forget a queue with its numbers, and have its files removed. No checkpoint."""
        queue = self._forget(key)
        self.remover.take(queue.directory)

    def forget_empty_topics(self, topics: Iterable[str]) -> None:
        """Remove the directories of those topics that have no queue any more. No checkpoint."""
        kept = {topic for topic, _ in self.queues}
        for topic in topics:
            if topic not in kept:
                for root in (self.directory, self.batch_directory):
                    self.remover.take(root / topic)

    def delete_all(self) -> None:
        """Remove every queue: there is no log."""
        for topic in {topic for topic, _ in self.queues}:
            self.delete_topic(topic)

    def _forget(self, key: tuple[str, int]) -> ConsumeQueue:
        queue = self.queues.pop(key)
        if queue.next_offset > queue.end_offset:
            self._leaving.setdefault(key, deque()).append(queue)
        self.dirty.pop(queue, None)
        self._unsynced.discard(queue)
        queue.forget()
        self.light_count -= queue.topic.startswith(LMQ_PREFIX)
        return queue

    def close(self) -> None:
        self._files.open_files.close()
