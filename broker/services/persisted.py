"""Tables that outlive the process: JSON files in the layout of a Java broker, each replaced as a whole (`atomic_file`) by one saver task.

Source: common/ConfigManager.java.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import msgspec
import trio

from triomq.broker.store.disk import Disk
from triomq.remoting.atomic_file import DamagedFile, read_file, replace_file

logger = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_SECONDS = 5.0
FINAL_SAVE_SECONDS = 10.0


class DamagedTable(Exception):
    """Neither a table file nor its backup can be read.  The message names both and the way out."""


def load_table(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Return the decoded table, from the backup if need be; None when there is neither (a new broker).

    Raises:
        DamagedTable: something is there but nothing of it can be used.
    """
    try:
        return read_file(path, decode)
    except DamagedFile as error:
        raise DamagedTable(f"{error}: restore one of them, or move both away to start with an empty table") from None


def encode_pretty(table: Mapping[str, Any], *, depth: int = 2) -> bytes:
    """Encode as Java does it, tab-indented, but one entry per line from ``depth`` on: a table of 100,000 rows must not stall the loop.

    Integer keys come out quoted: valid JSON, and Java's reader takes them.
    """
    lines: list[bytes] = []
    write_member(lines, table, depth, b"")
    return b"".join(lines) + b"\n"


def write_member(out: list[bytes], value: Any, depth: int, indent: bytes) -> None:
    if depth == 0 or not isinstance(value, Mapping) or not value:
        out.append(msgspec.json.encode(value))
        return
    inner = indent + b"\t"
    separator = b"{\n"
    for key, member in value.items():
        out.append(separator + inner + msgspec.json.encode(str(key)) + b":")
        write_member(out, member, depth - 1, inner)
        separator = b",\n"
    out.append(b"\n" + indent + b"}")


def no_saver_yet() -> None:
    """Changes before the saver runs are found by it at its start."""


@attrs.define(eq=False)
class PersistedTable:
    """One file: how to encode it, how long changes may gather, and how far the disk has come."""

    path: Path
    encode: Callable[[], bytes]
    gather_seconds: float = 0.0
    changes: int = 0
    changes_saved: int = 0
    due: float | None = None
    failing: bool = False
    on_change: Callable[[], None] = no_saver_yet
    _saved: trio.Event = attrs.field(factory=trio.Event)

    @property
    def dirty(self) -> bool:
        return self.changes != self.changes_saved

    @property
    def unsaved(self) -> bool:
        """True while a save is due and can be expected soon: worth waiting for."""
        return self.changes != self.changes_saved and not self.failing

    def touch(self) -> None:
        """Note a change: the saver will write the table ``gather_seconds`` after the first one."""
        self.changes += 1
        self.on_change()

    async def wait_saved(self) -> None:
        """Return when every change so far is on disk.  The caller sets the deadline."""
        wanted = self.changes
        while self.changes_saved < wanted:
            await self._saved.wait()

    def note_saved(self, changes: int) -> None:
        self.changes_saved = changes
        self.due = None
        self.failing = False
        saved, self._saved = self._saved, trio.Event()
        saved.set()


@attrs.define(eq=False)
class TableSaver:
    """The one task that writes tables.  Cancelling it saves nothing more; an orderly stop calls ``save_all`` afterwards."""

    tables: tuple[PersistedTable, ...]
    disk: Disk = attrs.field(factory=Disk)
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _writer: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    """One write at a time: a thread that was abandoned keeps its place until its file is complete."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        for table in self.tables:
            table.on_change = self.wake_up
        task_status.started()
        while True:
            now = trio.current_time()
            for table in self.tables:
                if table.dirty and table.due is None:
                    table.due = now + table.gather_seconds
            next_due = min((table.due for table in self.tables if table.due is not None), default=float("inf"))
            if next_due <= now:
                await self.save_due(now)
                continue
            self._wake = trio.Event()
            with trio.move_on_at(next_due):
                await self._wake.wait()

    def wake_up(self) -> None:
        self._wake.set()

    async def save_due(self, now: float) -> None:
        for table in self.tables:
            if table.due is not None and table.due <= now:
                await self.save(table)

    async def save_all(self) -> None:
        """The last save, after ``run`` has ended.  A disk that does not answer does not keep the broker from stopping."""
        with trio.move_on_after(FINAL_SAVE_SECONDS) as scope:
            for table in self.tables:
                if table.dirty:
                    await self.save(table)
        if scope.cancelled_caught:
            logger.error("saving the tables took longer than %g s; the last changes may be lost", FINAL_SAVE_SECONDS)

    async def save(self, table: PersistedTable) -> bool:
        """Write one table in a thread.  A failure is logged and tried again later."""
        changes = table.changes
        content = table.encode()
        try:
            await trio.to_thread.run_sync(replace_file, table.path, content, self.disk, abandon_on_cancel=True, limiter=self._writer)
        except OSError as error:
            logger.error("cannot save %s: %s; next try in %g s", table.path, error, RETRY_SECONDS)
            table.due = trio.current_time() + RETRY_SECONDS
            table.failing = True
            return False
        table.note_saved(changes)
        return True
