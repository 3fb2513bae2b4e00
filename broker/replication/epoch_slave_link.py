"""The connection to a master in controller mode, as its slave sees it. SANS-IO.

::

    opening: handshake ──▶ the master's epochs ──▶ TailDiffers: cut the log, then connect again
                                 │
                                 └─ report ──▶ following (see ``SlaveLink``)

Java's slave is silent for five seconds before its first report; this one reports at once.
"""

from __future__ import annotations

import attrs

from triomq.broker.replication.epoch_frames import EpochFrameDecoder, Join, report_frame
from triomq.broker.replication.epochs import EpochHistory
from triomq.broker.replication.errors import LinkBroken, LogsParted, TailDiffers
from triomq.broker.replication.slave_link import PARTED_FIXES, SlaveLink
from triomq.broker.replication.transfer import EpochBegins, Event, MasterEpochs


@attrs.define(eq=False, kw_only=True)
class EpochSlaveLink(SlaveLink):
    """State of one connection. ``name`` is this broker's id at the controller."""

    history: EpochHistory
    """The epochs of this slave's log."""
    epoch: int
    """That of the master that the controllers name: an older one is not followed."""
    shown: int = 0
    """Up to here readers of this slave have seen its log."""
    joined: bool = attrs.field(default=False, init=False)
    """Whether the two logs are known to be one, so that this slave may report."""
    _frames: EpochFrameDecoder = attrs.field(factory=EpochFrameDecoder, init=False)

    @property
    def confirmed(self) -> int | None:
        return self._frames.confirmed

    def opening(self, position: int, now: float) -> bytes:
        """Return the handshake; the first report follows the master's answer."""
        self.wrote = now
        return Join(self.name, self.last_segment_only).encode()

    def take_report(self, position: int, now: float) -> bytes:
        """Return a report if one is due, otherwise nothing."""
        if not self.joined or (
            position <= self.reported and now < self.wrote + self.rules.heartbeat_seconds
        ):
            return b""
        self.reported, self.wrote = max(position, self.reported), now
        return report_frame(self.reported)

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
            if not self.history.entries and own_end <= master.end:
                end = own_end  # a log of classic mode: as Java, it is taken for the beginning
            if end is None or (end == 0 and self.shown):
                # A master whose store and controllers were emptied must not empty its slaves.
                raise LogsParted(
                    f"our log, with epochs {self.history.entries}, has nothing in common with the"
                    f" master's; {PARTED_FIXES}"
                )
            if end < own_end:
                raise TailDiffers(end, own_end, master.end)
        self.joined = True
