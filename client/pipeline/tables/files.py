"""Which file operations do tables need? The seam between their protocols and a storage.

A storage may be an object store: a rename copies each object and then deletes it, and a folder is
only the beginning of names. A single object appears as a whole, and a listing shows it at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import attrs


@attrs.frozen(kw_only=True)
class StoredFile:
    """A file or folder as a listing shows it."""

    path: str
    uri: str
    """the path as URIs are written, with ``%20`` for a space"""
    size_bytes: int
    modified_ms: int
    """epoch milliseconds"""
    is_folder: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


class Files(Protocol):
    """The files of one storage. A missing file is no error where its absence is the aim."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder of this name."""

    def children(self, path: str) -> list[StoredFile]:
        """Return what is directly in a folder, sorted; nothing if the folder is missing."""

    def matching(self, folder: str, pattern: str) -> list[StoredFile]:
        """Return what matches a pattern below a folder, sorted: ``*/*/name-*``."""

    def all_files(self, folder: str) -> Iterator[StoredFile]:
        """Yield the files of a folder and of all folders in it."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in the same storage. Raises: OSError."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it."""

    def read_text(self, path: str) -> str | None:
        """Return the content of a small file; None if it is missing."""

    def create_text(self, path: str, text: str) -> bool:
        """Make a small file as a whole. Returns: False if it exists already; it stays."""

    def replace_text(self, path: str, text: str) -> None:
        """Make a small file, or replace it: a reader finds a whole file, or for a moment none."""


def is_hidden(name: str) -> bool:
    """Return whether readers of a folder skip a name, as Spark, Arrow and Hive do."""
    return name.startswith(("_", "."))
