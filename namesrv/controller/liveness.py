"""Which brokers are alive: heartbeats on a steady clock, and connections. Pure.

This is memory of one controller and of no command: it says who should be elected, not who may.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

TIMEOUT_SECONDS = 10.0
"""without a heartbeat; brokers say their own (``controllerHeartBeatTimeoutMills``)"""
TIMEOUT_SECONDS_MAX = 3600.0


@attrs.frozen(kw_only=True)
class Sighting:
    """The last sign of life of a broker, and what it said about its log.

    ``heard``: when, in seconds of a steady clock. ``epoch`` and ``max_offset`` are -1 as long as
    the process has only registered. The smaller ``priority`` is preferred.
    """

    connection: object
    heard: float
    timeout: float = TIMEOUT_SECONDS
    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1


@attrs.define(eq=False)
class BrokerLiveness:
    """The last sighting of each broker. ``since``: when this controller began to lead."""

    since: float
    _sightings: dict[tuple[str, int], Sighting] = attrs.field(factory=dict, init=False)
    _heard_of: set[tuple[str, int]] = attrs.field(factory=set, init=False)
    """brokers that were seen at least once; only ids that the state has, so they are few"""

    def begin(self, now: float) -> None:
        """Begin to lead. A broker that is silent here has perhaps talked to the leader before."""
        self.since = now
        self._heard_of = {
            key for key, seen in self._sightings.items() if now < seen.heard + seen.timeout
        }

    def heard(self, broker_name: str, broker_id: int, sighting: Sighting) -> None:
        """Note a sign of life."""
        self._heard_of.add((broker_name, broker_id))
        self._sightings[broker_name, broker_id] = sighting

    def lost(self, connection: object) -> bool:
        """Count the brokers as dead whose last sign of life came on this connection.

        Returns: whether there were any.
        """
        gone = [key for key, seen in self._sightings.items() if seen.connection is connection]
        for key in gone:
            del self._sightings[key]
        return bool(gone)

    def forget(self, broker_name: str, ids: Iterable[int]) -> None:
        """Drop what is known about brokers that no longer exist."""
        for broker_id in ids:
            self._sightings.pop((broker_name, broker_id), None)
            self._heard_of.discard((broker_name, broker_id))

    def living(self, broker_name: str, ids: Iterable[int], now: float) -> dict[int, Sighting]:
        """Return the brokers among *ids* that are alive."""
        found = ((broker_id, self._sightings.get((broker_name, broker_id))) for broker_id in ids)
        return {
            broker_id: seen
            for broker_id, seen in found
            if seen is not None and now < seen.heard + seen.timeout
        }

    def is_living(self, broker_name: str, broker_id: int, now: float) -> bool:
        """Return whether a broker is alive.

        One that was never heard is, in the first seconds in which this controller leads: otherwise
        each new leader would depose masters that had no time for a heartbeat.
        """
        if (broker_name, broker_id) not in self._heard_of:
            return now < self.since + TIMEOUT_SECONDS
        return bool(self.living(broker_name, (broker_id,), now))
