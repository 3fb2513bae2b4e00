"""The error that keeps a name server from starting, and its exit code.

Configuration raises ConfigError.
"""

from __future__ import annotations

from pathlib import Path

from triomq.remoting.core.process import ExitCode, ExitCodes


class KvFileError(Exception):
    """The file of the key-value table cannot be read or written: *path*, *reason*, *fix*."""

    def __init__(self, path: Path, reason: str, fix: str) -> None:
        super().__init__(f"{path}: {reason}; {fix}")
        self.path = path
        self.reason = reason
        self.fix = fix


EXIT_CODES: ExitCodes = {KvFileError: ExitCode.STORE_DAMAGED}
