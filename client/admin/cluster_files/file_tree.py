"""The content of a cluster file, with the lines of its keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from triomq.client.core.errors import SettingsError

KeyPath = tuple[str, ...]


@attrs.frozen
class FileTree:
    """The maps, lists and values of a file."""

    root: Any
    lines: Mapping[KeyPath, int]
    """keys from the root to a key → its line, from 1; of JSON files none are known"""
    name: str
    """of the file, for errors"""

    def wrong(self, path: KeyPath, what: str) -> SettingsError:
        """Return an error that names the file, the line if it is known, and the path."""
        line = next(
            (self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines),
            None,
        )
        where = f"{self.name} line {line}" if line is not None else self.name
        return SettingsError(f"{where}: {'.'.join(path)}{' ' if path else ''}{what}")
