"""The queues of a topic that take messages: chosen by their place, without a list of all. PURE."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triomq.remoting.protocol.bodies.route import PERM_WRITE, TopicRoute


@attrs.frozen
class WritableQueues:
    """Queues in the order of their brokers' names and their numbers.

    ``brokers``: (broker name, number of queues) each.
    """

    brokers: Sequence[tuple[str, int]]

    @classmethod
    def of(cls, route: TopicRoute) -> WritableQueues:
        """Return those of a route: of brokers whose master runs."""
        masters = route.masters
        return cls(
            sorted(
                (data.broker_name, data.write_queue_count)
                for data in route.queue_datas
                if data.perm & PERM_WRITE and data.broker_name in masters
            )
        )

    def __len__(self) -> int:
        return sum([count for _, count in self.brokers])

    def at(self, place: int) -> tuple[str, int]:
        """Return broker name and number of the queue at a place. Raises: IndexError."""
        for name, count in self.brokers:
            if place < count:
                return name, place
            place -= count
        raise IndexError(place)

    def without(self, broker_name: str) -> WritableQueues:
        """Return the queues of the other brokers."""
        return WritableQueues([each for each in self.brokers if each[0] != broker_name])
