"""Whether this slave's log is known to have parted from its master's: a file says so, since the
master that showed it may be down when the slave starts again.
"""

from __future__ import annotations

import logging
from pathlib import Path

import attrs

from triomq.remoting.core.atomic_file import DamagedFile, SystemFiles, read_file, replace_file

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class PartedLogs:
    """While ``reason`` has a text, the slave serves no pulls, takes no commits and acts for nobody:
    its offsets are those of other messages.
    """

    path: Path
    files: SystemFiles
    reason: str = attrs.field(init=False)

    @reason.default
    def _read(self) -> str:
        try:
            return read_file(self.path, bytes.decode) or ""
        except DamagedFile as error:
            return f"{error}"

    def known(self) -> bool:
        """Return whether the logs have parted. Checkpoint: never."""
        return bool(self.reason)

    def note(self, reason: str) -> None:
        """Remember that they have, or, with an empty text, that they are the same again.

        Checkpoint: never.
        """
        if reason == self.reason:
            return
        self.reason = reason
        try:
            replace_file(self.path, reason.encode(), self.files)
        except OSError as error:
            logger.error("%s cannot be written, so a restart forgets it: %s", self.path, error)
