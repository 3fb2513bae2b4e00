"""The disk of a simulated Raft node: what is durable, and what a crash leaves of the rest."""

from __future__ import annotations

import random

import attrs

from triomq.namesrv.controller.raft.events import Persist
from triomq.namesrv.controller.raft.messages import HardState, LogEntry, RaftSnapshot
from triomq.namesrv.controller.raft.state import StoredState


@attrs.define
class RaftDisk:
    """Three files: hard state, snapshot, log. Each is written in order; the log is cut only when
    the snapshot that covers it is durable.
    """

    snapshot: RaftSnapshot
    hard_state: HardState = attrs.field(factory=HardState)
    entries: list[LogEntry] = attrs.field(factory=list)
    pending: list[Persist] = attrs.field(factory=list)
    replaced: bool = False
    """Whether it is there in place of one that was lost."""

    def stored(self) -> StoredState:
        return StoredState(self.hard_state, self.snapshot, tuple(self.entries))

    def sync(self, count: int) -> int:
        """Make the first writes durable; return the sequence number of the last of them."""
        for write in self.pending[:count]:
            self._write_hard_state(write)
            self._write_snapshot(write)
            self._write_log(write, len(write.entries))
        sequence = self.pending[count - 1].sequence
        del self.pending[:count]
        return sequence

    def crash(self, chance: random.Random) -> None:
        """Keep any first part of what was not durable, of each file another one."""
        writes, self.pending = self.pending, []
        for write in writes[: chance.randint(0, len(writes))]:
            self._write_hard_state(write)
        snapshots = chance.randint(0, len(writes))
        for write in writes[:snapshots]:
            self._write_snapshot(write)
        for number, write in enumerate(writes[: chance.randint(0, len(writes))]):
            if write.snapshot is not None and number >= snapshots:
                break
            torn = chance.random() < 0.3
            self._write_log(write, chance.randint(0, len(write.entries)) if torn else None)
            if torn:
                break

    def has(self, index: int, term: int) -> bool:
        """Return whether this disk surely has an entry, itself or in its snapshot. The leader may
        count what a disk had that was lost, until its node follows again.
        """
        if index <= self.snapshot.index or (self.replaced and not self.hard_state.term):
            return True
        place = index - self.entries[0].index if self.entries else -1
        return 0 <= place < len(self.entries) and self.entries[place].term == term

    @property
    def last_index(self) -> int:
        return self.entries[-1].index if self.entries else self.snapshot.index

    def _write_hard_state(self, write: Persist) -> None:
        if write.hard_state is not None:
            self.hard_state = write.hard_state

    def _write_snapshot(self, write: Persist) -> None:
        if write.snapshot is not None:
            self.snapshot = write.snapshot

    def _write_log(self, write: Persist, count: int | None) -> None:
        """``count``: entries that reach the disk, None for all."""
        if write.reset:
            self.entries = []
        elif write.snapshot is not None:
            at = write.snapshot.index
            self.entries = [entry for entry in self.entries if entry.index > at]
        if write.entries:
            first = write.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first]
            self.entries += write.entries[:count]
