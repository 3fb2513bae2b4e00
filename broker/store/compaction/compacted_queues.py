"""CompactedQueues: all queues of compaction topics. Opened by ``load``, forgotten with their queue.

A queue gets its files when its first message is copied, and loses them with the topic.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import msgspec
import trio

from triomq.broker.store.compaction.compacted_queue import CompactedQueue
from triomq.broker.store.compaction.compaction_log import PLACES, open_compaction_log
from triomq.broker.store.compaction.copy_file import CopySizes
from triomq.broker.store.compaction.replacement import PLAN_NAME
from triomq.broker.store.core.config import CompactionRules
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.queues.table import QueueTable
from triomq.remoting.core.atomic_file import DamagedFile, SystemFiles, read_file, replace_file
from triomq.remoting.protocol.record import StoredMessage

logger = logging.getLogger(__name__)


class _Positions(msgspec.Struct):
    queue_offset_map: dict[str, int] = msgspec.field(name="queueOffsetMap", default_factory=dict)


@attrs.define(eq=False)
class PositionCheckpoint:
    """How far passes have covered each queue: loaded once, saved after each pass. Both block.

    The file ``compaction/position-checkpoint`` is JSON: ``{"queueOffsetMap": {"<topic>_<queue id>":
    <queue offset>}}``. Without it passes begin again, and remove the same.

    Source: store/kv/CompactionPositionMgr.java.
    """

    path: Path
    offsets: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)
    """(topic, queue id) -> the last queue offset that passes have covered."""

    def load(self) -> None:
        """Read the file; without a readable one, passes begin again. Raises: OSError."""
        try:
            found = read_file(self.path, _decode)
        except DamagedFile as error:
            logger.warning("%s: compaction covers all messages again", error)
            return
        for name, offset in (found or {}).items():
            topic, _, queue_id = name.rpartition("_")
            if topic and queue_id.isdecimal():
                self.offsets[topic, int(queue_id)] = offset

    def save(self, offsets: Mapping[tuple[str, int], int], files: SystemFiles) -> None:
        """Replace the file. Raises: OSError."""
        table = {f"{topic}_{queue_id}": offset for (topic, queue_id), offset in offsets.items()}
        replace_file(self.path, msgspec.json.encode(_Positions(table)), files)


def _decode(data: bytes) -> dict[str, int]:
    return msgspec.json.decode(data, type=_Positions).queue_offset_map


THREADS_MAX = 4
"""Threads that read and write copies at the same time; a queue has one at most."""


@attrs.define(eq=False)
class CompactedQueues:
    """(topic, queue id) -> CompactedQueue."""

    root: Path
    disk: Disk
    rules: CompactionRules
    table: QueueTable
    topics: Callable[[], Mapping[str, int]] = dict
    """The compaction topics, with the number of their queues."""
    queues: dict[tuple[str, int], CompactedQueue] = attrs.field(factory=dict, init=False)
    positions: PositionCheckpoint = attrs.field(init=False)
    sizes: CopySizes = attrs.field(init=False)
    limiter: trio.CapacityLimiter = attrs.field(init=False)
    _copied_to: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.positions = PositionCheckpoint(self.root / "compaction" / "position-checkpoint")
        self.sizes = CopySizes.of(self.rules.log_file_bytes, self.rules.queue_file_bytes)
        self.limiter = trio.CapacityLimiter(THREADS_MAX)
        self.table.on_forget.append(self.forget)

    @property
    def copied_to(self) -> int:
        """The log offset below which all messages of such topics have copies on the disk.

        The log keeps those from here on, whatever their age.
        """
        return self._copied_to if self.queues or self.present() else sys.maxsize

    @copied_to.setter
    def copied_to(self, log_offset: int) -> None:
        self._copied_to = log_offset

    def present(self) -> Mapping[str, int]:
        """Return the compaction topics, with the number of their queues.

        The numbers of their messages must outlive those messages in the log.
        """
        return self.topics() if self.rules.enabled else {}

    def names(self) -> list[tuple[str, int]]:
        """Return all queues that are copied, or will be."""
        named = [
            (topic, queue_id)
            for topic, count in self.present().items()
            for queue_id in range(count)
        ]
        return list(dict.fromkeys([*self.queues, *named]))

    def with_copy_of(self, topic: str, queue_id: int, offset: int) -> CompactedQueue | None:
        """Return the queue whose copies answer a get at ``offset``; None: the log does."""
        if not self.queues:
            return None
        queue = self.queues.get((topic, queue_id))
        return queue if queue is not None and queue.has_copy_of(offset) else None

    async def message(self, topic: str, position: int, message_id: str) -> StoredMessage | None:
        """Return the copy of a message, by the log offset that its reader got; None: it is gone.

        Raises: StoreIoError. Checkpoint: maybe.
        """
        for key, queue in list(self.queues.items()):
            if key[0] == topic:
                found = await queue.message_at(position)
                if found is not None and found.message_id == message_id:
                    return found
        return None

    def load(self, *, clean: bool) -> None:
        """Open the files of all compaction topics. Blocks: for a thread, before the store serves.

        ``clean``: the store was closed in order.

        Raises: StoreDamaged, StoreIoError, DiskFull, FlushFailed.
        """
        self.positions.load()
        for topic in self.present():
            folder = self.root / "compaction" / PLACES[0] / topic
            if not folder.is_dir():
                continue
            for path in sorted(folder.iterdir()):
                if path.name.isdecimal():
                    self._open((topic, int(path.name)), clean=clean)

    async def open(self, key: tuple[str, int]) -> CompactedQueue:
        """Open the queue of a running store; it begins without copies.

        Raises: StoreDamaged, StoreIoError, DiskFull, FlushFailed. Checkpoint: always.
        """
        self._move_files(key)  # of an earlier topic, which a crash left
        return await trio.to_thread.run_sync(self._open, key, limiter=self.limiter)

    def _open(self, key: tuple[str, int], *, clean: bool = False) -> CompactedQueue:
        """Open or create a queue, and let the numbers of its messages go on after its copies."""
        queue = self.table.queues.get(key)
        log_min: int | None = None
        if not clean:
            # Of a queue without messages in the log no copy can be made again.
            log_min = queue.min_offset if queue is not None and queue.end_offset else sys.maxsize
        log = open_compaction_log(self.disk, self.root, *key, self.sizes, log_min)
        if log.end_offset:
            queue = queue or self.table.open(*key)
            if not queue.end_offset:
                queue.next_offset = max(queue.next_offset, log.end_offset)
            elif log.end_offset > queue.end_offset:
                raise StoreDamaged(
                    log.replacement.log,
                    f"it has copies up to queue offset {log.end_offset - 1}, but the queue ends at"
                    f" {queue.end_offset}",
                    "move the folder compaction away: a slave gets the copies from its master, a"
                    " master makes them of the messages that its log has",
                )
        opened = CompactedQueue(log, self.table, self.limiter, self.positions.offsets.get(key, -1))
        self.queues[key] = opened
        return opened

    def forget(self, topic: str, queue_id: int) -> None:
        """Have the copies of a queue removed, which is deleted. Checkpoint: never."""
        key = topic, queue_id
        queue = self.queues.pop(key, None)
        if queue is not None:
            queue.deleted = True
            self.positions.offsets.pop(key, None)
            self._move_files(key)

    def _move_files(self, key: tuple[str, int]) -> None:
        topic, queue_id = key
        folders = [self.root / "compaction" / place / topic / str(queue_id) for place in PLACES]
        for folder in folders:
            if folder.is_dir():
                (folder / PLAN_NAME).unlink(missing_ok=True)  # the remover leaves foreign files
                self.table.remover.take(folder)

    def sync(self) -> None:
        """Force all copies to the disk, for an orderly stop. Blocks. Raises: FlushFailed."""
        for queue in self.queues.values():
            queue.copies.sync()

    def close(self) -> None:
        for queue in self.queues.values():
            queue.copies.close()
