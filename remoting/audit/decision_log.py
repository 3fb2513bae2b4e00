"""The queues between the doors of a server and the files of its audit log.

A door adds an entry and goes on; a task hands what has gathered to a thread, which makes lines of
it and writes them. Allowed requests and refusals have a queue and a file each, so that refused
requests, of which a stranger can make any number, push no administrative request out.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

from triomq.remoting.audit.audit_entry import AuditEntry, time_text
from triomq.remoting.audit.audit_settings import AuditSettings
from triomq.remoting.audit.rotated_file import RotatedFile
from triomq.remoting.core.file_lock import try_lock
from triomq.remoting.core.log_limit import LogLimit
from triomq.remoting.core.open_files import explained
from triomq.remoting.core.settings import ConfigError

_log = logging.getLogger(__name__)

_FIX = "name a file in an existing folder that this program may write"
QUEUE_MAX = 10_000
"""Entries that may wait for the disk, in each of the two queues; further ones are dropped."""
GATHER_SECONDS = 0.2
LAST_WRITE_SECONDS = 5.0
"""How long a stopping server waits for the disk."""


@attrs.define(eq=False)
class LineQueue:
    """Entries that wait for one file."""

    file: RotatedFile
    server: str
    waiting: list[tuple[float, AuditEntry]] = attrs.field(factory=list, init=False)
    lost: int = attrs.field(default=0, init=False)
    """Entries that were dropped since the last line; the next line says so."""

    def write(self, batch: Sequence[tuple[float, AuditEntry]], lost: int, now: float) -> None:
        """Write a batch, after a line about lost entries. Blocks. Raises: OSError."""
        lines = [decision.line(seconds, self.server) for seconds, decision in batch]
        if lost:
            gap = f'{{"time": "{time_text(now)}", "lost": {lost}}}\n'
            lines.insert(0, gap.encode())
        self.file.append(lines)


@attrs.define(eq=False)
class DecisionLog:
    """The audit log of one server. ``sample_every``: see ``sampled``."""

    allowed: LineQueue
    refused: LineQueue
    sample_every: int
    queue_max: int = QUEUE_MAX
    clock: Callable[[], float] = lambda: time.time()
    counts: Counter[str] = attrs.field(factory=Counter, init=False)
    """Entries that were ``written``, ``dropped`` (full queue) or ``failed`` (disk)."""
    limit: LogLimit = attrs.field(factory=LogLimit, init=False)
    _turn: int = attrs.field(default=0, init=False)
    _noted: trio.Event = attrs.field(factory=trio.Event, init=False)
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def sampled(self) -> bool:
        """Return True once in ``sample_every`` calls, never if that is 0. Checkpoint: never."""
        if not self.sample_every:
            return False
        self._turn += 1
        if self._turn < self.sample_every:
            return False
        self._turn = 0
        return True

    def note(self, decision: AuditEntry) -> None:
        """Add an entry; drop it if the disk does not keep up. Checkpoint: never."""
        queue = self.allowed if decision.allowed else self.refused
        if len(queue.waiting) >= self.queue_max:
            queue.lost += 1
            self.counts["dropped"] += 1
            return
        queue.waiting.append((self.clock(), decision))
        self._noted.set()

    async def run(self) -> None:
        """Write entries until ``close``, then those that are left; shielded, since a cancelled
        write would go on in its thread while the server ends.
        """
        with self._scope:
            while not self._closing.is_set():
                await self._noted.wait()
                with trio.move_on_after(GATHER_SECONDS):
                    await self._closing.wait()
                self._noted = trio.Event()
                await self._write()
            await self._write()

    def open(self) -> None:
        """Make ready for ``run``. Checkpoint: never."""
        self._closing, self._scope = trio.Event(), trio.CancelScope(shield=True)

    def close(self) -> None:
        """Let ``run`` write what waits, for a limited time, and end. Checkpoint: never."""
        self._closing.set()
        self._scope.deadline = trio.current_time() + LAST_WRITE_SECONDS
        self._noted.set()

    async def _write(self) -> None:
        for queue in (self.allowed, self.refused):
            batch, lost = queue.waiting, queue.lost
            if not batch:
                continue
            queue.waiting, queue.lost = [], 0
            try:
                await trio.to_thread.run_sync(
                    queue.write, batch, lost, self.clock(), abandon_on_cancel=True
                )
            except OSError as error:
                queue.lost += lost + len(batch)
                self.counts["failed"] += len(batch)
                self.limit.warning(
                    _log, "the audit log %s lost entries: %s", queue.file.path, explained(error)
                )
            else:
                self.counts["written"] += len(batch)


def outcomes(log: DecisionLog) -> Iterator[tuple[str, int]]:
    """Yield (outcome, number of entries) for a metric."""
    for outcome in ("written", "dropped", "failed"):
        yield outcome, log.counts[outcome]


def open_audit(settings: AuditSettings, server: str) -> DecisionLog | None:
    """Return the audit log, None without ``auditLogPath``; entries wait until ``writing``.

    *server*: the name of this server in each line. Raises: ConfigError.
    """
    if not settings.path:
        return None
    path = Path(settings.path).expanduser()
    beside = path.with_name(f"{path.stem}-refused{path.suffix}")
    queues = [
        LineQueue(RotatedFile(each, settings.bytes_max, settings.files), server)
        for each in (path, beside)
    ]
    for queue in queues:
        try:
            queue.file.check()
        except OSError as error:
            fix = _FIX
            if error.errno == errno.ENOENT:
                fix = f"make the folder {path.parent}, or name a file in another one"
            raise ConfigError(
                "auditLogPath", f"cannot write {queue.file.path}: {explained(error)}", fix
            ) from None
    return DecisionLog(queues[0], queues[1], settings.sample_every)


@asynccontextmanager
async def writing(log: DecisionLog | None) -> AsyncIterator[None]:
    """Write the entries of *log* during the block, and those that are left at its end.

    Raises: ConfigError if another server writes these files.
    """
    if log is None:
        yield
        return
    with _locked(log.allowed.file.path):
        async with trio.open_nursery() as nursery:
            log.open()
            nursery.start_soon(log.run, name="audit-log")
            try:
                yield
            finally:
                log.close()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other servers from the files: each would rotate what the other one writes.

    The lock is a file of its own, since the files themselves may be moved away at any time.

    Raises: ConfigError.
    """
    beside = path.with_name(f"{path.name}.lock")
    try:
        file = os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT, 0o600), "wb")
    except OSError as error:
        raise ConfigError(
            "auditLogPath", f"cannot write {beside}: {explained(error)}", _FIX
        ) from None
    with file:
        try:
            free = try_lock(file.fileno())
        except OSError as error:
            _log.warning("%s cannot be locked: %s", beside, explained(error))
            free = True
        if not free:
            raise ConfigError(
                "auditLogPath",
                f"another server writes {path}: their lines and rotations would mix",
                "give each server an auditLogPath of its own",
            )
        yield
