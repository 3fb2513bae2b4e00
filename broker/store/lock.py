"""The lock of a store directory: a POSIX record lock on byte 0 of the file ``lock``, as in Java.

It is taken before the first read, so two brokers never repair the same files. POSIX locks do not
exclude each other within a process, so a table keeps the directories that this process has locked.
Source: store/…/DefaultMessageStore.java#start.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

import attrs

from triomq.broker.store.core.errors import StoreLocked, start_error

CONTENT = b"lock"
BUSY = (errno.EACCES, errno.EAGAIN)
# struct flock of 64-bit systems: Linux has type, whence, start, len, pid; macOS and BSD start, len,
# pid, type, whence.
LINUX_FLOCK = struct.Struct("hhqqi4x")
BSD_FLOCK = struct.Struct("qqihh")

_held: set[str] = set()


@attrs.define(eq=False)
class StoreLock:
    """Held from ``take`` to ``release``; the system releases the lock when the process ends."""

    path: Path
    _fd: int = attrs.field(default=-1, init=False)
    _name: str = attrs.field(default="", init=False)

    def take(self) -> None:
        """Take the lock. Raises: StoreLocked, StoreDenied."""
        name = os.path.realpath(self.path)
        if name in _held:
            raise StoreLocked(self.path.parent, os.getpid())
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise start_error(self.path, error) from error
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(fd, CONTENT, 0)
        except OSError as error:
            owner = _ask(fd)
            os.close(fd)
            if error.errno in BUSY:
                raise StoreLocked(self.path.parent, owner.pid) from error
            raise start_error(self.path, error) from error
        self._fd, self._name = fd, name
        _held.add(name)

    def release(self) -> None:
        if self._fd >= 0:
            _held.discard(self._name)
            os.close(self._fd)
            self._fd = -1


@attrs.frozen
class LockState:
    """Whether a process holds the lock of a store, and its ``pid``, None if it is not known."""

    held: bool
    pid: int | None = None

    @property
    def owner(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"


def lock_state(path: Path) -> LockState:
    """Return the state of a lock without taking the lock. The file is opened for reading only.

    Raises: OSError.
    """
    # Closing any descriptor of the file would give up the lock of this very process.
    if os.path.realpath(path) in _held:
        return LockState(True, os.getpid())
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return LockState(False)
    try:
        return _ask(fd)
    finally:
        os.close(fd)


def _ask(fd: int) -> LockState:
    """Return the state of the lock; no ``pid`` if the system does not say (another host)."""
    linux = sys.platform.startswith("linux")
    question = (
        (fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0) if linux else (0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    )
    layout = LINUX_FLOCK if linux else BSD_FLOCK
    try:
        answer = layout.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, layout.pack(*question)))
    except OSError:
        return LockState(False)
    kind, pid = int(answer[0 if linux else 3]), int(answer[4 if linux else 2])
    return LockState(kind != fcntl.F_UNLCK, pid if pid > 0 else None)
