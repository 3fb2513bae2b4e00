"""The log in memory: a snapshot, and the entries behind it.

Invariant: ``entries[i].index == snapshot.index + 1 + i``; terms never fall.
"""

from __future__ import annotations

from collections.abc import Sequence

from triomq.namesrv.controller.raft.configuration import Configuration, decode_configuration
from triomq.namesrv.controller.raft.messages import EntryKind, LogEntry, RaftSnapshot


class RaftLog:
    """``snapshot`` has index 0 and no data before the first one was taken."""

    def __init__(self, snapshot: RaftSnapshot, entries: Sequence[LogEntry] = ()) -> None:
        self.snapshot = snapshot
        self.entries: list[LogEntry] = []
        self.configurations: list[tuple[int, Configuration]] = [
            (snapshot.index, snapshot.configuration)
        ]
        """Configurations with the index of their entries; the first is that of the snapshot."""
        self.append(self._continuing(snapshot, entries))

    @staticmethod
    def _continuing(snapshot: RaftSnapshot, entries: Sequence[LogEntry]) -> Sequence[LogEntry]:
        """Return the stored entries behind a snapshot; none if they do not continue it, as after a
        crash between the writing of a snapshot and the cut of the log.
        """
        behind = [entry for entry in entries if entry.index > snapshot.index]
        if not behind:
            return ()
        at = next((entry for entry in entries if entry.index == snapshot.index), None)
        if at is not None and at.term != snapshot.term:
            return ()
        if behind[0].index != snapshot.index + 1:
            raise ValueError(
                f"log begins at {behind[0].index}, behind a snapshot of {snapshot.index}"
            )
        return behind

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.snapshot.term

    @property
    def configuration(self) -> Configuration:
        """The newest one, committed or not: it is valid from its entry on."""
        return self.configurations[-1][1]

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration that is valid at an index, which the snapshot does not cover."""
        return next(found for at, found in reversed(self.configurations) if at <= index)

    def term_at(self, index: int) -> int:
        """Return the term of an entry, -1 if the log has none there (any more)."""
        place = index - self.snapshot.index - 1
        if place == -1:
            return self.snapshot.term
        return self.entries[place].term if 0 <= place < len(self.entries) else -1

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Return whether a candidate's log has all that this one could have committed."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def between(self, first: int, last: int) -> tuple[LogEntry, ...]:
        """Return the entries from ``first`` to ``last``, both included."""
        start = self.snapshot.index + 1
        return tuple(self.entries[first - start : max(0, last + 1 - start)])

    def batch(self, first: int, count_max: int, bytes_max: int) -> tuple[LogEntry, ...]:
        """Return entries from ``first`` on within both limits, at least one if there is one."""
        taken: list[LogEntry] = []
        size = 0
        for entry in self.between(first, first + count_max - 1):
            size += len(entry.data)
            if taken and size > bytes_max:
                break
            taken.append(entry)
        return tuple(taken)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries, in place of those that are there from the first index on."""
        if not entries:
            return
        first = entries[0].index
        if not self.snapshot.index < first <= self.last_index + 1:
            raise ValueError(
                f"entry {first} does not continue a log that ends at {self.last_index}"
            )
        del self.entries[first - self.snapshot.index - 1 :]
        while self.configurations[-1][0] >= first:
            self.configurations.pop()
        self.entries += entries
        self.configurations += [
            (entry.index, decode_configuration(entry.data))
            for entry in entries
            if entry.kind is EntryKind.CONFIGURATION
        ]

    def compact(self, snapshot: RaftSnapshot) -> bool:
        """Put a snapshot in place of the entries that it covers; return whether any later entries
        were dropped too, since they do not continue it.
        """
        reset = self.term_at(snapshot.index) != snapshot.term
        self.entries = [] if reset else self.entries[snapshot.index - self.snapshot.index :]
        later = [] if reset else [at for at in self.configurations if at[0] > snapshot.index]
        self.configurations = [(snapshot.index, snapshot.configuration), *later]
        self.snapshot = snapshot
        return reset
