"""The store: its log, its disk, its watermarks.

Source: store/metrics/DefaultStoreMetricsConstant.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from triomq.broker.figures.timer_figures import STORAGE
from triomq.broker.services.statistics import PUT_TIME_BOUNDS_MS, Statistics
from triomq.broker.store.store import MessageStore
from triomq.remoting.monitor.metrics import Family, Histogram, Sample, by_label, family
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
            yield family("rocketmq_storage_size_bytes", [Sample(usage.used, STORAGE)])
            yield family("triomq_storage_used_ratio", usage.ratio)
            yield family("triomq_storage_free_bytes", usage.free)
        yield family(
            "rocketmq_storage_flush_behind_bytes",
            [Sample(store.appended.value - store.flushed.value, STORAGE)],
        )
        yield family(
            "rocketmq_storage_dispatch_behind_bytes",
            [Sample(store.confirmed.value - store.indexed.value, STORAGE)],
        )
        yield family(
            "rocketmq_storage_message_reserve_time_milliseconds",
            [Sample(max(0, self.clock_ms() - self._oldest_ms), STORAGE)] if self._oldest_ms else [],
        )
        yield family("triomq_storage_writable", store.health.writable)
        yield family("triomq_storage_min_offset_bytes", store.first_offset)
        yield from self._watermarks()
        yield family("triomq_storage_append_seconds_max", store.append_max_seconds)
        statistics = self.statistics
        yield family(
            "triomq_storage_append_seconds",
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
        yield family(
            "triomq_fsync_seconds", [Histogram({}, syncs.edges, syncs.counts, syncs.seconds)]
        )
        yield family("triomq_storage_put_failures_total", statistics.totals.puts_failed)
        yield family("triomq_replication_sends_refused_total", statistics.totals.puts_too_few)
        yield family("triomq_storage_time_steps_back_total", store.index_syncer.steps_back)
        yield family(
            "triomq_storage_damaged_records_total", by_label("topic", store.damaged.counts)
        )

    def _watermarks(self) -> Iterator[Family]:
        store = self.store
        yield family("triomq_storage_max_offset_bytes", store.appended.value)
        yield family(
            "triomq_storage_watermark_bytes",
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
