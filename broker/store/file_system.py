"""FileSystem: thousands of files forced to the disk by one call.

A checkpoint of 50,000 queues by fsync takes half a minute, one commit of the journal each, and senders who want their message on the disk wait for the same
device. ``syncfs`` does all in one (5,000 small files: 0.1 s instead of 2.4). It also writes what others have on that file system, so it is for many files only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from triomq.broker.store.disk import Disk
from triomq.broker.store.errors import FlushFailed


@attrs.define(eq=False)
class FileSystem:
    """The one that the store's root is on."""

    disk: Disk
    root: Path
    _fd: int = attrs.field(default=-1, init=False)
    """Open from the beginning: an error is told once to every descriptor that was there before it."""

    def __attrs_post_init__(self) -> None:
        if self.disk.features.sync_file_system:
            self._fd = self.disk.open_directory(self.root)

    def force_out(self, files: list[Path], directories: list[Path]) -> tuple[list[Path], list[Path]]:
        """Force these to the disk; those that lie on another file system are left, and returned. For a thread. Raises FlushFailed."""
        if self._fd < 0:
            return files, directories
        device = os.fstat(self._fd).st_dev
        try:
            self.disk.sync_file_system(self._fd)
        except OSError as error:
            raise FlushFailed(self.root, error) from error
        return self._elsewhere(files, device), self._elsewhere(directories, device)

    def _elsewhere(self, paths: Iterable[Path], device: int) -> list[Path]:
        found = []
        for path in paths:
            try:
                if os.stat(path).st_dev != device:
                    found.append(path)
            except FileNotFoundError:
                continue  # deleted meanwhile
        return found

    def close(self) -> None:
        if self._fd >= 0:
            self.disk.close(self._fd)
            self._fd = -1
