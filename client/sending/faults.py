"""Which brokers sends avoid for a while: silent ones, and with latency fault tolerance also those
that were slow or failed.

Pure: times are arguments, in seconds. ``SilentBrokers`` is always on: a broker that did not answer
in time must not cost each second send half of its time while another one is free.

Latency fault tolerance: after each attempt the broker's latency decides for how long
it is *not available*; a failed attempt counts as 10 s of latency. A queue is chosen among brokers
that are available and did not just fail, otherwise among *reachable* brokers, otherwise among all.
A period is only ever extended. Off by default, as in Java (``sendLatencyEnable``); the tables are
those of 5.x: ``latency_max`` and ``not_available`` in the settings.

Source: client/…/latency/LatencyFaultToleranceImpl.java, MQFaultStrategy.java.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import attrs

from triomq.client.sending.queue_choice import Q, RoundRobin
from triomq.remoting.protocol.bodies.route import MessageQueue

ISOLATED_SECONDS = 10.0
"""The latency that a failed attempt counts as."""


SILENT_SECONDS = 10.0
"""How long a broker that did not answer is left out."""
PROBE_SECONDS = 3.0
"""How long one send alone may then find out whether it is back."""


@attrs.define(eq=False)
class SilentBrokers:
    """The brokers that did not answer one producer in time."""

    _until: dict[str, float] = attrs.field(factory=dict, init=False)
    """broker -> when the next send may try it"""

    def silent(self, broker_name: str, now: float) -> None:
        self._until[broker_name] = now + SILENT_SECONDS

    def answered(self, broker_name: str) -> None:
        if self._until:
            self._until.pop(broker_name, None)

    def choose(
        self, turn: RoundRobin, queues: Sequence[Q], avoid_broker: str | None, now: float
    ) -> Q:
        """Return the next queue of a broker that is not silent, otherwise the next one of any."""
        until = self._until
        if not until:
            return turn.choose(queues, avoid_broker)
        chosen = turn.choose_where(
            queues, lambda name: name != avoid_broker and until.get(name, now) <= now
        ) or turn.choose(queues, avoid_broker)
        if chosen.broker_name in until:
            until[chosen.broker_name] = now + PROBE_SECONDS
        return chosen


@attrs.define(eq=False)
class BrokerFault:
    """The record of one broker."""

    queue: MessageQueue
    """the queue that was tried last; the detector requests its offset"""
    latency: float
    available_from: float
    reachable: bool = True
    check_due: float = 0.0


@attrs.define(eq=False)
class LatencyFaults:
    """The records of one producer, by broker."""

    latency_max: Sequence[float]
    """seconds, ascending; the highest entry that a latency reaches counts"""
    not_available: Sequence[float]
    """seconds for which a broker is then left out, one entry for each of ``latency_max``"""
    detecting: bool
    """whether the detector runs; otherwise transport errors do not make a broker unreachable"""
    random_position: Callable[[], int]
    _brokers: dict[str, BrokerFault] = attrs.field(factory=dict, init=False)

    def record(
        self, queue: MessageQueue, latency: float, now: float, *, isolate: bool, reachable: bool
    ) -> None:
        """Note the outcome of an attempt."""
        if isolate:
            latency = ISOLATED_SECONDS
        place = bisect_right(self.latency_max, latency) - 1
        until = now + (self.not_available[place] if place >= 0 else 0.0)
        known = self._brokers.get(queue.broker_name)
        if known is None:
            known = self._brokers[queue.broker_name] = BrokerFault(queue, latency, until)
        known.queue, known.latency, known.reachable = queue, latency, reachable
        known.available_from = max(known.available_from, until)

    def available(self, broker_name: str, now: float) -> bool:
        known = self._brokers.get(broker_name)
        return known is None or now >= known.available_from

    def reachable(self, broker_name: str) -> bool:
        known = self._brokers.get(broker_name)
        return known is None or known.reachable

    def choose(
        self, turn: RoundRobin, queues: Sequence[Q], avoid_broker: str | None, now: float
    ) -> Q:
        """Return the next queue of an available broker, otherwise of a reachable one or any."""
        if avoid_broker is not None:
            turn.jump(self.random_position())
        return (
            turn.choose_where(
                queues, lambda name: name != avoid_broker and self.available(name, now)
            )
            or turn.choose_where(queues, lambda name: name != avoid_broker and self.reachable(name))
            or turn.choose(queues)
        )

    def to_check(self, now: float, interval: float) -> list[BrokerFault]:
        """Return the brokers for the detector to ask now; each is due again after ``interval``."""
        due = [known for known in self._brokers.values() if known.check_due <= now]
        for known in due:
            known.check_due = now + interval
        return due

    def answered(self, broker_name: str) -> None:
        """Note that a broker answered the detector."""
        known = self._brokers.get(broker_name)
        if known is not None:
            known.reachable = True

    def forget(self, broker_name: str) -> None:
        """Remove the record of a broker that no route names any more."""
        self._brokers.pop(broker_name, None)
