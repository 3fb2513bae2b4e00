"""The remover: moves directories of deleted queues out of the way and deletes them in a thread.

Law: a move is one call and takes effect at once, so a new queue of the same name can begin at once
in a directory of its own. The files of a moved directory can be deleted later; those left when the
store closes or crashes are deleted after the next start. Java ignores the folder.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from pathlib import Path

import attrs
import trio

from triomq.broker.store.io.disk import Disk
from triomq.broker.store.io.segment import NAME_DIGITS

logger = logging.getLogger(__name__)

FOLDER = "deleted"
FILES_A_STEP = 64


@attrs.define(eq=False)
class Remover:
    """``folder`` lies in the store's root, so that a move never crosses file systems."""

    disk: Disk
    folder: Path
    limiter: trio.CapacityLimiter
    _waiting: deque[Path] = attrs.field(factory=deque, init=False)
    _number: int = attrs.field(default=0, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def load(self) -> None:
        """Find the directories that an earlier run has left. Raises: OSError."""
        if self.folder.is_dir():
            self._waiting.extend(sorted(self.folder.iterdir()))
            self._number = max(
                (int(path.name) for path in self._waiting if path.name.isdecimal()), default=0
            )

    def take(self, directory: Path) -> None:
        """Move a directory out of the way and delete it later.

        A directory that cannot be moved is deleted now; a warning names the files that cannot be
        deleted either.

        Checkpoint: never.
        """
        self._number += 1
        target = self.folder / str(self._number)
        try:
            self.disk.make_directory(self.folder)
            self.disk.rename(directory, target)
        except FileNotFoundError:
            return  # the queue was never written to the disk
        except OSError as error:
            logger.warning(
                "%s cannot be moved to %s: %s; its files are deleted where they are",
                directory,
                self.folder,
                error,
            )
            try:
                while self._remove_some(directory):
                    pass
            except OSError as left:
                logger.error(
                    "%s cannot be deleted: %s; its messages come back with the next start, unless a"
                    " queue of the same name is written before",
                    directory,
                    left,
                )
            return
        self._waiting.append(target)
        self._wake.set()

    @property
    def waiting(self) -> int:
        """The number of directories that are not deleted yet."""
        return len(self._waiting)

    async def remove_folders(self) -> None:
        """Run the task "store-remover"."""
        while True:
            while self._waiting:
                await self._remove(self._waiting[0])
                self._waiting.popleft()
            self._wake = trio.Event()
            await self._wake.wait()

    async def _remove(self, directory: Path) -> None:
        """Delete a directory, some files at a time, so that the thread is soon free again.

        Checkpoint: always.
        """
        try:
            while await trio.to_thread.run_sync(self._remove_some, directory, limiter=self.limiter):
                pass
        except OSError as error:
            logger.warning(
                "%s cannot be deleted: %s; it is tried again at the next start", directory, error
            )

    def _remove_some(self, directory: Path) -> bool:
        """Delete about ``FILES_A_STEP`` files, and return whether any are left. For a thread.

        Only queue files are deleted: a foreign file, which a user may miss, stays with its
        directory.

        Raises: OSError.
        """
        count = 0
        for folder, _, names in os.walk(directory, topdown=False):
            ours = [name for name in names if len(name) == NAME_DIGITS and name.isdecimal()]
            for name in ours:
                self.disk.remove(Path(folder, name))
            count += len(ours)
            self.disk.remove_directory(Path(folder))
            if count >= FILES_A_STEP:
                return directory.exists()
        return False
