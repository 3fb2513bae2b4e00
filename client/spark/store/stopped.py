"""Whether a broker may be writing a store directory."""

import errno
import os
from pathlib import Path
from types import ModuleType

from triomq.client.spark.errors import SourceError, StoreInUse

fcntl: ModuleType | None
try:
    import fcntl
except ModuleNotFoundError:  # Windows, where no broker of ours runs
    fcntl = None


def check_stopped(root: Path, *, snapshot: bool) -> None:
    """Check that no broker writes the store.

    A running broker holds a POSIX lock on byte 0 of the file ``lock``, and the file ``abort`` is
    there until it has stopped cleanly. A lock of another host may not be seen; its ``abort`` is.

    Raises: StoreInUse; SourceError if the directory is not a store that this host can read.
    Source: store/…/DefaultMessageStore.java#start, #shutdown.
    """
    if not (root / "consumequeue").is_dir() and not (root / "batchconsumequeue").is_dir():
        raise SourceError(
            f"{root} is not a store that this host can read: it has no folder consumequeue; give"
            " the broker's storePathRootDir, mounted at one path for the driver and all workers"
        )
    if (root / "consumequeue" / "CURRENT").exists():
        raise SourceError(
            f"{root} keeps its queues in RocksDB (storeType=defaultRocksDB), which this source does"
            " not read; read the topics from the broker"
        )
    if is_locked(root / "lock"):
        raise StoreInUse(
            f"a broker runs on {root}; stop it, or read a snapshot of the directory, such as one of"
            " the file system"
        )
    if not snapshot and (root / "abort").exists():
        raise StoreInUse(
            f"{root} was not closed cleanly (it has the file abort): a broker runs on it on another"
            " host, or has crashed, or this is a copy of a running store; stop the broker, or set"
            " snapshot=true if nothing writes here"
        )


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock. Raises: SourceError."""
    if fcntl is None:
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}; check its permissions") from error
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        # A file system without locks has no broker either.
        return error.errno in (errno.EACCES, errno.EAGAIN)
    finally:
        os.close(fd)  # gives the lock back
    return False
