"""The connection to the master, as its slave sees it.  SANS-IO: the clock and the end of the log are given.

::

    opening: [-1] report ──▶ following ── data: the caller appends, then reports
                                 │        heartbeat: must name our end, else LinkBroken
                                 │        hello (a master of ours): are the logs the same?  LogsDiffer if not
                                 └─ silence ──▶ LinkSilent

An empty log takes whatever comes first, as in Java; any other only what continues it.  Source: store/ha/DefaultHAClient.java, 4.9: HAService.java#HAClient.
"""

from __future__ import annotations

import attrs

from triomq.broker.replication.errors import LinkBroken, LinkSilent, LogsDiffer
from triomq.broker.replication.master_link import LinkRules
from triomq.broker.replication.transfer import (
    HELLO,
    Event,
    FrameDecoder,
    Heartbeat,
    LogData,
    MasterHello,
    report,
)


@attrs.define(eq=False)
class SlaveLink:
    """State of one connection."""

    rules: LinkRules
    expected: int | None
    """The next offset to come; None while the log is empty and nothing has come."""
    name: int
    """Below -1, and the same for the life of this process: a master of ours does not take two connections of one slave for two slaves."""
    heard: float
    """When something came last, at first when the connection was made."""
    last_segment_only: bool = False
    """Let an empty log begin where Java's would, also with a master of ours."""
    wrote: float = attrs.field(default=0.0, init=False)
    reported: int = attrs.field(default=-1, init=False)
    master: MasterHello | None = attrs.field(default=None, init=False)
    """Set once the master is known to be one of ours."""
    met_at: int | None = attrs.field(default=None, init=False)
    """Where our log ended when it said so: log bytes may have come behind it, at once."""
    _frames: FrameDecoder = attrs.field(factory=FrameDecoder, init=False)

    def opening(self, position: int, now: float) -> bytes:
        """The first bytes to send.  Java's slave says nothing for five seconds, which nobody needs."""
        hellos = 2 if self.last_segment_only else 1
        self.reported, self.wrote = position, now
        return report(HELLO) * hellos + report(position)

    def receive(self, data: bytes | memoryview, now: float) -> list[Event]:
        """Take what came.  Log bytes must be appended in order.  Raises LinkBroken, LogsDiffer."""
        self.heard = now
        events = self._frames.receive(data)
        for event in events:
            if isinstance(event, LogData):
                if self.expected is not None and event.start != self.expected:
                    raise LinkBroken(f"it sends from log offset {event.start}, but we go on at {self.expected}")
                self.expected = event.start + len(event.data)
            elif isinstance(event, Heartbeat):
                if self.expected is not None and event.offset != self.expected:
                    raise LinkBroken(f"it is at log offset {event.offset}, but we are at {self.expected}")
            elif isinstance(event, MasterHello):
                self._meet(event)
        if self._frames.fault is not None:
            raise self._frames.fault
        return events

    def _meet(self, hello: MasterHello) -> None:
        self.master, self.met_at = hello, self.expected
        if self.expected is not None and self.expected < hello.first:
            raise LogsDiffer(
                f"our log ends at {self.expected}, but the master has deleted everything before {hello.first}; "
                "stop this slave, move its store directory away and start it: it copies everything that is left"
            )

    def check(self, hello: MasterHello, crc: int) -> None:
        """Compare the CRC of our own bytes from ``check_start`` to our end with the master's.  Raises LogsDiffer."""
        if crc != hello.check_crc:
            raise LogsDiffer(
                f"the bytes of log offset {hello.check_start} to {self.met_at} are others than the master's: the logs have parted; "
                "to keep the slave's messages, make it the master; to drop them, stop it, move its store directory away and start it: it copies everything again"
            )

    def take_report(self, position: int, now: float) -> bytes:
        """What to send when the log ends at ``position``: a report if it has grown, or if it is time for a sign of life; else nothing."""
        if position <= self.reported and now < self.wrote + self.rules.heartbeat_seconds:
            return b""
        self.reported, self.wrote = max(position, self.reported), now
        return report(self.reported)

    def introduction(self) -> bytes:
        """What a master of ours is told after its hello."""
        return report(self.name)

    def next_deadline(self) -> float:
        """When ``take_report`` or ``check_silence`` has something to do although nothing happened."""
        return min(self.heard + self.rules.silence_seconds, self.wrote + self.rules.heartbeat_seconds)

    def check_silence(self, now: float) -> None:
        """Raises LinkSilent."""
        if now >= self.heard + self.rules.silence_seconds:
            raise LinkSilent(f"it has sent nothing for {self.rules.silence_seconds:g} s (haHousekeepingInterval)")
