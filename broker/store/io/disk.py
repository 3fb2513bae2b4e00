"""The seam to the operating system: every call of the store on a file goes through a ``Disk``.

Some calls are missing on some systems; each of them has a fallback: ``preadv(RWF_NOWAIT)`` (Linux;
not on every file system) -> read in a thread, ``fdatasync`` -> ``fsync`` (macOS: F_FULLFSYNC, since
its fsync stops at the drive's cache), ``posix_fallocate`` -> writing back what is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from triomq.broker.store.core.disk_space import Usage
from triomq.broker.store.core.errors import DiskFull, StoreIoError, io_error
from triomq.broker.store.io.queued_sync import QueuedSync
from triomq.remoting.core.atomic_file import SystemFiles

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NOT_NOW = (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
ZEROS = bytes(1 << 20)
# From linux/fs.h, as chattr uses them. Other systems have other numbers and refuse these.
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NOCOW_FL = 0x80086601, 0x40086602, 0x00800000
FLAGS = struct.Struct("=i4x")


def has_syncfs() -> bool:
    """Return whether ``syncfs`` exists and reports errors, as it does since Linux 5.8."""
    release = os.uname().release.split(".")
    return (
        sys.platform == "linux"
        and hasattr(ctypes.CDLL(None), "syncfs")
        and tuple(int(part) for part in release[:2] if part.isdecimal()) >= (5, 8)
    )


def keep_in_place(fd: int) -> None:
    """Make the file system overwrite the blocks of an empty file in place, if it does not anyway.

    btrfs writes overwritten bytes elsewhere, so it needs room even for bytes that have their
    blocks; through a memory map on a full disk that is a SIGBUS.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        (flags,) = FLAGS.unpack(fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(FLAGS.size)))
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, FLAGS.pack(flags | FS_NOCOW_FL))


GATHERED_MAX = 512
"""Pieces in one call. Systems take at most 1,024."""


@attrs.frozen(kw_only=True)
class DiskFeatures:
    """Which calls this system has. Tests switch them off one by one."""

    nowait: bool = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
    datasync: bool = hasattr(os, "fdatasync")
    allocate: bool = hasattr(os, "posix_fallocate")
    seek_data: bool = hasattr(os, "SEEK_DATA")
    advise: bool = hasattr(os, "posix_fadvise")
    sync_file_system: bool = has_syncfs()
    queued_sync: bool = False
    """fdatasync by the kernel's queue, which bypasses ``sync_path``: not for a disk that watches
    what is forced out.
    """
    gather: bool = False
    """pwritev, which bypasses ``write_at``: not for a disk that watches what is written."""
    residency: bool = False
    """mincore, which bypasses ``read_nowait``: not for a disk that watches what is read."""


