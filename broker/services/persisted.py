"""Tables that outlive the process: JSON files in the layout of a Java broker.

One saver task replaces each as a whole (``atomic_file``). Source: common/ConfigManager.java.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import attrs
import msgspec
import trio

from triomq.broker.store.io.disk import Disk
from triomq.remoting.core.atomic_file import DamagedFile, read_file, replace_file
from triomq.remoting.core.open_files import explained
from triomq.remoting.protocol.bodies.topics import DataVersion

logger = logging.getLogger(__name__)
T = TypeVar("T")

STEP_LINES = 1_000
"""Of a file that are written at once: some milliseconds."""
RETRY_SECONDS = 5.0
FINAL_SAVE_SECONDS = 10.0
SETTLE_SECONDS = 3.0
"""Longest wait of a response until the change that it reports is saved."""


class DamagedTable(Exception):
    """Neither a table file nor its backup can be read. The message names both, and the fix."""


def load_table(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """Return the decoded table, from its backup if the file is damaged; None if there are no files.

    Raises: DamagedTable, if there are files but none can be read.
    """
    try:
        return read_file(path, decode)
    except DamagedFile as error:
        raise DamagedTable(
            f"{error}: restore one of them, or move both away to start with an empty table"
        ) from None


def encode_pretty(table: Mapping[str, object], *, depth: int = 2) -> bytes:
    """Encode as Java does, indented by tabs, but from ``depth`` on with one entry per line.

    Integer keys become strings: valid JSON, and Java's reader takes them.
    """
    return b"".join(pretty_steps(table, depth=depth))


def pretty_steps(table: Mapping[str, object], *, depth: int = 2) -> Iterator[bytes]:
    """Yield the same in parts: a table of a million rows must not stall the loop.

    A member may be a function that returns pairs of keys and values: a table that is made while it
    is written.
    """
    lines: list[bytes] = []
    for _ in _write(lines, table, depth, b""):
        if len(lines) >= STEP_LINES:
            yield b"".join(lines)
            lines.clear()
    yield b"".join(lines) + b"\n"


def _write(out: list[bytes], value: object, depth: int, indent: bytes) -> Iterator[None]:
    pairs = value() if callable(value) else value.items() if isinstance(value, Mapping) else None
    if depth == 0 or pairs is None or value == {}:
        out.append(msgspec.json.encode(value))
        return
    inner = indent + b"\t"
    separator = b"{\n"
    for key, member in pairs:
        out.append(separator + inner + msgspec.json.encode(str(key)) + b":")
        if depth == 1:
            out.append(msgspec.json.encode(member))
        else:
            yield from _write(out, member, depth - 1, inner)
        separator = b",\n"
        yield
    out.append(b"{}" if separator == b"{\n" else b"\n" + indent + b"}")


class Copies(Protocol):
    """The copies of all tables that must have a change before it is answered."""

    def note_change(self) -> None: ...

    async def wait(self) -> None: ...


@attrs.define(eq=False)
class PersistedTable(abc.ABC):
    """A table with its file: how long changes may gather, and which changes the disk has."""

    private: ClassVar[bool] = False
    """Whether only the owner of the process may read the file."""

    path: Path
    gather_seconds: float = attrs.field(default=0.0, kw_only=True)
    changes: int = attrs.field(default=0, init=False)
    changes_saved: int = attrs.field(default=0, init=False)
    due: float | None = attrs.field(default=None, init=False)
    failure: str = attrs.field(default="", init=False)
    """Why the last save failed."""
    copies: Copies | None = attrs.field(default=None, init=False)
    """On a master in controller mode."""
    wake_saver: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    """The saver sets it when it starts, and finds the changes from before."""
    _saved: trio.Event = attrs.field(factory=trio.Event, init=False)

    @abc.abstractmethod
    def encode(self) -> bytes:
        """Return the content of the file."""

    def steps(self) -> Iterator[bytes]:
        """Yield the content in parts, between which other tasks run and may change the table.

        What is changed meanwhile is saved once more.
        """
        yield self.encode()

    @property
    def dirty(self) -> bool:
        return self.changes != self.changes_saved

    @property
    def unsaved(self) -> bool:
        """Whether a save is due and can be expected soon, so that waiting for it makes sense."""
        return self.dirty and not self.failure

    def touch(self) -> None:
        """Record a change: the saver writes the table ``gather_seconds`` after the first one."""
        self.changes += 1
        self.wake_saver()

    def save_soon(self) -> None:
        """Have the present changes saved, and copied, now, not when they have gathered.

        Checkpoint: never.
        """
        if self.copies is not None:
            self.copies.note_change()
        if self.unsaved:
            self.due = 0.0
            self.wake_saver()

    async def wait_saved(self) -> None:
        """Return when the disk has every present change. The caller sets the deadline."""
        wanted = self.changes
        while self.changes_saved < wanted:
            await self._saved.wait()

    async def settled(self) -> None:
        """Wait until the present changes are saved, and then until all copies have them.

        Raises: Rejected, if the copies are not there in time. Checkpoint: maybe.
        """
        await self.written()
        await self.copied()

    async def copied(self) -> None:
        """The second half of ``settled``. Raises: Rejected. Checkpoint: maybe."""
        if self.copies is not None:
            await self.copies.wait()

    async def written(self) -> None:
        """Wait until the present changes are saved, up to ``SETTLE_SECONDS``.

        Does not wait if saves fail. Checkpoint: maybe.
        """
        if self.unsaved:
            with trio.move_on_after(SETTLE_SECONDS):
                await self.wait_saved()

    def note_saved(self, changes: int) -> None:
        self.changes_saved = changes
        self.due = None
        if self.failure:
            logger.info("%s is saved again", self.path)
            self.failure = ""
        saved, self._saved = self._saved, trio.Event()
        saved.set()


@attrs.define(eq=False)
class TableSaver:
    """The only task that writes tables.

    After a cancellation it saves nothing more; an orderly stop then calls ``save_all``.
    """

    tables: tuple[PersistedTable, ...]
    disk: Disk = attrs.field(factory=Disk)
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _writer: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))
    """One write at a time: an abandoned thread keeps its place until its file is complete."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the task "saver"."""
        for table in self.tables:
            table.wake_saver = self.wake_up
        task_status.started()
        while True:
            now = trio.current_time()
            for table in self.tables:
                if table.dirty and table.due is None:
                    table.due = now + table.gather_seconds
            next_due = min(
                (table.due for table in self.tables if table.due is not None), default=float("inf")
            )
            if next_due <= now:
                for table in self.tables:
                    if table.due is not None and table.due <= now:
                        await self.save(table)
                continue
            self._wake = trio.Event()
            with trio.move_on_at(next_due):
                await self._wake.wait()

    def wake_up(self) -> None:
        self._wake.set()

    async def save_all(self) -> None:
        """Save every changed table, after ``run`` has ended.

        A disk that does not answer does not keep the broker from stopping.
        """
        with trio.move_on_after(FINAL_SAVE_SECONDS) as scope:
            for table in self.tables:
                if table.dirty:
                    await self.save(table)
        if scope.cancelled_caught:
            logger.error(
                "saving the tables took longer than %g s; the last changes may be lost",
                FINAL_SAVE_SECONDS,
            )

    async def save(self, table: PersistedTable) -> bool:
        """Write one table in a thread; return whether that worked.

        A failed save is tried again until it works, and logged once for each reason.
        """
        changes = table.changes
        parts = []
        for part in table.steps():
            parts.append(part)
            await trio.lowlevel.checkpoint()
        content = b"".join(parts)
        try:
            await trio.to_thread.run_sync(
                replace_file,
                table.path,
                content,
                self.disk,
                table.private,
                abandon_on_cancel=True,
                limiter=self._writer,
            )
        except OSError as error:
            reason = explained(error)
            if reason != table.failure:
                logger.error(
                    "cannot save %s: %s; tried again every %g s", table.path, reason, RETRY_SECONDS
                )
            table.due = trio.current_time() + RETRY_SECONDS
            table.failure = reason
            return False
        table.note_saved(changes)
        return True


@attrs.define(eq=False)
class Version:
    """The present version of one table."""

    clock_ms: Callable[[], int]
    current: DataVersion = attrs.field()
    on_bump: Callable[[], None] = attrs.field(default=lambda: None, kw_only=True)
    """Called after every change, so that slaves of TrioMQ hear of it at once."""

    @current.default
    def _fresh(self) -> DataVersion:
        return DataVersion(timestamp=self.clock_ms())

    def bump(self) -> None:
        self.current = self.current.next(self.clock_ms())
        self.on_bump()

    def enter(self, epoch: int) -> None:
        """Go on with the next version in a master's epoch: name servers prefer the newest."""
        self.current = attrs.evolve(self.current.next(self.clock_ms()), state_version=epoch)

    def load(self, saved: DataVersion | None) -> None:
        """Go on from a saved version; 4.9 releases save none with the offsets."""
        if saved is not None and saved.timestamp:
            self.current = saved
