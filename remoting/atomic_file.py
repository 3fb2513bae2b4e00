"""Small files that are replaced as a whole: at every moment, also after a power failure, the old or the new content is there.

A save writes ``<file>.tmp``, syncs it, moves the present file to ``<file>.bak``, the new one into its place, and syncs the directory.  A crash between
the two moves leaves only the backup and the complete ``.tmp``; reading takes the file, else the backup (as Java does, which writes so, too).
Source: common/MixAll.java#string2File, common/ConfigManager.java.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from triomq.remoting.errors import RemotingError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class DamagedFile(Exception):
    """Neither a file nor its backup can be read.  The message names both."""


class Files(Protocol):
    """The operations of a file system; a broker's `Disk` has them."""

    def make_durable_directory(self, path: Path) -> None: ...

    def write_file(self, path: Path, data: bytes) -> None: ...

    def sync_path(self, path: Path) -> None: ...

    def rename(self, path: Path, target: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...


class SystemFiles:
    """The file system as it is."""

    def make_durable_directory(self, path: Path) -> None:
        """Make a directory, and those above it that are missing; their names are on the disk when this returns."""
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_directory(directory.parent)

    def write_file(self, path: Path, data: bytes) -> None:
        """Make a small file, or replace its content."""
        path.write_bytes(data)

    def sync_path(self, path: Path) -> None:
        """Force the content of a file to the disk."""
        _sync(path, os.O_RDWR)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name; a file of that name is replaced."""
        path.replace(target)

    def sync_directory(self, path: Path) -> None:
        """Force new and changed names to the disk."""
        _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


SYSTEM = SystemFiles()


def backup_of(path: Path) -> Path:
    """Return where the content before the last save is kept."""
    return path.with_name(path.name + ".bak")


def replace_file(path: Path, content: bytes, files: Files = SYSTEM) -> None:
    """Replace a file; the former content becomes its backup.  It is on the disk when this returns.  Blocks: call it in a thread.

    Raises:
        OSError: the old content, or the new one, is still there.
    """
    files.make_durable_directory(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    files.write_file(temporary, content)
    files.sync_path(temporary)
    if path.exists():
        files.rename(path, backup_of(path))
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def read_file(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Return the decoded content, from the backup if the file is missing, empty or damaged; None when there is neither.

    ``decode`` raises ValueError or RemotingError for a content that it cannot read.  A damaged file is kept as ``<file>.damaged``, so that the next
    save does not make it the backup.

    Raises:
        DamagedFile: something is there, but none of it can be read.
        OSError: the file cannot be opened.
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
