"""The file ``epochFileCheckpoint`` of a broker in controller mode.

It is on the disk before the first byte of a new epoch is appended, and it is cut after the log. So
a crash between the two leaves an epoch without bytes at most, which the next start drops.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.store.core.errors import StoreDamaged
from triomq.remoting.core.atomic_file import SystemFiles, replace_file


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
        backup = self.path.with_name(self.path.name + ".bak")
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
