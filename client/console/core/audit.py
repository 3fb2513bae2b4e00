"""The audit file: a line of JSON for every login and every change, flushed to the disk."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import attrs
import trio

from triomq.remoting.core.settings import ConfigError


@attrs.define(eq=False)
class AuditLog:
    """Appends to one file. The file may be moved away at any time: it is opened for every line."""

    path: Path | None
    """None: no audit"""

    def check(self) -> None:
        """Make sure that the file can be written. Raises: ConfigError."""
        if self.path is None:
            return
        try:
            self._append("")
        except OSError as error:
            raise ConfigError(
                "option --audit", f"cannot write {self.path}: {error}", "name a writable file"
            ) from None

    async def record(
        self,
        *,
        user: str,
        address: str,
        action: str,
        target: str,
        outcome: str,
        before: object = None,
        after: object = None,
        error: str | None = None,
    ) -> None:
        """Write one line.

        A change has two: outcome ``begun``, then ``done``, ``failed`` or ``unknown`` (time was up).

        Raises: OSError.
        """
        if self.path is None:
            return
        moment = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        line = {
            "time": moment,
            "user": user,
            "address": address,
            "action": action,
            "target": target,
            "outcome": outcome,
            "before": before,
            "after": after,
            "error": error,
        }
        text = json.dumps({key: value for key, value in line.items() if value is not None})
        # A line must not be lost because its page is cancelled.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._append, text + "\n")

    def _append(self, text: str) -> None:
        assert self.path is not None
        opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(opened, text.encode())
            if text:
                os.fsync(opened)
        finally:
            os.close(opened)
