"""What can go wrong in the store; every message names the place, the cause and what to do about it.

::

    StoreError
    ├── StoreUnavailable      no append now; reads go on
    │   ├── DiskFull          the file system has no room; appends work again when it has
    │   │   └── FullAtStart   the same, only from open_store: there is no store then
    │   └── DiskReserve       the file system is fuller than the settings allow; appends work again when it has room
    ├── IllegalMessage        a message that cannot be stored, whatever the state of the store
    ├── CopyRefused           bytes of another broker's log that cannot continue this one
    ├── FlushFailed           fatal: fsync failed, so nobody knows what the disk holds
    ├── StoreIoError          any other error of the operating system on a store file: fatal, but for an append, of which nothing is in the log then
    └── StartError            only from open_store
        ├── StoreLocked       another process (or another store of this one) has the directory
        ├── StoreDenied       no permission
        └── StoreDamaged      files that cannot be a store, or not with this configuration
"""

from __future__ import annotations

import errno
from pathlib import Path


class StoreError(Exception):
    """Root of the tree."""


class StoreUnavailable(StoreError):
    """No append now: the store is closing, or the disk is full. Nothing of the refused batch is in the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store takes no messages now: {reason}")
        self.reason = reason


class DiskFull(StoreUnavailable):
    """ENOSPC or EDQUOT on a write. The store tries again by itself; reads go on."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(f"no space left for {path}; free some space on its file system, the store goes on by itself")
        self.path = Path(path)


class FullAtStart(DiskFull):
    """No room for what a start writes."""

    def __init__(self, path: Path | str) -> None:
        StoreError.__init__(self, f"{path}: no space left; free some space on its file system, then start the broker again")
        self.reason = "no space left"
        self.path = Path(path)


class DiskReserve(StoreUnavailable):
    """The disk is above diskSpaceWarningLevelRatio. The oldest messages are deleted, reads go on, and so do appends when there is room again.

    ``log_ratio`` and ``queue_ratio`` are the shares in use, 0 to 1, of the file systems of the log and of the rest; ``path`` lies on the fuller one.
    """

    def __init__(self, path: Path, log_ratio: float, queue_ratio: float, warning_percent: int, again_percent: int) -> None:
        super().__init__(
            f"the file system of {path} is {max(log_ratio, queue_ratio):.1%} full, more than diskSpaceWarningLevelRatio={warning_percent} allows; free some "
            f"space, enlarge it, or keep messages for a shorter time (fileReservedTime); messages are taken again at {again_percent} % "
            "(diskSpaceCleanForciblyRatio)"
        )
        self.path = path
        self.log_ratio = log_ratio
        self.queue_ratio = queue_ratio
        self.parts = (path, log_ratio, queue_ratio, warning_percent, again_percent)


class IllegalMessage(StoreError):
    """A message that breaks a limit of the format or of the configuration.

    ``properties`` tells the one limit that has an answer of its own on the wire (PROPERTIES_SIZE_EXCEEDED) from all others (MESSAGE_ILLEGAL).
    """

    def __init__(self, reason: str, *, properties: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.properties = properties


class CopyRefused(StoreError):
    """Bytes of another broker's log do not continue this one, or are no messages."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FlushFailed(StoreError):
    """fsync failed. Fatal and never tried again: the kernel may have dropped the dirty pages, and a second fsync would lie."""

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(
            f"flushing {path} to the disk failed ({cause.strerror or cause}); messages since the last flush may be lost in a power failure; "
            "check the disk, then start the broker again: it recovers from the log"
        )
        self.path = Path(path)
        self.cause = cause


class StoreIoError(StoreError):
    """An error of the operating system on a store file while running."""

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(f"{path}: {cause.strerror or cause}; check the disk and the file's permissions, then start the broker again")
        self.path = Path(path)


class StartError(StoreError):
    """The store cannot be opened. ``path``, ``reason`` and ``fix`` are the three parts of the message."""

    def __init__(self, path: Path | str, reason: str, fix: str) -> None:
        super().__init__(f"{path}: {reason}; {fix}")
        self.path = Path(path)
        self.reason = reason
        self.fix = fix


class StoreLocked(StartError):
    """Another broker works in this directory. ``pid`` is its process, None if the system does not tell."""

    def __init__(self, path: Path | str, pid: int | None) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(path, f"the store is locked by {owner}", "stop that broker first, or give this one another storePathRootDir")
        self.pid = pid


class StoreDenied(StartError):
    """A file or directory that this user may not read or write."""

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(path, f"{cause.strerror or cause}", "give the user of the broker read and write permission, or choose another storePathRootDir")


class StoreDamaged(StartError):
    """The directory holds something that the store did not write, or not with this configuration."""


def start_error(path: Path | str, cause: OSError) -> StoreError:
    """Map an error of the operating system at start-up to the tree."""
    if cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreDenied(cause.filename or path, cause)
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return FullAtStart(cause.filename or path)
    if cause.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return StoreDamaged(cause.filename or path, cause.strerror or str(cause), "move it away or choose another storePathRootDir")
    return StoreIoError(cause.filename or path, cause)
