"""One slave, as its master sees it: what it asked for, what it has, what to send next.  SANS-IO: the clock and the bounds of the log are given.

::

    waiting ──report r──▶ transferring ──silence, wrong report──▶ (error: the connection is closed)
       │                    frames of at most haTransferBatchSize, never across the end of a segment
       └─ r = 0: begin at the last segment (Java's rule), or at the beginning of the log for one of ours
          r > end of the log: LogsDiffer          r < beginning of the log: heartbeats only, the slave cannot be helped

Source: store/ha/DefaultHAConnection.java, 4.9: HAConnection.java.
"""

from __future__ import annotations

import attrs
import msgspec

from triomq.broker.replication.errors import LinkBroken, LinkSilent, LogsDiffer
from triomq.broker.replication.transfer import HELLO, NAME_MAX, ReportDecoder


@attrs.frozen(kw_only=True)
class LinkRules:
    """What both ends of a connection go by; seconds and bytes."""

    segment_size: int
    batch_bytes: int = 32 * 1024
    heartbeat_seconds: float = 5.0
    silence_seconds: float = 20.0


class LogBounds(msgspec.Struct, frozen=True, gc=False):
    """The log is [first, end)."""

    first: int
    end: int


@attrs.define(eq=False)
class MasterLink:
    """State of one connection.  ``next_offset`` is None until the slave has said where it is."""

    rules: LinkRules
    peer: str
    """Its address, for people."""
    heard: float
    """When something came last."""
    wrote: float = attrs.field(default=0.0, init=False)
    next_offset: int | None = attrs.field(default=None, init=False)
    started_at: int = attrs.field(default=0, init=False)
    acknowledged: int = attrs.field(default=-1, init=False)
    """End of what the slave has; -1: it has not said."""
    hellos: int = attrs.field(default=0, init=False)
    name: int | None = attrs.field(default=None, init=False)
    """The number that a slave of ours has chosen for its life."""
    _reports: ReportDecoder = attrs.field(factory=ReportDecoder, init=False)

    @property
    def is_ours(self) -> bool:
        """Whether the slave understands frames beyond Java's."""
        return self.hellos > 0

    @property
    def counts(self) -> bool:
        """Whether its reports count as copies.

        A slave of ours names itself once it has found the two logs to be the same. Before that it may be one whose log has parted from this one, or one that
        has come back while its old connection still counts.
        """
        return self.next_offset is not None and (self.name is not None or not self.is_ours)

    def receive(self, data: bytes | memoryview, log: LogBounds, now: float) -> None:
        """Take what came.  Raises LinkBroken, LogsDiffer."""
        self.heard = now
        for value in self._reports.receive(data):
            if self.next_offset is None:
                if value == HELLO:
                    self.hellos += 1
                else:
                    self._begin(value, log, now)
            elif value <= NAME_MAX and self.is_ours:
                self.name = value
            elif not 0 <= value <= self.next_offset:
                raise LinkBroken(f"it reports {value}, but only what lies before {self.next_offset} was sent to it")
            else:
                self.acknowledged = max(self.acknowledged, value)

    def _begin(self, offset: int, log: LogBounds, now: float) -> None:
        if offset < 0:
            raise LinkBroken(f"its first report is {offset}: this is no slave")
        if offset > log.end:
            raise LogsDiffer(
                f"its log ends at {offset}, ours at {log.end}: it has messages that this master has not (any more); to keep them, make it the master; "
                "to drop them, stop it, move its store directory away and start it: it copies everything again"
            )
        self.acknowledged = self.next_offset = offset
        if offset == 0:
            last = log.end - log.end % self.rules.segment_size
            self.next_offset = log.first if self.hellos == 1 else max(last, log.first)
        self.started_at = self.next_offset
        self.wrote = now

    def needs_from(self) -> int:
        """The smallest log offset that may still have to be sent, if the connection breaks now."""
        return max(self.acknowledged, self.started_at)

    def too_far_behind(self, log: LogBounds) -> bool:
        """Whether what it needs next has been deleted."""
        return self.next_offset is not None and self.next_offset < log.first

    def take_frames(self, log: LogBounds, now: float, bytes_max: int) -> list[tuple[int, int]]:
        """The next frames as [start, end) of the log, a heartbeat as an empty one; they count as sent.  Empty: nothing to do now."""
        start = self.next_offset
        if start is None:
            return []
        frames: list[tuple[int, int]] = []
        if start >= log.first:
            stop = min(log.end, start + bytes_max)
            while start < stop:
                segment_end = start - start % self.rules.segment_size + self.rules.segment_size
                end = min(stop, segment_end, start + self.rules.batch_bytes)
                frames.append((start, end))
                start = end
            self.next_offset = start
        if not frames and now >= self.wrote + self.rules.heartbeat_seconds:
            frames.append((start, start))
        if frames:
            self.wrote = now
        return frames

    def next_deadline(self) -> float:
        """When ``take_frames`` or ``check_silence`` has something to do although nothing happened."""
        silent = self.heard + self.rules.silence_seconds
        return silent if self.next_offset is None else min(silent, self.wrote + self.rules.heartbeat_seconds)

    def check_silence(self, now: float) -> None:
        """Raises LinkSilent."""
        if now >= self.heard + self.rules.silence_seconds:
            raise LinkSilent(f"it has reported nothing for {self.rules.silence_seconds:g} s (haHousekeepingInterval)")