@attrs.define(eq=False)
class Disk(SystemFiles):
    """Files by descriptor. Offsets and sizes are bytes; writes raise DiskFull or StoreIoError."""

    features: DiskFeatures = attrs.field(factory=DiskFeatures)
    nowait: bool = attrs.field(init=False)
    """False after the file system has said that it cannot read without waiting."""
    descriptor_wait_seconds: float = attrs.field(default=math.inf, init=False)
    """Limit of the time that an fsync waits for a descriptor while too many files are open."""

    def __attrs_post_init__(self) -> None:
        self.nowait = self.features.nowait

    # Opening

    def open(self, path: Path, *, writable: bool = True) -> int:
        """Open an existing file. Raises: OSError."""
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def open_directory(self, path: Path) -> int:
        """Open a directory, for ``sync_file_system``. Raises: OSError."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, path: Path, size: int, *, in_place: bool = False) -> int:
        """Create (or reopen) a sparse file of its full size: a short file would stop Java's start.

        ``in_place``: see ``keep_in_place``.
        """
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

    def write_at(
        self, fd: int, data: bytes | bytearray | memoryview, offset: int, path: Path
    ) -> None:
        """Write all of ``data`` at ``offset``. After an error any part of it may be in the file."""
        try:
            written = os.pwrite(fd, data, offset)
            while written < len(data):
                written += os.pwrite(fd, memoryview(data)[written:], offset + written)
        except OSError as error:
            raise self.write_error(path, error) from error

    def write_all_at(
        self, fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int, path: Path
    ) -> None:
        """Write pieces, one behind the other, at ``offset``."""
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
        """Give a part of the file its blocks.

        On a full disk a write through a memory map into a hole would be a SIGBUS, not an error.
        """
        try:
            if self.features.allocate:
                os.posix_fallocate(fd, offset, length)
                return
            # Writing the same bytes again gives a hole its block and changes nothing.
            while length > 0:
                written = os.pwrite(fd, os.pread(fd, min(length, len(ZEROS)), offset), offset)
                offset, length = offset + written, length - written
        except OSError as error:
            raise self.write_error(path, error) from error

    def zero_tail(self, fd: int, offset: int, end: int, path: Path) -> None:
        """Overwrite old data in [offset, end) with zeros; holes stay holes.

        The first 32 bytes are written with one call, so that neither the head of a record nor a
        queue entry is overwritten in part.
        """
        self.write_at(fd, ZEROS[: min(32, end - offset)], offset, path)
        while offset < end:
            stop = end
            if self.features.seek_data:
                try:
                    offset = os.lseek(fd, offset, os.SEEK_DATA)
                    stop = min(end, os.lseek(fd, offset, os.SEEK_HOLE))
                except OSError as error:
                    if error.errno == errno.ENXIO:  # a hole up to the end of the file
                        return
                    raise
            while offset < stop:
                size = min(len(ZEROS), stop - offset)
                if os.pread(fd, size, offset).count(0) != size:
                    self.write_at(fd, ZEROS[:size], offset, path)
                offset += size

    def write_error(self, path: Path, error: OSError) -> DiskFull | StoreIoError:
        return DiskFull(path) if error.errno in NO_SPACE else io_error(path, error)

    # Reading

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Return ``size`` bytes, fewer only at the end of the file. May wait for the disk."""
        data = os.pread(fd, size, offset)
        while len(data) < size:
            more = os.pread(fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_nowait(self, fd: int, size: int, offset: int) -> bytearray | None:
        """Return bytes of the page cache; None if some are missing, or the system does not say."""
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
        """Open, read, close. For threads: the loop may close any descriptor of its own."""
        fd = self.open(path, writable=False)
        try:
            return self.read(fd, size, offset)
        finally:
            os.close(fd)

    def read_ahead(self, path: Path, offset: int, size: int) -> None:
        """Ask the system to read a part of a file into the page cache in the background. A hint.

        Raises: OSError.
        """
        self._advise(path, offset, size, "POSIX_FADV_WILLNEED")

    def _advise(self, path: Path, offset: int, size: int, advice: str) -> None:
        if self.features.advise:
            fd = self.open(path, writable=False)
            try:
                os.posix_fadvise(fd, offset, size, getattr(os, advice))
            finally:
                os.close(fd)

    def next_data(self, path: Path, offset: int) -> int:
        """Return the first position from ``offset`` on that is not in a hole, or the file's end.

        Raises: OSError.
        """
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
        """Return the start of the first hole from ``offset`` on; ``end``, the size, if unknown.

        Raises: OSError.
        """
        return os.lseek(fd, offset, os.SEEK_HOLE) if self.features.seek_data else end

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        """Return a shared memory map of the whole file."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)

    # Space, age and removal

    def usage(self, path: Path) -> Usage:
        """Return how full the file system of a path is, as ``df`` shows it. Raises: OSError."""
        found = os.statvfs(path)
        unit = found.f_frsize
        return Usage((found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit)

    def modified_ms(self, path: Path) -> int:
        """Return when a file was last written to (ms of the wall clock). Raises: OSError."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def remove(self, path: Path) -> None:
        """Delete a file. Its descriptors and maps stay valid, and keep its blocks.

        Raises: OSError.
        """
        path.unlink(missing_ok=True)

    # Directories and small files

    def remove_directory(self, path: Path) -> None:
        """Delete an empty directory. Raises: OSError."""
        path.rmdir()

    # Durability (for threads: these calls wait for the device)

    def sync(self, fd: int) -> None:
        """Force the data of a file to the disk: fdatasync, or the call nearest to it.

        Raises: OSError.
        """
        if self.features.datasync:
            os.fdatasync(fd)
        elif hasattr(fcntl, "F_FULLFSYNC"):
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def open_sync_queue(self) -> QueuedSync | None:
        """Return a queue for fsyncs that the loop uses instead of a thread; None if there is none.

        The caller closes it.
        """
        if not self.features.queued_sync:
            return None
        try:
            return QueuedSync()
        except OSError:
            return None

    def sync_file_system(self, fd: int) -> None:
        """Force the whole file system that ``fd`` is on to the disk, data and names.

        Raises: OSError, also for a write that has failed since ``fd`` was opened.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def drop_cache(self, path: Path, offset: int = 0, size: int = 0) -> None:
        """Make the page cache forget a part of a file; size 0: up to its end.

        Pages that were never sent to the disk stay. A hint: a mapped file, or a system without the
        call, keeps its cache.

        After a failed fsync the cache may differ from the disk; and a part that is not wanted soon
        takes memory from others.

        Raises: OSError.
        """
        self._advise(path, offset, size, "POSIX_FADV_DONTNEED")
