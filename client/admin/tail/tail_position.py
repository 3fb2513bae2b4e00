"""Where a tail is in each queue, and what it says about brokers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from triomq.remoting.protocol.bodies.route import MessageQueue

Bounds = Mapping[MessageQueue, tuple[int, int]]
"""queue → offset of its first message, and of the next one that will come"""


@attrs.define
class TailPositions:
    """The next offset of each queue of one broker."""

    next_offsets: dict[MessageQueue, int] = attrs.field(factory=dict)

    def pending(self, bounds: Bounds) -> list[tuple[MessageQueue, int, int]]:
        """Return the queues with new messages, with the offsets to read: from, and before.

        A queue that is shorter than before was deleted and created again: it is read from its
        first message. Messages that expired unread are skipped.
        """
        found = []
        for queue, (first, stop) in sorted(bounds.items()):
            at = self.next_offsets.get(queue, first)
            at = first if at > stop else max(at, first)
            self.next_offsets[queue] = at
            if at < stop:
                found.append((queue, at, stop))
        return found

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """Note that everything before an offset was seen."""
        self.next_offsets[queue] = offset


@attrs.define
class BrokerReports:
    """What a tail says about its brokers: once when one fails, once when it is back."""

    failing: dict[str, str] = attrs.field(factory=dict)
    """broker → reason, of those that failed last"""
    answered: set[str] = attrs.field(factory=set)

    def failed(self, broker: str, reason: str) -> str | None:
        """Note a failure; return the line that says it, None if it was said."""
        known = broker in self.failing
        self.failing[broker] = reason
        return None if known else f"{broker}  failed: {reason}; it is tried again"

    def works(self, broker: str) -> str | None:
        """Note an answer; return the line that says so if the broker had failed."""
        self.answered.add(broker)
        return f"{broker}  answers again" if self.failing.pop(broker, None) else None

    def hopeless(self, brokers: Iterable[str]) -> bool:
        """Return whether all brokers failed before the first answer of any."""
        return not self.answered and all(broker in self.failing for broker in brokers)
