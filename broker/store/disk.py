"""The seam to the operating system: every call of the store on a file goes through a ``Disk``.

Some calls do not exist everywhere, and each has a fallback: ``preadv(RWF_NOWAIT)`` (Linux; not on every file system) -> read in a thread,
``fdatasync`` -> ``fsync`` (macOS: F_FULLFSYNC, since its fsync stops at the drive's cache), ``posix_fallocate`` -> writing back what is
there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from triomq.broker.store.errors import DiskFull, StoreIoError
from triomq.broker.store.queued_sync import QueuedSync
from triomq.broker.store.retention import Usage
from triomq.remoting.atomic_file import SystemFiles

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NOT_NOW = (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
ZEROS = bytes(1 << 20)
# linux/fs.h, as chattr has them; other systems have other numbers, and refuse these.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NOCOW_FL = 0x80086601, 0x40086602, 0x00800000
FLAGS = struct.Struct("=i4x")


def has_syncfs() -> bool:
    """Whether ``syncfs`` exists and tells errors, which it does since Linux 5.8."""
    release = os.uname().release.split(".")
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "syncfs") and tuple(int(part) for part in release[:2] if part.isdecimal()) >= (5, 8)


def keep_in_place(fd: int) -> None:
    """Have an empty file's bytes stay where they are when they are written again. Where that is so anyway, nothing happens.

    btrfs writes them elsewhere, so that it needs room even for what has its blocks; through a map, on a full disk, that is a SIGBUS.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        (flags,) = FLAGS.unpack(fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(FLAGS.size)))
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, FLAGS.pack(flags | FS_NOCOW_FL))


GATHERED_MAX = 512
"""Pieces in one call; systems take no more than 1,024."""


@attrs.frozen(kw_only=True)
class DiskFeatures:
    """Which of the calls this system has. Tests switch them off one by one."""

    nowait: bool = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
    datasync: bool = hasattr(os, "fdatasync")
    allocate: bool = hasattr(os, "posix_fallocate")
    seek_data: bool = hasattr(os, "SEEK_DATA")
    advise: bool = hasattr(os, "posix_fadvise")
    sync_file_system: bool = has_syncfs()
    queued_sync: bool = False
    """fdatasync by the kernel's queue, past ``sync_path``: only for a disk that does not look into what is forced out."""
    gather: bool = False
    """pwritev, past ``write_at``: only for a disk that does not look into what is written."""
    residency: bool = False
    """The kernel tells which pages of a map it has, past ``read_nowait``: only for a disk that does not look into what is read."""


