"""Whether a slave acts for its master: the state machine behind ``enableSlaveActingMaster``.  Pure: no clock, no sockets.

::

    standby ──nobody below us──▶ acting ──the master is heard of──▶ standby
                                    └──the master says that it starts (906)──▶ handing over ──the master is heard of, or too late──▶ standby

What is known of a group comes from the name servers, each of which has its own view, and from the log stream.  One view that shows a smaller id, or a
master that is heard over the log stream, is enough not to act: a name server that has lost a connection, or was just started, proves nothing.  Without
any view nothing begins.  (Java asks one name server only, and believes it.)
Source: broker/BrokerController.java#updateMinBroker, #changeSpecialServiceStatus.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from triomq.remoting.protocol.bodies.route import MASTER_ID

HANDOVER_SECONDS = 30.0
"""A master that said that it starts, and was not heard of for so long after it, has died again."""


class Duty(enum.Enum):
    """What a slave does at the moment."""

    STANDBY = "standby"
    ACTING = "acting"
    HANDING_OVER = "handing over"


@attrs.frozen(kw_only=True)
class Sight:
    """What one look around showed."""

    views: Sequence[Mapping[int, str]]
    """The members of the group, id -> address, by each name server that answered."""
    following: bool
    """Whether the master is heard over the log stream."""


@attrs.define(eq=False)
class ActingRules:
    """The state of one slave; every method gets ``now`` in seconds of one monotonic clock."""

    broker_id: int
    duty: Duty = attrs.field(default=Duty.STANDBY, init=False)
    _handed_over: float = attrs.field(default=0.0, init=False)

    @property
    def acting(self) -> bool:
        return self.duty is Duty.ACTING

    def look(self, sight: Sight, now: float) -> Duty:
        """Take in what was seen."""
        others = {broker_id for view in sight.views for broker_id in view if broker_id < self.broker_id}
        if sight.following or MASTER_ID in others:
            self.duty = Duty.STANDBY
        elif self.duty is Duty.HANDING_OVER and now < self._handed_over + HANDOVER_SECONDS:
            pass  # the master does not say who it is before it has taken everything over
        elif others:
            self.duty = Duty.STANDBY
        elif any(self.broker_id in view for view in sight.views):
            self.duty = Duty.ACTING
        elif self.duty is Duty.HANDING_OVER:
            self.duty = Duty.STANDBY
        # else nobody can tell: a name server that does not list us was started a moment ago, and does not know the others either
        return self.duty

    def hand_over(self, now: float) -> None:
        """The master has said that it starts: whoever acts for it ends now."""
        self.duty = Duty.HANDING_OVER
        self._handed_over = now
