"""``SourceChanges``: notices that Python files below a directory have changed, by asking again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import trio

POLL_SECONDS = 0.5
FILES_MAX = 20_000
"""files and directories that are read; more are left out"""
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")


@attrs.define(eq=False)
class SourceChanges:
    """The ``.py`` files below ``directory``, without hidden directories and installed packages."""

    directory: Path
    _seen: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)

    async def wait(self) -> str:
        """Wait until a file has changed, came or went since the last call; return its name.

        Checkpoint: always.
        """
        if not self._seen:
            self._seen = await trio.to_thread.run_sync(self._states)
        while True:
            await trio.sleep(POLL_SECONDS)
            before, self._seen = self._seen, await trio.to_thread.run_sync(self._states)
            for name in before.keys() | self._seen.keys():
                if before.get(name) != self._seen.get(name):
                    return str(Path(name).relative_to(self.directory))

    def _states(self) -> dict[str, tuple[int, int]]:
        """Return name → time of the last change and size."""
        found = {}
        for name in self._names():
            try:
                state = os.stat(name)
            except OSError:  # it went meanwhile
                continue
            found[name] = state.st_mtime_ns, state.st_size
        return found

    def _names(self) -> Iterator[str]:
        left = FILES_MAX
        for place, directories, files in os.walk(self.directory):
            directories[:] = [
                name for name in directories if not name.startswith(".") and name not in _LEFT_OUT
            ]
            left -= len(directories) + len(files)
            if left < 0:
                return
            yield from (os.path.join(place, name) for name in files if name.endswith(".py"))
