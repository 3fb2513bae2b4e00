"""All consume queues of the store, as one index: ``apply`` gives every record its entry.

Queues exist in memory from their first append on and on disk from the first ``write_out``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs
import trio

from triomq.broker.store.config import StoreConfig
from triomq.broker.store.consume_queue import ENTRY, ConsumeQueue, IsRecord, QueueFiles
from triomq.broker.store.disk import Disk
from triomq.broker.store.draft import UNQUEUED, Appended, Batch, Draft
from triomq.broker.store.open_files import OpenFiles
from triomq.broker.store.remover import FOLDER, Remover
from triomq.remoting.protocol.message import DELAY, TRANSACTION_MASK, decode_properties, tags_code

logger = logging.getLogger(__name__)

pack_entry = ENTRY.pack

Arrival = tuple[str, int, int, int]
"""(topic, queue id, new end offset, tags code)"""


@attrs.define(eq=False)
class QueueTable:
    """(topic, queue id) -> ConsumeQueue."""

    config: StoreConfig
    disk: Disk
    queues: dict[tuple[str, int], ConsumeQueue] = attrs.field(factory=dict, init=False)
    dirty: dict[ConsumeQueue, None] = attrs.field(factory=dict, init=False)
    """Queues with entries in memory only, in the order in which they became so."""
    remover: Remover = attrs.field(init=False)
    _files: QueueFiles = attrs.field(init=False)
    _unsynced: set[ConsumeQueue] = attrs.field(factory=set, init=False)
    _arrived: list[ConsumeQueue] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.remover = Remover(self.disk, self.config.root / FOLDER, trio.CapacityLimiter(1))
        self._files = QueueFiles(self.disk, OpenFiles(self.disk, self.config.open_files_max), self.config.queue_file_size_bytes)

    @property
    def open_files(self) -> OpenFiles:
        return self._files.open_files

    @property
    def directory(self) -> Path:
        return self.config.root / "consumequeue"

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if it does not exist."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(topic, queue_id, self.directory / topic / str(queue_id), self._files)
            self.queues[topic, queue_id] = queue
        return queue

    # As an index

    def apply(self, batch: Batch) -> None:
        """Add the entries of a batch; what is there already is skipped. Atomic: no checkpoint, and it cannot fail halfway: nothing is written to files."""
        queues = batch.queues or [self.open(draft.topic, draft.queue_id) for draft in batch.drafts]
        for draft, place, queue in zip(batch.drafts, batch.places, queues):
            queue_offset = place.queue_offset
            code = tags_code(draft.tags) if not queue.delayed else self._delivery_time(draft, place)
            if queue_offset == queue.end_offset and not draft.sys_flag & TRANSACTION_MASK:
                if not queue.tail:
                    self.dirty[queue] = None
                queue.tail += pack_entry(place.log_offset, place.size, code)
                queue.end_offset = queue_offset + 1
                queue.log_end = place.log_offset + place.size
            elif not self._add(queue, draft, place, code):
                continue
            if not queue.arrived:
                self._arrived.append(queue)
            queue.arrived[code] = queue_offset + 1

    def _add(self, queue: ConsumeQueue, draft: Draft, place: Appended, code: int) -> bool:
        if draft.sys_flag & TRANSACTION_MASK in UNQUEUED:
            return False
        if place.queue_offset > queue.end_offset and queue.end_offset:
            logger.warning(
                "%s-%s: entries %s to %s are missing in the log; readers skip them", queue.topic, queue.queue_id, queue.end_offset, place.queue_offset - 1
            )
        if not queue.add(place.queue_offset, place.log_offset, place.size, code):
            return False
        self.dirty[queue] = None
        return True

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

    def write_out(self) -> Iterator[ConsumeQueue]:
        """Write the entries that lie in memory to their files, one queue a step, so that the caller may let others run in between."""
        while self.dirty:
            queue = next(iter(self.dirty))
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
                directories.update(dict.fromkeys((queue.directory, queue.directory.parent, self.directory, self.directory.parent)))
        self._unsynced.clear()
        return files, list(directories)

    # Loading and deleting

    def load(self) -> None:
        """Find the queues on disk; where each ends is for recovery to say. Raises StoreDamaged, OSError."""
        self.disk.make_directory(self.directory)
        self.remover.load()
        for topic in self.directory.iterdir():
            if not topic.is_dir():
                continue
            for directory in topic.iterdir():
                if directory.is_dir() and directory.name.isdecimal():  # others are ignored, as in Java
                    self.open(topic.name, int(directory.name)).load()

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and have their files removed. A topic of the same name starts at 0 again. No checkpoint."""
        found = [key for key in self.queues if key[0] == topic]
        for key in found:
            self._forget(key)
        if found:
            self.remover.take(self.directory / topic)

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
                self.remover.take(self.directory / topic)

    def delete_all(self) -> None:
        """Remove every queue: there is no log."""
        for topic in {topic for topic, _ in self.queues}:
            self.delete_topic(topic)

    def _forget(self, key: tuple[str, int]) -> ConsumeQueue:
        queue = self.queues.pop(key)
        self.dirty.pop(queue, None)
        self._unsynced.discard(queue)
        queue.forget()
        return queue

    def close(self) -> None:
        self._files.open_files.close()
