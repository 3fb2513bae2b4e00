"""Replace small files as a whole: after a power failure the old or the new content is there.

A save writes ``<file>.tmp``, syncs it, renames the present file to ``<file>.bak`` and the new file
to ``<file>``, and syncs the directory. A crash between the two renames leaves the backup and the
complete ``.tmp``; reading takes the file, otherwise the backup, as Java does. ``swap_file`` is for
files of people and tools: it leaves no backup, which would keep what was deleted.

Source: common/MixAll.java#string2File, common/ConfigManager.java.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from triomq.remoting.core.errors import RemotingError

logger = logging.getLogger(__name__)
T = TypeVar("T")
OPENS_DIRECTORIES = hasattr(os, "O_DIRECTORY")
"""Whether a directory can be opened and synced: everywhere but on Windows."""


class DamagedFile(Exception):
    """Neither a file nor its backup can be read. The message names each that exists."""


class SystemFiles:
    """The file operations of a save; each blocks and raises OSError. ``Disk`` inherits them."""

    __slots__ = ()

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents; ``sync_directory`` of each makes the names durable."""
        path.mkdir(parents=True, exist_ok=True)

    def make_durable_directory(self, path: Path) -> None:
        """Make a directory and its missing parents, with durable names."""
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        for directory in reversed(missing):
            self.make_directory(directory)
            self.sync_directory(directory.parent)

    def write_file(self, path: Path, data: bytes) -> None:
        """Make a small file, or replace its content."""
        path.write_bytes(data)

    def make_private_file(self, path: Path) -> None:
        """Make a file that only its owner may read, before it gets its content."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, 0o600)
        finally:
            os.close(fd)

    def sync_path(self, path: Path) -> None:
        """Force the content of a file to the disk."""
        fd = os.open(path, os.O_RDWR)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def sync(self, fd: int) -> None:
        """Force the content of an open file to the disk."""
        os.fsync(fd)

    def rename(self, path: Path, target: Path) -> None:
        """Rename on the same file system; replace a file or an empty directory of the new name."""
        path.replace(target)

    def sync_directory(self, path: Path) -> None:
        """Force new, changed and removed names to the disk; Windows opens no directories."""
        if not OPENS_DIRECTORIES:
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


SYSTEM = SystemFiles()


def backup_of(path: Path) -> Path:
    """Return the path of the content before the last save."""
    return path.with_name(path.name + ".bak")


def replace_file(
    path: Path, content: bytes, files: SystemFiles = SYSTEM, private: bool = False
) -> None:
    """Replace a file durably; the old content becomes its backup. Blocks: call this in a thread.

    ``private``: only the owner may read it.

    Raises: OSError; the old or the new content can still be read.
    """
    files.make_durable_directory(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    if private:
        files.make_private_file(temporary)
    files.write_file(temporary, content)
    files.sync_path(temporary)
    # Opened here, so that too many open files end a save while the old content is in its place.
    kept = os.open(path.parent, os.O_RDONLY) if OPENS_DIRECTORIES else None
    try:
        if path.exists():
            files.rename(path, backup_of(path))
        files.rename(temporary, path)
    finally:
        if kept is not None:
            os.close(kept)
    files.sync_directory(path.parent)


def swap_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file durably, without a backup: readers see the old or the new content. Blocks.

    ``private``: only the owner may read it, from the beginning.

    Raises: OSError; the old content is still there.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fresh.unlink(missing_ok=True)  # of a process of that number that was killed
        with open(os.open(fresh, flags, 0o600 if private else 0o644), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    SYSTEM.sync_directory(path.parent)


def read_file(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Return the decoded content of a file or else of its backup; None without either.

    The backup is read if the file is missing, empty or damaged. ``decode`` raises ValueError or
    RemotingError for invalid content. A damaged file is kept as ``<file>.damaged``, so that the
    next save does not make it the backup.

    Raises: DamagedFile if neither file nor backup can be read, OSError.
    """
    problems: list[str] = []
    damaged = False
    for candidate in (path, backup_of(path)):
        try:
            content = candidate.read_bytes()
        except FileNotFoundError:
            continue
        if not content.strip():
            problems.append(f"{candidate} is empty")
            continue
        try:
            value = decode(content)
        except (ValueError, RemotingError) as error:
            problems.append(f"{candidate} cannot be read ({error})")
            damaged = True
            continue
        if problems:
            logger.warning("%s; using %s", "; ".join(problems), candidate)
            if path.exists():
                path.replace(path.with_name(path.name + ".damaged"))
        return value
    if damaged:
        raise DamagedFile("; ".join(problems))
    return None
