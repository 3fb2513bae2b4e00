"""The file ``epochFileCheckpoint`` of a broker in controller mode.

It is on the disk before the first byte of a new epoch is appended, and it is cut after the log. So
a crash between the two leaves an epoch without bytes at most, which the next start drops.

A start in classic mode removes it. What is written then has no epoch, and would count as written in
the last one.
"""

from __future__ import annotations

import logging
from pathlib import Path

import attrs

from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.store.core.errors import StoreDamaged
from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.atomic_file import SystemFiles, backup_of, replace_file

logger = logging.getLogger(__name__)

NAME = "epochFileCheckpoint"


@attrs.define(eq=False)
class EpochFile:
    """The history of this broker's log, and its file. Methods block for one fsync."""

    path: Path
    files: SystemFiles
    history: EpochHistory = attrs.field(init=False)

    @history.default
    def _read(self) -> EpochHistory:
        """Read the file, or what it replaced if a crash came between two renames.

        A damaged file ends the start, and the older file does not replace it: its epochs are not
        those of the whole log. Raises: StoreDamaged.
        """
        backup = backup_of(self.path)
        path = self.path if self.path.exists() or not backup.exists() else backup
        try:
            return EpochHistory.decode(path.read_bytes())
        except FileNotFoundError:
            return EpochHistory()
        except ValueError as error:
            raise StoreDamaged(
                path,
                f"it does not tell the epochs of the log: {error}",
                "move the whole store away, and let this broker copy its master again",
            ) from None

    def save(self, history: EpochHistory) -> None:
        """Replace the file, if the history is another one. Raises: OSError. Checkpoint: never."""
        if history == self.history and self.path.exists():
            return
        replace_file(self.path, history.encode(), self.files)
        self.history = history

    def begin(self, number: int, start: int) -> None:
        """Begin an epoch at the end of the log, unless it has begun before.

        Raises: OSError, ValueError. Checkpoint: never.
        """
        if number != self.history.last_number:
            self.save(self.history.begin(number, start))


def forget_epochs(root: Path, disk: Disk) -> None:
    """Remove the file before a store is written in classic mode. Raises: OSError."""
    path = root / NAME
    for left in (backup_of(path), path):
        if left.exists():
            disk.remove(left)
            disk.sync_directory(root)
            logger.info("%s is removed: what classic mode writes has no epoch", left)
