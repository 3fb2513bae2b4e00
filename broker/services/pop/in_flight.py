"""What is in flight: messages that were popped and are neither acknowledged nor visible again.

Pure. The records of the revive topic are what counts after a crash; this table saves writing those
of messages that were acknowledged in time a second time, and knows how many are in flight. A check
point that it does not know, from before a start, goes its way through the revive topic.

Invisible times end by the steady clock, in seconds, so that a wall clock that jumps neither ends
nor extends them. Records have times of the wall clock, which count after a start.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator

import attrs

from triomq.remoting.protocol.bodies.check_point import CheckPoint, Key

KEEP_SECONDS = 10.0
"""An entry outlives its messages by this time: its acknowledgements are delivered at their end."""

Queue = tuple[str, str, int]
"""(group, topic, queue id)"""


@attrs.define(eq=False)
class Flight:
    """The messages of one check point."""

    point: CheckPoint
    revive_queue: int
    ends: float
    offsets: list[int]
    """In ascending order."""
    left: int
    """How many are not acknowledged."""
    acknowledged: int = 0
    """Bit i: the i-th message is acknowledged."""
    dropped: bool = False
    """Whether the check point was dropped when it was due: its acknowledgements go the same way."""


@attrs.define(eq=False)
class PopsInFlight:
    """All check points of this broker that it has made since its start."""

    _flights: dict[Key, Flight] = attrs.field(factory=dict, init=False)
    _ends: list[tuple[float, Key]] = attrs.field(factory=list, init=False)
    """When the times of entries end, or, after that, when they are forgotten."""
    _counts: dict[str, dict[str, dict[int, int]]] = attrs.field(factory=dict, init=False)
    """Group -> topic -> queue -> messages in flight; no zeros."""
    _of_groups: dict[str, int] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: object) -> bool:
        return key in self._flights

    def count(self, group: str, topic: str) -> int:
        """Return how many messages of a topic are in flight in a group."""
        return sum(self._counts.get(group, {}).get(topic, {}).values())

    def of_queue(self, queue: Queue) -> int:
        """Return how many messages of a queue are in flight."""
        group, topic, queue_id = queue
        return self._counts.get(group, {}).get(topic, {}).get(queue_id, 0)

    def of_group(self, group: str) -> int:
        """Return how many messages are in flight in a group."""
        return self._of_groups.get(group, 0)

    def by_topic(self) -> Iterator[tuple[str, str, int]]:
        """Yield (group, topic, messages in flight)."""
        for group, topics in self._counts.items():
            for topic, queues in topics.items():
                yield group, topic, sum(queues.values())

    def begin(self, point: CheckPoint, begun: float, revive_queue: int = 0) -> None:
        """Note the messages of a pop, or of a changed invisible time."""
        offsets, ends = point.offsets, begun + point.invisible_ms / 1000
        self._flights[point.key] = Flight(point, revive_queue, ends, offsets, len(offsets))
        heapq.heappush(self._ends, (ends, point.key))
        self._count(point.key, len(offsets))

    def ends(self, key: Key) -> float | None:
        """Return when the invisible time of a check point ends; None if it is not known."""
        flight = self._flights.get(key)
        return None if flight is None else flight.ends

    def unacknowledged(self, key: Key, offsets: Iterable[int]) -> list[int]:
        """Return the messages that are not acknowledged yet, each once.

        Offsets that are not in the check point are left out; all are returned if it is not known.
        """
        flight = self._flights.get(key)
        if flight is None:
            return list(dict.fromkeys(offsets))
        places = {offset: place for place, offset in enumerate(flight.offsets)}
        found = 0
        fresh = []
        for offset in offsets:
            place = places.get(offset)
            if place is not None and not (flight.acknowledged | found) >> place & 1:
                found |= 1 << place
                fresh.append(offset)
        return fresh

    def acknowledge(self, key: Key, offsets: Iterable[int]) -> list[int]:
        """Note acknowledged messages; return those that were ``unacknowledged`` before."""
        fresh = self.unacknowledged(key, offsets)
        flight = self._flights.get(key)
        if flight is not None and fresh:
            gone = set(fresh)
            for place, offset in enumerate(flight.offsets):
                if offset in gone:
                    flight.acknowledged |= 1 << place
            self._leave(key, flight, len(fresh))
        return fresh

    def drops(self, key: Key) -> bool:
        """Return whether a check point that is due is dropped: all of it is acknowledged."""
        flight = self._flights.get(key)
        if flight is None or flight.left:
            return False
        flight.dropped = True
        return True

    def dropped(self, key: Key) -> bool:
        """Return whether a check point was dropped, so that its acknowledgements are, too."""
        flight = self._flights.get(key)
        return flight is not None and flight.dropped

    def over(self, now: float) -> Flight | None:
        """Return a check point that is over and not all acknowledged, the same until it is.

        Forget those that are over for long enough.
        """
        while self._ends and self._ends[0][0] <= now:
            at, key = self._ends[0]
            flight = self._flights.get(key)
            if flight is not None and flight.left:
                return flight
            heapq.heappop(self._ends)
            if flight is not None and at < flight.ends + KEEP_SECONDS:
                heapq.heappush(self._ends, (flight.ends + KEEP_SECONDS, key))
            else:
                self._flights.pop(key, None)
        return None

    def forget(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        queue_ids: Container[int] | None = None,
    ) -> None:
        """Count messages no more: their group was moved, or their topic or group is deleted."""
        for key, flight in list(self._flights.items()):
            if (
                topic in (None, key[0])
                and group in (None, key[1])
                and (queue_ids is None or key[2] in queue_ids)
            ):
                self._leave(key, flight, flight.left)
                del self._flights[key]

    def _leave(self, key: Key, flight: Flight, count: int) -> None:
        flight.left -= count
        self._count(key, -count)

    def _count(self, key: Key, change: int) -> None:
        topic, group, queue_id = key[:3]
        topics = self._counts.setdefault(group, {})
        queues = topics.setdefault(topic, {})
        queues[queue_id] = queues.get(queue_id, 0) + change
        self._of_groups[group] = self._of_groups.get(group, 0) + change
        if queues[queue_id] <= 0:
            del queues[queue_id]
        if not queues:
            del topics[topic]
        if not topics:
            del self._counts[group], self._of_groups[group]
