"""What a controller finds in its folder when it starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import attrs

from triomq.namesrv.controller.raft.configuration import Configuration
from triomq.namesrv.controller.raft.messages import RaftSnapshot
from triomq.namesrv.controller.raft_records import DamagedRaftFile
from triomq.namesrv.controller.raft_storage import FILE_NAME, RaftFiles, RaftStorage
from triomq.namesrv.controller.state import restore
from triomq.remoting.core.atomic_file import DamagedFile, backup_of, read_file
from triomq.remoting.core.file_lock import try_lock
from triomq.remoting.core.settings import ConfigError

EARLIER_FILE = "controller.json"
"""The state of a controller alone, as versions before the log wrote it"""


@attrs.define(eq=False)
class ControllerFolder:
    """The folder of a controller; while open, of this process.

    ``members``: the ids of the controllers that begin the group, for a folder without a log.
    """

    path: Path
    members: Sequence[str]
    files: RaftFiles | None = None
    _lock: int = attrs.field(default=-1, init=False)

    def open(self) -> RaftStorage:
        """Open the log, or make one; may be called again after an error of the disk.

        Raises: ConfigError. A log that cannot be read may have votes and masters that this
            controller does not know: an empty one in its place could make anybody leader, and
            anybody master.
        """
        was_held = self._lock >= 0
        try:
            self._take_lock()
            return self._open_log(Configuration(tuple(sorted(self.members))))
        except (ConfigError, DamagedFile, DamagedRaftFile, OSError) as error:
            if not was_held:
                self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                str(self.path),
                f"the controller's log cannot be read or written ({error})",
                "make room, restore the file, or give this process the right to write there",
            ) from None

    def _open_log(self, configuration: Configuration) -> RaftStorage:
        """Raises: ConfigError, DamagedFile, DamagedRaftFile, OSError."""
        folder = self.path
        first = RaftSnapshot(0, 0, configuration)
        if not (folder / FILE_NAME).exists():
            first = _earlier_state(folder, first)
        storage = RaftStorage.open(folder, first, self.files)
        _put_earlier_file_away(folder)
        return storage

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take_lock(self) -> None:
        if self._lock >= 0:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(descriptor):
            os.close(descriptor)
            raise ConfigError(
                str(self.path),
                "another process runs with this controllerStorePath",
                "give each controller a folder of its own",
            )
        self._lock = descriptor


def _earlier_state(folder: Path, first: RaftSnapshot) -> RaftSnapshot:
    """Return the first snapshot of a log, which has the state of an earlier version's file.

    Raises: ConfigError, DamagedFile, OSError.
    """
    state = read_file(folder / EARLIER_FILE, restore)
    if state is None:
        return first
    if len(first.configuration.voters) > 1:
        raise ConfigError(
            str(folder / EARLIER_FILE),
            "it is the state of one controller, and controllerDLegerPeers names several: those"
            " without it could outvote this one, and its ids and epochs would be lost",
            "name this controller alone",
        )
    return RaftSnapshot(1, 1, first.configuration, state.snapshot())


def _put_earlier_file_away(folder: Path) -> None:
    """Keep an earlier version's file under another name: the log is what counts now."""
    for path in (folder / EARLIER_FILE, backup_of(folder / EARLIER_FILE)):
        if path.exists():
            path.replace(path.with_name(path.name + ".converted"))
