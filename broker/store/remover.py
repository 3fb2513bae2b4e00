"""The remover: deletes directories in a thread, file by file, after they have been moved out of the way.

Law: moving is one call and takes effect at once, so a queue of the same name can begin anew right away, in a directory of its own. What has been moved is nobody's
any more: deleting it may take its time, and what is left when the store closes, or dies, is deleted after the next start. Java ignores the folder.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from pathlib import Path

import attrs
import trio

from triomq.broker.store.disk import Disk
from triomq.broker.store.segment import NAME_DIGITS

logger = logging.getLogger(__name__)

FOLDER = "deleted"
FILES_A_STEP = 64


@attrs.define(eq=False)
class Remover:
    """``folder`` lies in the store's root, so that a move never crosses file systems."""

    disk: Disk
    folder: Path
    limiter: trio.CapacityLimiter
    files_deleted: int = attrs.field(default=0, init=False)
    _waiting: deque[Path] = attrs.field(factory=deque, init=False)
    _number: int = attrs.field(default=0, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def load(self) -> None:
        """Take up what an earlier life has left. Raises OSError."""
        if self.folder.is_dir():
            self._waiting.extend(sorted(self.folder.iterdir()))
            self._number = max((int(path.name) for path in self._waiting if path.name.isdecimal()), default=0)

    def take(self, directory: Path) -> None:
        """Move a directory out of the way and delete it later. What cannot be moved is deleted here and now; what stays even then is said. No checkpoint."""
        self._number += 1
        target = self.folder / str(self._number)
        try:
            self.disk.make_directory(self.folder)
            self.disk.rename(directory, target)
        except FileNotFoundError:
            return  # it has never been written
        except OSError as error:
            logger.warning("%s cannot be moved to %s: %s; its files are deleted where they are", directory, self.folder, error)
            try:
                while self._remove_some(directory):
                    pass
            except OSError as left:
                logger.error("%s cannot be deleted: %s; its messages come back with the next start, unless a queue of the same name is written before", directory, left)
            return
        self._waiting.append(target)
        self._wake.set()

    @property
    def waiting(self) -> int:
        """How many directories there are still to delete."""
        return len(self._waiting)

    async def run(self) -> None:
        """The task "store-remover"."""
        while True:
            while self._waiting:
                await self._remove(self._waiting[0])
                self._waiting.popleft()
            self._wake = trio.Event()
            await self._wake.wait()

    async def _remove(self, directory: Path) -> None:
        """Delete one directory, some files at a time, so that the thread is soon free again. Checkpoint: always."""
        try:
            while await trio.to_thread.run_sync(self._remove_some, directory, limiter=self.limiter):
                pass
        except OSError as error:
            logger.warning("%s cannot be deleted: %s; it is tried again at the next start", directory, error)

    def _remove_some(self, directory: Path) -> bool:
        """Delete about ``FILES_A_STEP`` files; whether any are left. For a thread. Raises OSError.

        Only queue files go: a foreign one keeps its directory, as somebody may miss it.
        """
        count = 0
        for folder, _, names in os.walk(directory, topdown=False):
            ours = [name for name in names if len(name) == NAME_DIGITS and name.isdecimal()]
            for name in ours:
                self.disk.remove(Path(folder, name))
            count += len(ours)
            self.files_deleted += len(ours)
            self.disk.remove_directory(Path(folder))
            if count >= FILES_A_STEP:
                return directory.exists()
        return False
