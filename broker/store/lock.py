"""The lock of a store directory: a POSIX record lock on byte 0 of the file ``lock``, the one that Java takes.

It is taken before anything is read, so two brokers never repair the same files. POSIX locks do not hold within one process, hence the table of the
directories that this process has open. Source: store/…/DefaultMessageStore.java#start.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

import attrs

from triomq.broker.store.errors import StoreLocked, start_error

CONTENT = b"lock"
BUSY = (errno.EACCES, errno.EAGAIN)
# struct flock of 64-bit systems: Linux has type, whence, start, len, pid; macOS and BSD start, len, pid, type, whence.
LINUX_FLOCK = struct.Struct("hhqqi4x")
BSD_FLOCK = struct.Struct("qqihh")

_held: set[str] = set()


@attrs.define(eq=False)
class StoreLock:
    """Held from ``take`` to ``release``; the system releases it when the process dies."""

    path: Path
    _fd: int = attrs.field(default=-1, init=False)
    _name: str = attrs.field(default="", init=False)

    def take(self) -> None:
        """Raises StoreLocked, StoreDenied."""
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
            pid = _owner(fd) if error.errno in BUSY else None
            os.close(fd)
            if error.errno in BUSY:
                raise StoreLocked(self.path.parent, pid) from error
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
    """Whether somebody holds the lock of a store, and who; ``pid`` is None if the system does not tell."""

    held: bool
    pid: int | None = None

    @property
    def owner(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid}"


def lock_state(path: Path) -> LockState:
    """Look at the lock without taking it; the file is opened for reading only. Raises OSError."""
    if os.path.realpath(path) in _held:  # closing any descriptor of the file would give up the lock of this very process
        return LockState(True, os.getpid())
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return LockState(False)
    try:
        answer = _ask(fd)
    finally:
        os.close(fd)
    if answer is None or answer[0] == fcntl.F_UNLCK:
        return LockState(False)
    return LockState(True, answer[1] if answer[1] > 0 else None)


def _owner(fd: int) -> int | None:
    """Process that holds the lock, None if the system does not tell (another host, another pid namespace)."""
    answer = _ask(fd)
    return answer[1] if answer is not None and answer[1] > 0 else None


def _ask(fd: int) -> tuple[int, int] | None:
    """(kind of lock, process) that stands against an exclusive lock on byte 0; None if the system does not say."""
    linux = sys.platform.startswith("linux")
    question = (fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0) if linux else (0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    layout = LINUX_FLOCK if linux else BSD_FLOCK
    try:
        answer = layout.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, layout.pack(*question)))
    except OSError:
        return None
    return int(answer[0 if linux else 3]), int(answer[4 if linux else 2])
