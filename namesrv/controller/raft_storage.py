"""The disk of a Raft node: one file, which is appended to, and replaced at each snapshot.

Vote, term and entries of one step are one write and one fsync. Calls block: run them in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

from triomq.namesrv.controller.raft.events import Persist
from triomq.namesrv.controller.raft.messages import RaftSnapshot
from triomq.namesrv.controller.raft.state import StoredState
from triomq.namesrv.controller.raft_records import (
    DamagedRaftFile,
    RaftFileImage,
    payloads,
    read_raft_file,
    record,
)
from triomq.remoting.core.atomic_file import SystemFiles

FILE_NAME = "raft.log"


class RaftFiles(Protocol):
    """The operations of a storage on files; each blocks and raises OSError."""

    def make_durable_directory(self, path: Path) -> None: ...
    def write_file(self, path: Path, data: bytes) -> None: ...
    def sync_path(self, path: Path) -> None: ...
    def rename(self, path: Path, target: Path) -> None: ...
    def sync_directory(self, path: Path) -> None: ...
    def open(self, path: Path) -> int: ...
    def write_at(self, fd: int, data: bytes, offset: int, path: Path) -> None: ...
    def sync(self, fd: int) -> None: ...
    def close(self, fd: int) -> None: ...


class SystemRaftFiles(SystemFiles):
    """The files of the system, with the operations of one that grows."""

    __slots__ = ()

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))

    def write_at(self, fd: int, data: bytes, offset: int, path: Path) -> None:
        os.lseek(fd, offset, os.SEEK_SET)
        written = 0
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:])

    def close(self, fd: int) -> None:
        os.close(fd)


@attrs.define(eq=False)
class RaftStorage:
    """After any error of the disk this object must not be used: what the file has is not known."""

    path: Path
    image: RaftFileImage
    files: RaftFiles
    durable_bytes: int = 0
    """Length of the file."""
    _fd: int = -1
    _failed: bool = False

    @classmethod
    def open(cls, folder: Path, first: RaftSnapshot, files: RaftFiles | None = None) -> RaftStorage:
        """Open or make the file of a node.

        The file is written anew: a process that was killed may have left what no fsync has reached,
        and the node takes all that it reads for durable.

        ``first``: the snapshot of a node that starts for the first time.

        Raises: DamagedRaftFile, OSError.
        """
        files = SystemRaftFiles() if files is None else files
        path = folder / FILE_NAME
        files.make_durable_directory(folder)
        try:
            image = read_raft_file(path.read_bytes())
        except FileNotFoundError:
            image = RaftFileImage(first)
        except DamagedRaftFile as error:
            raise DamagedRaftFile(
                f"{path}: {error}. It may have forgotten votes and commands: delete the folder only"
                " while all other controllers run and one of them leads, and start this one then"
            ) from error
        storage = cls(path, image, files)
        storage._replace()
        return storage

    def stored(self) -> StoredState:
        """Return what a node starts with."""
        return self.image.stored()

    def persist(self, writes: Sequence[Persist]) -> int:
        """Make writes durable; return the sequence number of the last. Raises: OSError."""
        if self._failed:
            raise OSError(f"{self.path}: an earlier write failed; restart the process")
        self._failed = True
        for write in writes:
            self.image.persist(write)
        if any(write.snapshot is not None for write in writes):
            self._replace()
        else:
            self._append([payload for write in writes for payload in payloads(write)])
        self._failed = False
        return writes[-1].sequence

    def _append(self, contents: Sequence[bytes]) -> None:
        data = b"".join(record(payload, self.durable_bytes) for payload in contents)
        self.files.write_at(self._fd, data, self.durable_bytes, self.path)
        self.files.sync(self._fd)
        self.durable_bytes += len(data)

    def _replace(self) -> None:
        """Write the whole image to a new file, and put it in place of the old one."""
        self.close()
        data = self.image.encode()
        fresh = self.path.with_suffix(".tmp")
        self.files.write_file(fresh, data)
        self.files.sync_path(fresh)
        self.files.rename(fresh, self.path)
        self.files.sync_directory(self.path.parent)
        self._fd = self.files.open(self.path)
        self.durable_bytes = len(data)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._fd >= 0:
            self.files.close(self._fd)
            self._fd = -1
