"""How far each group is behind, in messages and in time, under Java's names.

``GroupLag.refresh`` reads the tables and the store times in steps: 500 groups with 2,000 topics
would hold up the loop for seconds. Source: broker/metrics/ConsumerLagCalculator.java.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import attrs
import trio

from triomq.broker.services.offsets import ConsumerOffsets
from triomq.broker.services.pop.pops import Pops
from triomq.broker.services.topics import Topics
from triomq.broker.store.store import MessageStore
from triomq.remoting.monitor.metrics import PIECE_SECONDS, Family, Labels, Sample, family
from triomq.remoting.protocol.names import RETRY_PREFIX


@attrs.frozen
class LagRow:
    """One topic of one group; times in ms, 0 without such a message."""

    labels: Labels
    lag: int
    ready: int
    in_flight: int
    oldest_ms: int
    """Since the oldest message that is not consumed was stored."""
    queueing_ms: int
    """Since the oldest message that was not even handed out was stored."""


@attrs.define(eq=False)
class GroupLag:
    """The lag of all groups as of the last ``refresh``."""

    store: MessageStore
    topics: Topics
    offsets: ConsumerOffsets
    pops: Pops | None
    clock_ms: Callable[[], int]
    rows: list[LagRow] = attrs.field(factory=list, init=False)
    left_out: int = attrs.field(default=0, init=False)

    async def refresh(self, series_max: int) -> None:
        """Compute at most this number of rows. Raises: StoreIoError. Checkpoint: maybe."""
        rows: list[LagRow] = []
        begun = time.perf_counter()
        committed = self.offsets.committed
        total = sum([len(topics) for topics in committed.values()])
        for group in list(committed):
            for topic in list(committed.get(group, ()))[: series_max - len(rows)]:
                rows.append(await self._row(group, topic))
                if time.perf_counter() - begun > PIECE_SECONDS:
                    await trio.lowlevel.checkpoint()
                    begun = time.perf_counter()
            if len(rows) == series_max:
                break
        self.rows, self.left_out = rows, max(0, total - len(rows))

    async def _row(self, group: str, topic: str) -> LagRow:
        store, pops = self.store, self.pops
        lag = ready = in_flight = 0
        oldest: list[int] = []
        queueing: list[int] = []
        for queue_id, committed in list(self.offsets.queues_of(group, topic).items()):
            end = store.max_offset(topic, queue_id)
            key = (group, topic, queue_id)
            popped = pops.waiting(key) if pops is not None else 0
            position = (pops.position(key) if pops is not None else None) or committed
            handed_out = max(position, self.offsets.pulled_offset(*key))
            lag += max(0, end - position)
            ready += max(0, end - handed_out)
            in_flight += max(0, min(end, handed_out) - position) + popped
            if position < end:
                stored = await store.store_time_at(topic, queue_id, position)
                if stored > 0:
                    oldest.append(stored)
                if handed_out != position:
                    stored = (
                        await store.store_time_at(topic, queue_id, handed_out)
                        if handed_out < end
                        else 0
                    )
                if stored > 0:
                    queueing.append(stored)
        now = self.clock_ms()
        labels = {
            "topic": topic,
            "consumer_group": group,
            "is_retry": "true" if topic.startswith(RETRY_PREFIX) else "false",
            "is_system": "true" if self.topics.is_system_topic(topic) else "false",
        }
        return LagRow(
            labels,
            lag,
            ready,
            in_flight,
            max(0, now - min(oldest)) if oldest else 0,
            max(0, now - min(queueing)) if queueing else 0,
        )

    def figures(self) -> Iterator[Family]:
        """Yield Java's five families."""
        yield self._family("rocketmq_consumer_lag_messages", lambda row: row.lag)
        yield self._family("rocketmq_consumer_lag_latency_milliseconds", lambda row: row.oldest_ms)
        yield self._family("rocketmq_consumer_ready_messages", lambda row: row.ready)
        yield self._family("rocketmq_consumer_inflight_messages", lambda row: row.in_flight)
        yield self._family(
            "rocketmq_consumer_queueing_latency_milliseconds", lambda row: row.queueing_ms
        )

    def _family(self, name: str, number: Callable[[LagRow], int]) -> Family:
        rows = self.rows
        samples = (Sample(number(row), row.labels) for row in rows)
        return family(name, samples, size=len(rows), left_out=self.left_out)
