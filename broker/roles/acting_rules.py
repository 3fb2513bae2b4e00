"""Whether a slave acts for its master: the rules of ``enableSlaveActingMaster``. SANS-IO.

::

    standby ── no smaller id is alive ──▶ acting ── a sign of the master ──▶ standby
    acting ── the master starts (906) ──▶ handing over ── a sign of it, or too late ──▶ standby

What is known of a broker group comes from the name servers, each of which has its own view, and
from the replication stream. One view with a smaller id, or a master that is heard over the stream,
is enough not to act: a name server that has lost a connection, or was just started, proves nothing.
Without any view no slave begins to act. (Java asks one name server only, and believes it.) Source:
broker/BrokerController.java#updateMinBroker, #changeSpecialServiceStatus.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from triomq.remoting.protocol.bodies.route import MASTER_ID

HANDOVER_SECONDS = 30.0
"""A master that said that it starts, and shows no sign of life for this time, has died again."""


class SlaveRole(enum.Enum):
    """The present role of a slave. The values are part of the status page."""

    STANDBY = "standby"
    ACTING = "acting"
    HANDING_OVER = "handing over"


@attrs.define(eq=False)
class ActingRules:
    """The state of one slave; every method gets ``now`` in seconds of one monotonic clock."""

    broker_id: int
    grace_seconds: float = 0.0
    """Time after the start in which a slave waits for a master that it has not met: both may just
    be starting.
    """
    role: SlaveRole = attrs.field(default=SlaveRole.STANDBY, init=False)
    _handed_over: float = attrs.field(default=0.0, init=False)
    _waits_to: float | None = attrs.field(default=None, init=False)

    @property
    def acting(self) -> bool:
        return self.role is SlaveRole.ACTING

    def decide(self, views: Sequence[Mapping[int, str]], following: bool, now: float) -> SlaveRole:
        """Take in what is known of the group; return the role from now on.

        ``views``: the members, id -> address, by each name server that answered; ``following``:
        whether the master is heard over the replication stream, or is known to have
        another log.
        """
        smaller = {
            broker_id for members in views for broker_id in members if broker_id < self.broker_id
        }
        handing_over = self.role is SlaveRole.HANDING_OVER
        if self._waits_to is None:
            self._waits_to = now + self.grace_seconds
        if following or MASTER_ID in smaller:
            self.role, self._waits_to = SlaveRole.STANDBY, now
        elif handing_over and now < self._handed_over + HANDOVER_SECONDS:
            pass  # the master does not register before it has taken everything over
        elif smaller:
            self.role = SlaveRole.STANDBY
        elif any(self.broker_id in members for members in views) and now >= self._waits_to:
            self.role = SlaveRole.ACTING
        elif handing_over:
            self.role = SlaveRole.STANDBY
        # Otherwise the role stays: a name server that does not list this broker has just started,
        # and does not know the others either.
        return self.role

    def hand_over(self, now: float) -> None:
        """End acting: the master has said that it starts."""
        self.role = SlaveRole.HANDING_OVER
        self._handed_over = now
