"""One slave, as its master sees it: what it asked for, what it has, what to send next.

::

    waiting ── report r ──▶ transferring ── silence, wrong report ──▶ (error: the connection closes)

SANS-IO: the caller passes the clock and the bounds of the log. A frame has at most
haTransferBatchSize bytes and never crosses the end of a segment. With r = 0 the transfer begins at
the last segment (Java's rule), or at the beginning of the log for a slave of TrioMQ. If r is beyond
the end of the log, LogsDiffer is raised; if it is before the beginning, the slave gets heartbeats
only, since what it needs is deleted.

Source: store/ha/DefaultHAConnection.java, 4.9: HAConnection.java.
"""

from __future__ import annotations

import attrs
import msgspec

from triomq.broker.replication.errors import LinkBroken, LinkSilent, LogsDiffer
from triomq.broker.replication.transfer import HELLO, NAME_MAX, ReportDecoder, frame_head

TLS_RECORD = 0x1603
"""The first two bytes of a TLS handshake; as the end of a log it would be 1.5 million TB."""


@attrs.frozen(kw_only=True)
class LinkRules:
    """The rules of both ends of a connection; seconds and bytes."""

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
    """State of one connection. ``next_offset`` is None until the first report."""

    rules: LinkRules
    peer: str
    """The slave's address, for people."""
    heard: float
    """Time of the last input."""
    wrote: float = attrs.field(default=0.0, init=False)
    next_offset: int | None = attrs.field(default=None, init=False)
    started_at: int = attrs.field(default=0, init=False)
    acknowledged: int = attrs.field(default=-1, init=False)
    """End of the slave's log; -1: not reported yet."""
    hellos: int = attrs.field(default=0, init=False)
    name: int | None = attrs.field(default=None, init=False)
    """The number that a slave of TrioMQ has chosen when it started."""
    _reports: ReportDecoder = attrs.field(factory=ReportDecoder, init=False)

    @property
    def kind(self) -> str:
        """Whose slave it is, for the log."""
        return "of TrioMQ" if self.is_ours else "of RocketMQ"

    @property
    def is_ours(self) -> bool:
        """Whether the slave understands frames beyond Java's."""
        return self.hellos > 0

    @property
    def counts(self) -> bool:
        """Whether the slave's reports count as copies.

        A slave of TrioMQ names itself once it has found the two logs to be the same. Before that,
        its log may have parted from this one, or its old connection may still count.
        """
        return self.next_offset is not None and (self.name is not None or not self.is_ours)

    @property
    def copied(self) -> int:
        """End of what a sender may count as this slave's copy.

        It is 0 until the slave has acknowledged bytes that were sent over this connection. The
        first report only says where to go on: any peer can claim to have the log, although no byte
        was sent to it.
        """
        return self.acknowledged if self.acknowledged > self.started_at else 0

    def receive(self, data: bytes | memoryview, log: LogBounds, now: float) -> None:
        """Take in reports. Raises: LinkBroken, LogsDiffer."""
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
                raise LinkBroken(
                    f"it reports {value}, but only what lies before {self.next_offset} was sent"
                    " to it"
                )
            else:
                self.acknowledged = max(self.acknowledged, value)

    def _begin(self, offset: int, log: LogBounds, now: float) -> None:
        if offset >> 48 == TLS_RECORD:
            raise LinkBroken(
                "it speaks TLS, and haTls=false here; write haTls alike at all brokers of this"
                " brokerName"
            )
        if offset < 0:
            raise LinkBroken(f"its first report is {offset}: this is not a slave")
        if offset > log.end:
            raise LogsDiffer(
                f"its log ends at {offset}, ours at {log.end}: it has messages that this master has"
                " not (any more); to keep them, make it the master; to drop them, stop it, move"
                " its store directory away and start it: it copies everything again"
            )
        self.acknowledged = self.next_offset = offset
        if offset == 0:
            last = log.end - log.end % self.rules.segment_size
            self.next_offset = log.first if self._from_first() else max(last, log.first)
        self.started_at = self.next_offset
        self.wrote = now

    def _from_first(self) -> bool:
        """Return whether an empty slave gets the whole log."""
        return self.hellos == 1

    def take_greeting(self, log: LogBounds) -> bytes:
        """Return what to send before the slave's first report, once. Nothing in classic mode."""
        return b""

    def head(self, start: int, size: int) -> bytes:
        """Return the head of a frame."""
        return frame_head(start, size)

    def needs_from(self) -> int:
        """Return the smallest log offset that must be sent again if the connection breaks now."""
        return max(self.acknowledged, self.started_at)

    def too_far_behind(self, log: LogBounds) -> bool:
        """Return whether the bytes that the slave needs next have been deleted."""
        return self.next_offset is not None and self.next_offset < log.first

    def take_frames(self, log: LogBounds, now: float, bytes_max: int) -> list[tuple[int, int]]:
        """Return the next frames as [start, end) of the log; they count as sent.

        A heartbeat is an empty range. An empty list: nothing to send now.
        """
        start = self.next_offset
        if start is None:
            return []
        frames: list[tuple[int, int]] = []
        if start >= log.first:
            stop = min(log.end, start + bytes_max)
            while start < stop:
                end = self._frame_end(start, stop)
                frames.append((start, end))
                start = end
            self.next_offset = start
        if not frames and now >= self.wrote + self.rules.heartbeat_seconds:
            frames.append((start, start))
        if frames:
            self.wrote = now
        return frames

    def _frame_end(self, start: int, stop: int) -> int:
        segment_end = start - start % self.rules.segment_size + self.rules.segment_size
        return min(stop, segment_end, start + self.rules.batch_bytes)

    def next_deadline(self) -> float:
        """Return when to call ``take_frames`` and ``check_silence`` although nothing happened."""
        silent = self.heard + self.rules.silence_seconds
        return (
            silent
            if self.next_offset is None
            else min(silent, self.wrote + self.rules.heartbeat_seconds)
        )

    def check_silence(self, now: float) -> None:
        """Check that the slave has reported in time. Raises: LinkSilent."""
        if now >= self.heard + self.rules.silence_seconds:
            raise LinkSilent(
                f"it has reported nothing for {self.rules.silence_seconds:g} s"
                " (haHousekeepingInterval)"
            )
