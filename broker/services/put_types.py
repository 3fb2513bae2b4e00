"""What topics got, by message type and size: ``rocketmq_messages_in_total`` and its kin.

Plain messages cost one comparison each: the counters of their topic count all messages, so only
messages of another type, and those above the smallest edge, are noted here. The rest is subtracted
when the figures are read. Source: broker/metrics/BrokerMetricsManager.java#getMessageType.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import attrs

SIZE_EDGES = (1024, 4096, 512 * 1024, 1024**2, 2 * 1024**2, 4 * 1024**2)
"""Bytes of a record in the log: Java's buckets."""
SMALL_BYTES = SIZE_EDGES[0]
NORMAL = "normal"
DELIVERED = "delivered"
"""Stored a second time, after a delay: no message that came in."""


def no_larger() -> list[int]:
    """Return counts of sizes above each edge: above 1 KiB, above 4 KiB, and so on."""
    return [0] * len(SIZE_EDGES)


def note_size(larger: list[int], size_bytes: float, count: int = 1) -> None:
    """Count messages of this size, unless it is small."""
    if size_bytes > SMALL_BYTES:
        larger[bisect_left(SIZE_EDGES, size_bytes) - 1] += count


@attrs.define
class PutCounts:
    """Messages of one topic and type; ``larger`` as in ``no_larger``."""

    messages: int = 0
    size_bytes: int = 0
    larger: list[int] = attrs.field(factory=no_larger)

    def note(self, messages: int, size_bytes: int) -> None:
        """Count messages of one request, of the same size each."""
        self.messages += messages
        self.size_bytes += size_bytes
        note_size(self.larger, size_bytes / messages if messages else 0, messages)

    def sizes(self) -> list[int]:
        """Return the counts of a histogram with ``SIZE_EDGES``."""
        return [max(0, self.messages - sum(self.larger)), *self.larger]


@attrs.define(eq=False)
class PutTypes:
    """The counters of all topics."""

    larger: dict[str, list[int]] = attrs.field(factory=dict)
    """Of all messages of a topic."""
    typed: dict[str, dict[str, PutCounts]] = attrs.field(factory=dict)
    """Topic -> type -> the messages that are not normal."""

    def larger_of(self, topic: str) -> list[int]:
        """Return the list in which the send path counts large messages."""
        return self.larger.setdefault(topic, no_larger())

    def note(self, topic: str, kind: str, messages: int, size_bytes: int) -> None:
        """Count messages of a type that is not normal; the counters of the topic have them, too."""
        kinds = self.typed.setdefault(topic, {})
        counts = kinds.get(kind)
        if counts is None:
            counts = kinds[kind] = PutCounts()
        counts.note(messages, size_bytes)

    def forget(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self.larger.pop(topic, None)
        self.typed.pop(topic, None)

    def of_topic(
        self, topic: str, messages: int, size_bytes: int
    ) -> Iterator[tuple[str, PutCounts]]:
        """Yield each type with its counts, given the messages and bytes of the topic in all."""
        normal = PutCounts(messages, size_bytes, list(self.larger.get(topic) or no_larger()))
        for kind, counts in self.typed.get(topic, {}).items():
            normal.messages -= counts.messages
            normal.size_bytes -= counts.size_bytes
            normal.larger = [max(0, a - b) for a, b in zip(normal.larger, counts.larger)]
            if kind != DELIVERED:
                yield kind, counts
        if normal.messages > 0:
            yield NORMAL, normal
