"""Which queue a message goes to: pure functions over the publish list of a topic."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triomq.client.errors import MessageInvalid
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import java_hash


@attrs.define(eq=False)
class RoundRobin:
    """Deal messages over the queues of one topic in turn, so that n·k messages put k into each of n queues."""

    _next: int
    """a random start keeps many producers from all beginning at queue 0"""

    def choose(self, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """Return the next queue; with `avoid_broker` (the one that just failed) the next queue of another broker, if there is any."""
        count = len(queues)
        position = self._next
        self._next = position + 1
        chosen = queues[position % count]
        if avoid_broker is None or chosen.broker_name != avoid_broker:
            return chosen
        for step in range(1, count):
            other = queues[(position + step) % count]
            if other.broker_name != avoid_broker:
                self._next = position + step + 1
                return other
        return chosen


def choose_by_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key, as Java's `SelectMessageQueueByHash` does.

    Java's hash of the text, remainder with the sign of the dividend, absolute value.  The Go client uses another hash, so Java and Go
    producers do not send equal keys to equal queues; we follow Java.
    """
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def find_queue(queues: Sequence[MessageQueue], wanted: MessageQueue | int) -> MessageQueue:
    """Return the queue that the caller named, by value or by its index in the publish list.

    Errors: `MessageInvalid` for an index beyond the list.  A `MessageQueue` is trusted: the route may be younger here than there.
    """
    if isinstance(wanted, MessageQueue):
        return wanted
    if not 0 <= wanted < len(queues):
        raise MessageInvalid(
            f"queue {wanted} does not exist: the topic's publish list has queues 0 to {len(queues) - 1}"
        )
    return queues[wanted]


def has_several_brokers(queues: Sequence[MessageQueue]) -> bool:
    """Say whether a publish list has more than one broker: its queues are grouped by broker, so its ends tell."""
    return queues[0].broker_name != queues[-1].broker_name
