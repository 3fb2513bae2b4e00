"""A file of lines that is rotated by its size; the oldest files are removed.

It is opened for each write, so an operator may move it away at any time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs


@attrs.define(eq=False)
class RotatedFile:
    """``path``, then ``path.1``, the newest of the older ones, up to ``files`` together.

    New files can be read by their owner only.
    """

    path: Path
    bytes_max: int
    files: int
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    """The last write of a server may begin while the one before it hangs."""
    _begun: bool = attrs.field(default=False, init=False)

    def check(self) -> None:
        """Make sure that the file can be written. Raises: OSError."""
        os.close(self._opened())

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines, each with its end. Blocks: call it in a thread. Raises: OSError."""
        with self._lock:
            self._append(lines)

    def _append(self, lines: Sequence[bytes]) -> None:
        at = 0
        while at < len(lines):
            with os.fdopen(self._opened(), "ab") as file:
                size = file.seek(0, os.SEEK_END)
                first = at
                if not self._begun and self._is_torn(size):
                    file.write(b"\n")
                self._begun = True
                while at < len(lines) and (not size or size + len(lines[at]) <= self.bytes_max):
                    size += len(lines[at])
                    at += 1
                file.writelines(lines[first:at])
            if at < len(lines):
                self._rotate()

    def _opened(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _is_torn(self, size: int) -> bool:
        """Whether a crash left half a line at the end."""
        if not size:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _rotate(self) -> None:
        number = max(1, self.files - 1)
        while self._older(number).exists():  # more than one if there were more files once
            self._older(number).unlink()
            number += 1
        for number in range(self.files - 2, 0, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))
        if self.files > 1:
            self.path.replace(self._older(1))
        else:
            self.path.unlink()
