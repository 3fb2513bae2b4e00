"""The connection to the master, as its slave sees it. SANS-IO.

::

    opening: [-1] report ──▶ following ── data: the caller appends, then reports
                                 │        heartbeat: must name our end, otherwise LinkBroken
                                 │        hello of TrioMQ: LogsDiffer unless the logs are the same
                                 └─ silence ──▶ LinkSilent

The caller passes the clock and the end of the log. An empty log takes any first frame, as in Java;
any other log only what continues it. Source: store/ha/DefaultHAClient.java, 4.9:
HAService.java#HAClient.
"""

from __future__ import annotations

import attrs

from triomq.broker.replication.errors import LinkBroken, LinkSilent, LogsDiffer, LogsParted
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

PARTED_FIXES = (
    "to keep the slave's messages, make it the master; to drop them, stop it, move its store"
    " directory away and start it: it copies everything again"
)


def longer_log(own_end: int, master_end: int) -> str:
    """Return why a slave whose log is longer than its master's does not follow."""
    return (
        f"our log ends at {own_end}, the master's at {master_end}: this slave has messages that"
        f" its master has not; {PARTED_FIXES}"
    )


@attrs.define(eq=False)
class SlaveLink:
    """State of one connection."""

    rules: LinkRules
    expected: int | None
    """The next offset to come; None while the log is empty and nothing has come."""
    name: int
    """Below -1, and the same for the life of this process, so that a master of TrioMQ does not take
    two connections of one slave for two slaves.
    """
    heard: float
    """Time of the last input; at first of the connection."""
    last_segment_only: bool = False
    """Whether an empty log begins where Java's would, also with a master of TrioMQ."""
    wrote: float = attrs.field(default=0.0, init=False)
    reported: int = attrs.field(default=-1, init=False)
    master: MasterHello | None = attrs.field(default=None, init=False)
    """The hello of a master of TrioMQ."""
    hello_at: int | None = attrs.field(default=None, init=False)
    """End of our log when the hello came: log bytes may have come directly behind it."""
    _frames: FrameDecoder = attrs.field(factory=FrameDecoder, init=False)

    def opening(self, position: int, now: float) -> bytes:
        """Return the first bytes to send.

        Java's slave sends nothing for five seconds, to no purpose.
        """
        hellos = 2 if self.last_segment_only else 1
        self.reported, self.wrote = position, now
        return report(HELLO) * hellos + report(position)

    @property
    def confirmed(self) -> int | None:
        """The confirmed offset that the master has told; None: this mode has none."""
        return None

    def receive(self, data: bytes | memoryview, now: float) -> list[Event]:
        """Return the events of what came. Raises: LinkBroken, LogsDiffer, LogsParted.

        The caller appends log bytes in their order.
        """
        self.heard = now
        events = self._frames.receive(data)
        for event in events:
            if isinstance(event, LogData):
                if self.expected is not None and event.start != self.expected:
                    raise LinkBroken(
                        f"it sends from log offset {event.start}, but we go on at {self.expected}"
                    )
                self.expected = event.start + len(event.data)
            elif isinstance(event, Heartbeat):
                if self.expected is not None and event.offset != self.expected:
                    raise LinkBroken(
                        f"it is at log offset {event.offset}, but we are at {self.expected}"
                    )
            elif isinstance(event, MasterHello):
                self._note_hello(event)
            else:
                self._note_other(event)
        if self._frames.fault is not None:
            raise self._frames.fault
        return events

    def _note_other(self, event: Event) -> None:
        """Take in an event of another mode. Raises: ReplicationError."""

    def _note_hello(self, hello: MasterHello) -> None:
        self.master, self.hello_at = hello, self.expected
        if self.expected is not None and self.expected < hello.first:
            raise LogsDiffer(
                f"our log ends at {self.expected}, but the master has deleted everything before"
                f" {hello.first}; stop this slave, move its store directory away and start it: it"
                " copies everything that is left"
            )

        if self.expected is not None and self.expected > hello.end:
            raise LogsParted(longer_log(self.expected, hello.end))

    def check(self, hello: MasterHello, crc: int) -> None:
        """Compare the CRC of this log's bytes from ``check_start`` on with the master's.

        Raises: LogsParted.
        """
        if crc != hello.check_crc:
            raise LogsParted(
                f"the bytes of log offset {hello.check_start} to {self.hello_at} are others than"
                f" the master's: the logs have parted; {PARTED_FIXES}"
            )

    def take_report(self, position: int, now: float) -> bytes:
        """Return a report if one is due, otherwise nothing.

        It is due if the log, which ends at ``position``, has grown, or as a sign of life.
        """
        if position <= self.reported and now < self.wrote + self.rules.heartbeat_seconds:
            return b""
        self.reported, self.wrote = max(position, self.reported), now
        return report(self.reported)

    def introduction(self) -> bytes:
        """Return the answer to the hello of a master of TrioMQ."""
        return report(self.name)

    def check_silence(self, now: float) -> None:
        """Check that the master has sent something in time. Raises: LinkSilent."""
        if now >= self.heard + self.rules.silence_seconds:
            raise LinkSilent(
                f"it has sent nothing for {self.rules.silence_seconds:g} s (haHousekeepingInterval)"
            )
