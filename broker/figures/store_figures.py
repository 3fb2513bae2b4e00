"""The store: its log, its disk, its watermarks.

Source: store/metrics/DefaultStoreMetricsConstant.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from triomq.broker.figures.timer_figures import STORAGE
from triomq.broker.services.statistics import PUT_TIME_BOUNDS_MS, Statistics
from triomq.broker.store.store import MessageStore
from triomq.remoting.monitor.metrics import Family, Histogram, Sample, counter, gauge, histogram
from triomq.remoting.protocol.record_reader import read_record


@attrs.define(eq=False)
class StoreFigures:
    """Reads the store, and changes nothing."""

    store: MessageStore
    statistics: Statistics
    clock_ms: Callable[[], int]
    _oldest_ms: int = attrs.field(default=0, init=False)
    """When the first message of the log was stored; 0 without any."""
    _oldest_at: int = attrs.field(default=-1, init=False)

    async def refresh(self) -> None:
        """Read the oldest message, if it is another one than before.

        Raises: StoreIoError. Checkpoint: maybe.
        """
        first = self.store.first_offset
        if self._oldest_ms and first == self._oldest_at:
            return
        record = await self.store.read_record(first)
        oldest = read_record(record, 0, len(record), False) if record is not None else ""
        self._oldest_ms = oldest.store_timestamp if not isinstance(oldest, str) else 0
        self._oldest_at = first

    def figures(self) -> Iterator[Family]:
        """Yield the families."""
        store = self.store
        try:
            usage = store.disk.usage(store.config.commitlog)
        except OSError:
            usage = None
        if usage is not None:
            yield gauge(
                "rocketmq_storage_size_bytes",
                "Used space of the commit log's file system.",
                [Sample(usage.used, STORAGE)],
            )
            yield gauge(
                "triomq_storage_used_ratio",
                "The same as a share of what users may use.",
                usage.ratio,
            )
            yield gauge(
                "triomq_storage_free_bytes",
                "Free space of the commit log's file system.",
                usage.free,
            )
        yield gauge(
            "rocketmq_storage_flush_behind_bytes",
            "Bytes of the log that are not on the disk yet.",
            [Sample(store.appended.value - store.flushed.value, STORAGE)],
        )
        yield gauge(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes of the log that are not in the consume queues yet.",
            [Sample(store.confirmed.value - store.indexed.value, STORAGE)],
        )
        yield gauge(
            "rocketmq_storage_message_reserve_time_milliseconds",
            "Age of the oldest message.",
            [Sample(max(0, self.clock_ms() - self._oldest_ms), STORAGE)] if self._oldest_ms else [],
        )
        yield gauge(
            "triomq_storage_writable",
            "1 when the store takes messages of clients.",
            store.health.writable,
        )
        yield gauge("triomq_storage_min_offset_bytes", "Where the log begins.", store.first_offset)
        yield from self._watermarks()
        yield gauge(
            "triomq_storage_append_seconds_max",
            "Longest append since the start.",
            store.append_max_seconds,
        )
        statistics = self.statistics
        yield histogram(
            "triomq_storage_append_seconds",
            "Time of an append, by messages.",
            [
                Histogram(
                    {},
                    [bound / 1000 for bound in PUT_TIME_BOUNDS_MS],
                    statistics.put_times,
                    statistics.put_seconds,
                )
            ],
        )
        syncs = store.flusher.syncs
        yield histogram(
            "triomq_fsync_seconds",
            "Time of an fsync of the log.",
            [Histogram({}, syncs.edges, syncs.counts, syncs.seconds)],
        )
        yield counter(
            "triomq_storage_put_failures_total",
            "Messages that the store did not take.",
            statistics.totals.puts_failed,
        )
        yield counter(
            "triomq_replication_sends_refused_total",
            "Sends that were refused since too few brokers have the message.",
            statistics.totals.puts_too_few,
        )
        yield counter(
            "triomq_storage_time_steps_back_total",
            "Times that store times went back to the clock, since the newest was far ahead of it.",
            store.index_syncer.steps_back,
        )
        yield counter(
            "triomq_storage_damaged_records_total",
            "Damaged records of queues that the broker reads itself, which it skipped.",
            [Sample(count, {"topic": topic}) for topic, count in store.damaged.counts.items()],
        )

    def _watermarks(self) -> Iterator[Family]:
        store = self.store
        yield gauge("triomq_storage_max_offset_bytes", "Where the log ends.", store.appended.value)
        yield gauge(
            "triomq_storage_watermark_bytes",
            "How far the log is written, on the disk, visible to readers, in the queues.",
            [
                Sample(mark.value, {"watermark": name})
                for name, mark in (
                    ("appended", store.appended),
                    ("flushed", store.flushed),
                    ("confirmed", store.confirmed),
                    ("indexed", store.indexed),
                )
            ],
        )
