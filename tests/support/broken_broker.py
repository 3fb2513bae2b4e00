"""``mqbroker`` with one rule broken, to show that the crash loop finds it: ``python
tests/support/broken_broker.py RULE -c broker.conf``.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from triomq.broker import service_set
from triomq.broker.__main__ import main
from triomq.broker.services.pop.pops import Pops
from triomq.broker.store.core.draft import Appended, Draft
from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.queued_sync import QueuedSync
from triomq.broker.store.store import MessageStore

HELD_WRITES = 16

write_at, sync_path, append_unindexed = Disk.write_at, Disk.sync_path, MessageStore.append_unindexed
finished = QueuedSync.finished


class HoldingDisk:
    """Acknowledge before the write: what goes to the log waits in this process for some more writes
    (one alone is often not yet acknowledged at the kill).
    """

    held: ClassVar[deque[tuple[int, bytes, int, Path]]] = deque()

    @classmethod
    def write_at(
        cls, disk: Disk, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        if path.parent.name != "commitlog":
            write_at(disk, fd, data, offset, path)
            return
        cls.held.append((fd, bytes(data), offset, path))
        if len(cls.held) > HELD_WRITES:
            write_at(disk, *cls.held.popleft())


def append_twice(store: MessageStore, drafts: Sequence[Draft]) -> list[Appended]:
    """As a broker would that tries again after a time-out."""
    return append_unindexed(store, [*drafts, *drafts])[: len(drafts)]


async def restore_nothing(pops: Pops) -> int:
    """As a broker would that takes the saved positions for the newest."""
    return 0


flushes = itertools.count(1)


def failing_sync(disk: Disk, path: Path) -> None:
    """Not a broken rule but a broken disk: from the tenth fsync of the log on."""
    if path.parent.name == "commitlog" and next(flushes) >= 10:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    sync_path(disk, path)


async def failing_queue(queue: QueuedSync) -> None:
    """The same where the kernel's queue does it."""
    await finished(queue)
    if next(flushes) >= 10:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def break_rule(name: str) -> None:
    if name == "acknowledge-before-write":
        Disk.write_at = lambda disk, fd, data, offset, path: HoldingDisk.write_at(
            disk, fd, data, offset, path
        )  # type: ignore[method-assign]
    elif name == "store-twice":
        MessageStore.append_unindexed = append_twice  # type: ignore[method-assign]
    elif name == "pop-again":
        service_set.restore_positions = restore_nothing  # type: ignore[attr-defined]
    elif name == "tenth-fsync-fails":
        Disk.sync_path = failing_sync  # type: ignore[method-assign]
        QueuedSync.finished = failing_queue  # type: ignore[method-assign]
    else:
        raise SystemExit(f"no rule {name}")


if __name__ == "__main__":
    break_rule(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
