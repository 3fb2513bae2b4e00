"""The errors of the store. Every message names the place, the cause and the fix.

::

    StoreError
    ├── StoreUnavailable      no append now; reads go on
    │   ├── DiskFull          the file system is full; appends work again when it has room
    │   │   ├── FullAtStart   the same, only from open_store: there is no store then
    │   │   └── NoFilesLeft   too many files are open; also a StoreIoError, for readers
    │   └── DiskReserve       the file system is fuller than the settings allow; the same
    ├── IllegalMessage        a message that cannot be stored in any state of the store
    ├── CopyRefused           bytes of another broker's log that cannot continue this one
    ├── FlushFailed           fatal: fsync failed, so the content of the disk is unknown
    ├── StoreIoError          any other error of the system on a store file: fatal, except in an
    │                         append, of which nothing is in the log then
    └── StartError            only from open_store
        ├── StoreLocked       another process (or another store of this one) has the directory
        ├── StoreDenied       no permission
        ├── NoStorePath       a path at which no folder or file can be
        └── StoreDamaged      files that cannot be a store, or not with this configuration
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triomq.remoting.core.open_files import explained, none_left


class StoreError(Exception):
    """The root of the tree."""


class StoreUnavailable(StoreError):
    """The store takes no messages now: it is closing, or the disk is full.

    Nothing of the refused batch is in the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store takes no messages now: {reason}")


class DiskFull(StoreUnavailable):
    """A write failed with ENOSPC or EDQUOT. The store retries by itself; reads go on."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(
            f"no space left for {path}; free some space on its file system, the store goes on by"
            " itself"
        )
        self.path = Path(path)


class FullAtStart(DiskFull):
    """The disk has no room for the files that a start writes."""

    def __init__(self, path: Path | str) -> None:
        StoreError.__init__(
            self,
            f"{path}: no space left; free some space on its file system, then start the broker"
            " again",
        )
        self.path = Path(path)


class DiskReserve(StoreUnavailable):
    """The disk is above diskSpaceWarningLevelRatio: no messages until old ones have been deleted.

    ``log_ratio``, ``queue_ratio``: the shares in use, 0 to 1, of the file systems of the log and of
    the other files. ``path`` lies on the fuller file system.
    """

    def __init__(
        self,
        path: Path,
        log_ratio: float,
        queue_ratio: float,
        warning_percent: int,
        again_percent: int,
    ) -> None:
        super().__init__(
            f"the file system of {path} is {max(log_ratio, queue_ratio):.1%} full, more than"
            f" diskSpaceWarningLevelRatio={warning_percent} allows; free some space, enlarge it, or"
            " keep messages for a shorter time (fileReservedTime); messages are taken again at"
            f" {again_percent} % (diskSpaceCleanForciblyRatio)"
        )
        self.path = path
        self.log_ratio = log_ratio
        self.queue_ratio = queue_ratio


class IllegalMessage(StoreError):
    """A message exceeds a limit of the format or of the configuration."""


class CopyRefused(StoreError):
    """Bytes of another broker's log do not continue this log, or are not messages."""


class FlushFailed(StoreError):
    """fsync failed. Fatal and never retried.

    The kernel may have dropped the dirty pages, and then a second fsync succeeds without writing
    them.
    """

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(
            f"flushing {path} to the disk failed ({cause.strerror or cause}); messages since the"
            " last flush may be lost in a power failure; check the disk, then start the broker"
            " again: it recovers from the log"
        )
        self.path = Path(path)
        self.cause = cause


class StoreIoError(StoreError):
    """An error of the operating system on a file of the running store."""

    def __init__(self, path: Path | str, cause: OSError) -> None:
        if cause.errno == errno.ENOMEM:
            advice = (
                "the disk is well: give the process more memory (the container's limit, ulimit -v)"
                " or more mapped files (sysctl vm.max_map_count)"
            )
        else:
            advice = "check the disk and the file's permissions"
        super().__init__(
            f"{path}: {cause.strerror or cause}; {advice}, then start the broker again"
        )
        self.path = Path(path)


class NoFilesLeft(DiskFull, StoreIoError):
    """The store cannot open one more file (EMFILE or ENFILE).

    Appends and indexes treat it like a full disk: they are refused or wait, and go on by
    themselves. Readers get the error, as any other error of the system.
    """

    def __init__(self, path: Path | str, cause: OSError) -> None:
        StoreError.__init__(self, f"{path} cannot be opened: {explained(cause)}")
        self.path = Path(path)


def io_error(path: Path | str, cause: OSError) -> StoreIoError:
    """Return the store's error for an error of the system on a file of the running store."""
    return NoFilesLeft(path, cause) if none_left(cause) else StoreIoError(path, cause)


class StartError(StoreError):
    """The store cannot be opened. The message says why, and what to do."""

    def __init__(self, path: Path | str, reason: str, fix: str) -> None:
        super().__init__(f"{path}: {reason}; {fix}")
        self.path = Path(path)


class StoreLocked(StartError):
    """Another broker uses this directory. ``pid``: its process; None if the system does not say."""

    def __init__(self, path: Path | str, pid: int | None) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(
            path,
            f"the store is locked by {owner}",
            "stop that broker first, or give this one another storePathRootDir",
        )
        self.pid = pid


class StoreDenied(StartError):
    """The user of the broker may not read or write a file or a directory."""

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(
            path,
            f"{cause.strerror or cause}",
            "give the user of the broker read and write permission, or choose another"
            " storePathRootDir",
        )


class NoStorePath(StartError):
    """The system can have no folder or file at a path, such as one below ``/proc``."""

    def __init__(self, path: Path | str, cause: OSError) -> None:
        reason = (
            "no folder can be made there"
            if cause.errno == errno.ENOENT
            else cause.strerror or str(cause)
        )
        super().__init__(path, reason, "choose another storePathRootDir or storePathCommitLog")


class StoreDamaged(StartError):
    """The directory holds files that the store, with this configuration, did not write."""


def start_error(path: Path | str, cause: OSError) -> StoreError:
    """Return the store's error for an error of the system at start-up."""
    if cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreDenied(cause.filename or path, cause)
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return FullAtStart(cause.filename or path)
    if none_left(cause):
        return NoFilesLeft(cause.filename or path, cause)
    if cause.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return StoreDamaged(
            cause.filename or path,
            cause.strerror or str(cause),
            "move it away or choose another storePathRootDir",
        )
    if cause.errno in (errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL):
        return NoStorePath(cause.filename or path, cause)
    return StoreIoError(cause.filename or path, cause)


@contextmanager
def starting(root: Path) -> Iterator[None]:
    """Turn errors of the system in the block into those of a start. Raises: StoreError."""
    try:
        yield
    except OSError as error:
        raise start_error(root, error) from error
