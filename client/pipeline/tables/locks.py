"""Which process may write? The one that has the newest lock in the checkpoint.

A lock is a file that is never changed: its name is a number, its content says who has made it. To
take over from a process that has ended is to make the file of the next number; two processes that
try it at once cannot both succeed. The owner changes a second file, the beat, every few seconds:
a process on another machine reads it for a while to know whether the owner lives. No clocks are
compared. The owner checks its lock before each commit: a process that has slept through a takeover
commits nothing.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import attrs

from triomq.client.pipeline.core.errors import PipelineError
from triomq.client.pipeline.tables.files import Files

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
POLL_SECONDS = 1.0
POLLS = 20
"""reads of a beat that does not change before its owner counts as dead: four beats"""


class LockHeld(PipelineError):
    """Another process has the lock."""


class LockLost(PipelineError):
    """Another process has taken the lock over."""


@attrs.frozen(kw_only=True)
class LockOwner:
    """A process, as its lock describes it."""

    run: str
    host: str
    process: int
    machine: str
    """host and namespace of process ids; empty where processes cannot be told apart"""
    birth: str
    """when the process began, in ticks of its machine: ids of processes come again"""
    since: str
    """when the lock was made, in UTC, for people"""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} (since {self.since})"


@attrs.frozen
class WriteLock:
    """The right to write to the tables of a query."""

    run: str = attrs.field(factory=lambda: secrets.token_hex(6))
    """names what this run writes before it commits"""
    check: Callable[[], None] = lambda: None
    """Raises: LockLost."""


def this_process() -> LockOwner:
    """Return this process as the owner of a new lock."""
    host = socket.gethostname()
    try:
        machine = f"{host} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        machine = ""
    return LockOwner(
        run=secrets.token_hex(6),
        host=host,
        process=os.getpid(),
        machine=machine,
        birth=birth_of(os.getpid()),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def birth_of(process: int) -> str:
    """Return when a process of this machine began; empty if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    state, *fields = text.rpartition(") ")[2].split()
    return "" if state == "Z" else fields[18]


class LockFile:
    """The locks of one folder, as one process sees them."""

    def __init__(
        self,
        files: Files,
        folder: str,
        owner: LockOwner,
        *,
        polls: int = POLLS,
        sleep: Callable[[float], None] = time.sleep,
        births: Callable[[int], str] = birth_of,
    ) -> None:
        self._files = files
        self._folder = folder
        self._owner = owner
        self._polls = polls
        self._sleep = sleep
        self._births = births
        self._number = 0
        self._beats = 0

    def take(self) -> None:
        """Make the newest lock. Raises: LockHeld."""
        while True:
            last = self._newest()
            if last:
                self._check_is_over(last)
            self._number = last + 1
            text = json.dumps(attrs.asdict(self._owner))
            if self._files.create_text(self._lock(self._number), text):
                break
        for number in self._numbers():
            if number < self._number:
                self._delete(number)
        self.check()  # a storage that lets two processes create one name keeps the last content

    def check(self) -> None:
        """Check that this is still the newest lock. Raises: LockLost."""
        found = self._read(self._newest())
        if found is None or found.run != self._owner.run:
            raise LockLost(
                f"{found or 'another process'} has taken {self._folder} over from this one, which"
                " was silent; this run ends and has committed nothing since"
            )

    def beat(self) -> None:
        """Show that the owner lives."""
        self._beats += 1
        self._files.replace_text(self._beat(self._number), f"{self._owner.run} {self._beats}")

    def release(self) -> None:
        """Take the lock away, if it is still this process's."""
        try:
            self.check()
        except LockLost:
            return
        self._delete(self._number)

    def _check_is_over(self, number: int) -> None:
        """Return when the owner of a lock has ended. Raises: LockHeld."""
        owner = self._read(number)
        if owner is None:
            return
        if owner.machine and owner.machine == self._owner.machine:
            if self._births(owner.process) == owner.birth:
                raise self._held(owner)
            return
        seen: set[str] = set()
        for _ in range(self._polls):
            beat = self._files.read_text(self._beat(number))
            seen |= set() if beat is None else {beat}
            if len(seen) > 1:
                raise self._held(owner)
            self._sleep(POLL_SECONDS)
        if not self._polls:
            raise self._held(owner)
        logger.warning("%s does not move any more: %s takes over", owner, self._owner)

    def _held(self, owner: LockOwner) -> LockHeld:
        return LockHeld(
            f"{owner} has {self._folder}; stop that process, or use another checkpoint and other"
            " tables"
        )

    def _numbers(self) -> list[int]:
        names = [file.name for file in self._files.children(self._folder)]
        return [int(name) for name in names if name.isdecimal()]

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _read(self, number: int) -> LockOwner | None:
        text = self._files.read_text(self._lock(number)) if number else None
        if text is None:
            return None
        try:
            return LockOwner(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise PipelineError(
                f"{self._lock(number)} is not a lock ({error}); if no process runs the pipeline,"
                " delete the file"
            ) from None

    def _lock(self, number: int) -> str:
        return f"{self._folder}/{number:012}"

    def _beat(self, number: int) -> str:
        return f"{self._folder}/beat-{number:012}"

    def _delete(self, number: int) -> None:
        self._files.delete(self._beat(number))
        self._files.delete(self._lock(number))


@contextmanager
def locked(
    files: Files, checkpoint: str, purpose: str, *, polls: int = POLLS
) -> Iterator[WriteLock]:
    """Have the lock of a checkpoint for one purpose, as ``run``; a thread shows that we live.

    Raises: LockHeld if another process has it.
    """
    lock = LockFile(files, f"{checkpoint}/locks/{purpose}", owner := this_process(), polls=polls)
    lock.take()
    over = threading.Event()

    def keep_beating() -> None:
        while True:
            try:
                lock.beat()
            except Exception as error:  # the next beat may arrive; ``check`` finds a takeover
                logger.warning("%s is not written: %s", f"{checkpoint}/locks/{purpose}", error)
            if over.wait(BEAT_SECONDS):
                return

    beating = threading.Thread(target=keep_beating, name=f"lock of {purpose}", daemon=True)
    beating.start()
    try:
        yield WriteLock(owner.run, lock.check)
    finally:
        over.set()
        beating.join()
        lock.release()
