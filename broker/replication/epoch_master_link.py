"""One slave in controller mode, as its master sees it. SANS-IO.

::

    waiting ── handshake ──▶ the epochs of this log ── report r ──▶ transferring from r on

The slave cuts its log before it reports. See ``MasterLink`` for what both modes have in common.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from triomq.broker.replication.epoch_frames import SlaveFrames, epochs_frame, transfer_head
from triomq.broker.replication.epochs import Epoch, EpochHistory
from triomq.broker.replication.errors import LinkBroken
from triomq.broker.replication.master_link import LogBounds, MasterLink

NO_EPOCH = Epoch(0, 0)


@attrs.define(eq=False, kw_only=True)
class EpochMasterLink(MasterLink):
    """State of one connection. ``name`` is the slave's id at the controller."""

    history: EpochHistory
    """The epochs of this master's log: they do not change as long as it is master."""
    confirmed: Callable[[], int]
    """Return the offset up to which slaves may show messages."""
    _frames: SlaveFrames = attrs.field(factory=SlaveFrames, init=False)
    _greeted: bool = attrs.field(default=False, init=False)

    @property
    def broker_id(self) -> int | None:
        """The slave's id at the controller; None before its handshake, and for a learner."""
        join = self._frames.join
        return None if join is None or join.learner else join.broker_id

    @property
    def kind(self) -> str:
        """Both programs' slaves have the same handshake."""
        return f"broker {self.broker_id} of the group"

    @property
    def copied(self) -> int:
        """End of the slave's log: its handshake has shown that it is this log."""
        return max(self.acknowledged, 0)

    def receive(self, data: bytes | memoryview, log: LogBounds, now: float) -> None:
        """Take in a handshake and reports. Raises: LinkBroken, LogsDiffer."""
        self.heard = now
        for end in self._frames.receive(data):
            if self.next_offset is None:
                self._begin(end, log, now)
                # A heartbeat at once, as Java: it tells the epoch, and the confirmed offset.
                self.wrote = now - self.rules.heartbeat_seconds
            elif not 0 <= end <= self.next_offset:
                raise LinkBroken(
                    f"it reports {end}, but only what lies before {self.next_offset} was sent to it"
                )
            else:
                self.acknowledged = max(self.acknowledged, end)
        if self._frames.join is not None:
            self.name = self._frames.join.broker_id

    def _from_first(self) -> bool:
        join = self._frames.join
        return join is None or not join.last_segment_only

    def take_greeting(self, log: LogBounds) -> bytes:
        """Return the epochs of this log, after the slave's handshake."""
        if self._greeted or self._frames.join is None:
            return b""
        self._greeted = True
        return epochs_frame(self.history, log.end)

    def head(self, start: int, size: int) -> bytes:
        """Return the head of a transfer, with the epoch of its bytes."""
        return transfer_head(start, size, self.history.at(start) or NO_EPOCH, self.confirmed())

    def _frame_end(self, start: int, stop: int) -> int:
        """End a frame where the next epoch begins, too."""
        following = next((one.start for one in self.history.entries if one.start > start), stop)
        return min(following, MasterLink._frame_end(self, start, stop))
