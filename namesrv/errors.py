"""What keeps a name server from starting or working, as one tree, and the exit code of each.

::

    NamesrvError
    └── KvFileError      the file of the key-value table cannot be read or written

Configuration raises ConfigError.
"""

from __future__ import annotations

from pathlib import Path

from triomq.remoting.process import ExitCode, ExitCodes


class NamesrvError(Exception):
    """Base of every error of this package."""


class KvFileError(NamesrvError):
    """The key-value table's file; ``path``, ``reason`` and ``fix`` are the three parts of the message."""

    def __init__(self, path: Path, reason: str, fix: str) -> None:
        super().__init__(f"{path}: {reason}; {fix}")
        self.path = path
        self.reason = reason
        self.fix = fix


EXIT_CODES: ExitCodes = {KvFileError: ExitCode.STORE_DAMAGED}