@attrs.define(eq=False)
class Disk(SystemFiles):
    """Files by descriptor. Offsets and sizes are bytes; errors of a write are DiskFull or StoreIoError."""

    features: DiskFeatures = attrs.field(factory=DiskFeatures)
    nowait: bool = attrs.field(init=False)
    """False once the file system has said that it cannot read without waiting."""

    def __attrs_post_init__(self) -> None:
        self.nowait = self.features.nowait

    # Opening

    def open(self, path: Path, *, writable: bool = True) -> int:
        """Open an existing file. Raises OSError."""
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def open_directory(self, path: Path) -> int:
        """Open a directory, for ``sync_file_system``. Raises OSError."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, path: Path, size: int, *, in_place: bool = False) -> int:
        """Create (or reopen) a sparse file that has its full size from the first moment: a short one would stop Java's start. ``in_place``: see ``keep_in_place``."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if in_place:
                    keep_in_place(fd)
                os.ftruncate(fd, size)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            raise self.write_error(path, error) from error
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    # Writing

    def write_at(self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path) -> None:
        """Write all of ``data`` at ``offset``. On an error any part of it may be on the file."""
        try:
            written = os.pwrite(fd, data, offset)
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], offset + written)
        except OSError as error:
            raise self.write_error(path, error) from error

    def write_all_at(self, fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int, path: Path) -> None:
        """The same for pieces that follow one another."""
        if not self.features.gather:
            self.write_at(fd, b"".join(pieces), offset, path)
            return
        for first in range(0, len(pieces), GATHERED_MAX):
            taken = pieces[first : first + GATHERED_MAX]
            try:
                written, size = os.pwritev(fd, taken, offset), sum(map(len, taken))
            except OSError as error:
                raise self.write_error(path, error) from error
            if written < size:
                self.write_at(fd, memoryview(b"".join(taken))[written:], offset + written, path)
            offset += size

    def allocate(self, fd: int, offset: int, length: int, path: Path) -> None:
        """Make sure that a write through a memory map cannot fail there: on a full disk that would be a SIGBUS, not an error."""
        try:
            if self.features.allocate:
                os.posix_fallocate(fd, offset, length)
                return
            while length > 0:  # writing back what is there gives a hole its block and changes no byte
                written = os.pwrite(fd, os.pread(fd, min(length, len(ZEROS)), offset), offset)
                offset, length = offset + written, length - written
        except OSError as error:
            raise self.write_error(path, error) from error

    def zero_tail(self, fd: int, offset: int, end: int, path: Path) -> None:
        """Overwrite what is left of old data in [offset, end) with zeros; holes stay holes. The first 32 bytes go at once: no head of a record, and no queue entry, is seen halfway."""
        self.write_at(fd, ZEROS[: min(32, end - offset)], offset, path)
        while offset < end:
            stop = end
            if self.features.seek_data:
                try:
                    offset = os.lseek(fd, offset, os.SEEK_DATA)
                    stop = min(end, os.lseek(fd, offset, os.SEEK_HOLE))
                except OSError as error:
                    if error.errno == errno.ENXIO:  # nothing but a hole up to the end of the file
                        return
                    raise
            while offset < stop:
                size = min(len(ZEROS), stop - offset)
                if os.pread(fd, size, offset).count(0) != size:
                    self.write_at(fd, ZEROS[:size], offset, path)
                offset += size

    def write_error(self, path: Path, error: OSError) -> DiskFull | StoreIoError:
        return DiskFull(path) if error.errno in NO_SPACE else StoreIoError(path, error)

    # Reading

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Read, waiting for the disk if it must; short only at the end of the file."""
        data = os.pread(fd, size, offset)
        while len(data) < size:
            more = os.pread(fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_nowait(self, fd: int, size: int, offset: int) -> bytearray | None:
        """Read from the page cache; None if any of it is not there (or this system cannot tell)."""
        if not self.nowait:
            return None
        data = bytearray(size)
        try:
            got = os.preadv(fd, [data], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in NOT_NOW:
                raise
            if error.errno != errno.EAGAIN:
                self.nowait = False
            return None
        return data if got == size else None

    def read_path(self, path: Path, size: int, offset: int) -> bytes:
        """Open, read, close: for threads, which must not share descriptors with the loop (it may close them)."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self.read(fd, size, offset)
        finally:
            os.close(fd)

    def read_ahead(self, path: Path, offset: int, size: int) -> None:
        """Have the system fetch this part of a file into the page cache while something else is done. A hint. Raises OSError."""
        if not self.features.advise:
            return
        fd = self.open(path, writable=False)
        try:
            self.read_ahead_of(fd, offset, size)
        finally:
            os.close(fd)

    def read_ahead_of(self, fd: int, offset: int, size: int) -> None:
        """The same for a file that is open."""
        if self.features.advise:
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)

    def next_data(self, path: Path, offset: int) -> int:
        """The first position from ``offset`` on that is not in a hole of the file (which is all zeros); the end of the file if there is none. Raises OSError."""
        if not self.features.seek_data:
            return offset
        fd = self.open(path, writable=False)
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return max(offset, os.fstat(fd).st_size)
            raise
        finally:
            os.close(fd)

    def next_hole(self, fd: int, offset: int, end: int) -> int:
        """Where the first hole of a file of ``end`` bytes begins from ``offset`` on, which is all zeros; ``end`` if there is none, or nobody knows. Raises OSError."""
        return os.lseek(fd, offset, os.SEEK_HOLE) if self.features.seek_data else end

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        """A shared memory map of the whole file."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)

    # Space, age and removal

    def usage(self, path: Path) -> Usage:
        """How full the file system of a path is, as ``df`` says it. Raises OSError."""
        found = os.statvfs(path)
        unit = found.f_frsize
        return Usage((found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit)

    def modified_ms(self, path: Path) -> int:
        """When a file was written to last, wall clock. Raises OSError."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def remove(self, path: Path) -> None:
        """Delete a file. Descriptors and maps of it stay good, and its blocks are free when the last of them is gone. Raises OSError."""
        path.unlink(missing_ok=True)

    # Directories and small files

    def remove_directory(self, path: Path) -> None:
        """Delete an empty directory. Raises OSError."""
        path.rmdir()

    # Durability (call these in a thread: they wait for the device)

    def sync(self, fd: int) -> None:
        """fdatasync, or the nearest thing. Raises OSError."""
        if self.features.datasync:
            os.fdatasync(fd)
        elif hasattr(fcntl, "F_FULLFSYNC"):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def open_sync_queue(self) -> QueuedSync | None:
        """For the loop, in place of a thread: the caller closes it. None if this system has none."""
        if not self.features.queued_sync:
            return None
        try:
            return QueuedSync()
        except OSError:
            return None

    def sync_file_system(self, fd: int) -> None:
        """Force all of the file system that ``fd`` is on to the disk, data and names. Reports what has failed since ``fd`` was opened. Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def drop_cache(self, path: Path) -> None:
        """Forget what the page cache has of a file and the disk is said to have: after an fsync that failed the two may differ. Raises OSError.

        Pages that were never sent to the disk stay. A hint: a file that somebody has mapped, or a system without the call, keeps its cache.
        """
        if not self.features.advise:
            return
        fd = self.open(path, writable=False)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def drop_part(self, path: Path, offset: int, size: int) -> None:
        """The same for a part of a file that nobody will want soon: others need the memory more. Raises OSError."""
        if not self.features.advise:
            return
        fd = self.open(path, writable=False)
        try:
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
