"""The connection to a master in controller mode, as its slave sees it. SANS-IO.

::

    opening: handshake ──▶ the master's epochs ──▶ TailDiffers: cut the log, then connect again
                                 │
                                 ├─ report ──▶ following (see ``SlaveLink``)
                                 │                 ▲
                                 └─ report of where the tail begins ──▶ LogsParted, or the same tail

Java's slave is silent for five seconds before its first report; this one reports at once.

No epoch tells whose bytes classic mode wrote: two logs may have parted there, which Java takes for
one log. So a slave whose epochs say nothing has the master send it the last bytes that it has once
more, and goes on only if they are the same.
"""

from __future__ import annotations

import attrs

from triomq.broker.replication.epoch_frames import EpochFrameDecoder, Join, report_frame
from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.replication.errors import LinkBroken, LogsParted, TailDiffers
from triomq.broker.replication.slave_link import PARTED_FIXES, SlaveLink
from triomq.broker.replication.transfer import EpochBegins, Event, LogData, MasterEpochs


@attrs.define(eq=False, kw_only=True)
class EpochSlaveLink(SlaveLink):
    """State of one connection. ``name`` is this broker's id at the controller."""

    history: EpochHistory
    """The epochs of this slave's log."""
    epoch: int
    """That of the master that the controllers name: an older one is not followed."""
    shown: int = 0
    """Up to here readers of this slave have seen its log."""
    tail: bytes = b""
    """The last bytes of this slave's log."""
    joined: bool = attrs.field(default=False, init=False)
    """Whether the epochs have been compared, so that this slave may report."""
    unproven: bytes = attrs.field(default=b"", init=False)
    """The bytes of the tail that the master has still to send."""
    _frames: EpochFrameDecoder = attrs.field(factory=EpochFrameDecoder, init=False)

    @property
    def proven(self) -> bool:
        """Whether this log is known to begin the master's."""
        return self.joined and not self.unproven

    @property
    def confirmed(self) -> int | None:
        return None if self.unproven else self._frames.confirmed

    def opening(self, position: int, now: float) -> bytes:
        """Return the handshake; the first report follows the master's answer."""
        self.wrote = now
        return Join(self.name, self.last_segment_only).encode()

    def take_report(self, position: int, now: float) -> bytes:
        """Return a report if one is due, otherwise nothing."""
        if self.unproven and self.expected is not None:
            position = self.expected
        if not self.joined or (
            position <= self.reported and now < self.wrote + self.rules.heartbeat_seconds
        ):
            return b""
        self.reported, self.wrote = max(position, self.reported), now
        return report_frame(self.reported)

    def receive(self, data: bytes | memoryview, now: float) -> list[Event]:
        """Return the events of what came, without the bytes that this log has already."""
        events = super().receive(data, now)
        return self._prove(events) if self.unproven else events

    def _prove(self, events: list[Event]) -> list[Event]:
        """Compare what the master sends with the tail. Raises: LogsParted."""
        left: list[Event] = []
        for event in events:
            if isinstance(event, LogData) and self.unproven:
                known = min(len(event.data), len(self.unproven))
                if event.data[:known] != self.unproven[:known]:
                    raise LogsParted(
                        f"the bytes of log offset {event.start} to {event.start + known} are others"
                        f" than the master's: the logs have parted; {PARTED_FIXES}"
                    )
                self.unproven = self.unproven[known:]
                if known == len(event.data):
                    continue
                event = LogData(event.start + known, event.data[known:])
            left.append(event)
        return left

    def _note_other(self, event: Event) -> None:
        if isinstance(event, MasterEpochs):
            self._compare(event)
        elif isinstance(event, EpochBegins) and not self.joined:
            raise LinkBroken("it sends the log before its handshake")

    def _compare(self, master: MasterEpochs) -> None:
        """Check that this log begins the master's. Raises: TailDiffers, LogsParted."""
        if master.history.last_number < self.epoch:
            raise LinkBroken(
                f"its epoch is {master.history.last_number}, but the controllers' is {self.epoch}:"
                " it is not the master any more"
            )
        own_end = self.expected
        if own_end is not None:
            end = self.history.common_end(own_end, master.history, master.end)
            first = master.history.entries[0].start if master.history.entries else own_end
            unknown = not self.history.entries or first >= own_end
            if end is None and unknown and own_end <= master.end:
                end, self.unproven = own_end, self.tail
                self.expected = own_end - len(self.tail)
            if end is None or (end == 0 and self.shown):
                # A master whose store and controllers were emptied must not empty its slaves.
                raise LogsParted(
                    f"our log, with epochs {self.history.entries}, has nothing in common with the"
                    f" master's; {PARTED_FIXES}"
                )
            if end < own_end:
                raise TailDiffers(end, own_end, master.end)
        self.joined = True
