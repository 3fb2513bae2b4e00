"""What a benchmark's consumer counts. Pure."""

from __future__ import annotations

import attrs

from triomq.client.mqadmin.bench.latency_histogram import LatencyHistogram

IDS_MAX = 500_000
"""ids of each of two generations that are remembered to find duplicates: about 100 MB together"""


@attrs.define(eq=False)
class RecentIds:
    """The newest ids, between ``size_max`` and twice as many."""

    size_max: int = IDS_MAX
    _young: set[str] = attrs.field(factory=set, init=False)
    _old: set[str] = attrs.field(factory=set, init=False)

    def note(self, message_id: str) -> bool:
        """Remember an id; return whether it was known."""
        known = message_id in self._young or message_id in self._old
        self._young.add(message_id)
        if len(self._young) >= self.size_max:
            self._old, self._young = self._young, set()
        return known


@attrs.define(eq=False)
class ReceivedCounts:
    """Messages that came, and how old they were."""

    received: int = 0
    """duplicates included"""
    duplicates: int = 0
    size_bytes: int = 0
    """of all bodies"""
    since_stored: LatencyHistogram = attrs.field(factory=LatencyHistogram)
    since_born: LatencyHistogram = attrs.field(factory=LatencyHistogram)
    _ids: RecentIds = attrs.field(factory=RecentIds)

    def note(
        self, message_id: str, size_bytes: int, born_ms: int, stored_ms: int, now_ms: float
    ) -> None:
        """Count one message; times are milliseconds since 1970, of three clocks."""
        self.received += 1
        self.size_bytes += size_bytes
        if self._ids.note(message_id):
            self.duplicates += 1
        self.since_stored.note((now_ms - stored_ms) / 1000)
        self.since_born.note((now_ms - born_ms) / 1000)
