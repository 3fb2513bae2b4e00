"""Figures for operators and tools: GET_BROKER_RUNTIME_INFO (28) and VIEW_BROKER_STATS_DATA (315).

mqadmin parses several of these texts as numbers and fails if a text is missing, so all keys of a
Java broker are here. Parts that this broker does not have (transient pool) have Java's value for
"off". Source: broker/processor/AdminBrokerProcessor.java#prepareRuntimeInfo,
store/StoreStatsService.java#getRuntimeInfo.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.groups import GroupTable
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.statistics import PUT_TIME_BOUNDS_MS, Statistics, summary
from triomq.broker.services.timers.timers import Timers
from triomq.broker.store.store import MessageStore
from triomq.remoting.access.quotas import Quotas
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.offsets import BrokerStats, LargestStats
from triomq.remoting.protocol.codes import (
    PROTOCOL_VERSION,
    ResponseCode,
    request_name,
    version_name,
)
from triomq.remoting.protocol.headers.admin import BrokerStatsHeader
from triomq.remoting.protocol.record_reader import decode_records
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.requests import Request, Response
from triomq.remoting.server.server import Server
from triomq.remoting.server.statistics import ServerStatistics

# Java's name of a queue -> TrioMQ's pool.
POOL_KEYS: Mapping[str, str] = {
    "send": "send",
    "pull": "pull",
    "litePull": "lite-pull",
    "query": "query",
    "ack": "ack",
}
PUT_TIME_LABELS = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
ALL_KEYS = "*"
"""no topic or group has this name"""
LARGEST_MAX = 100
"""keys of one answer"""
KEYS_OF_A_STEP = 1000
assert len(PUT_TIME_LABELS) == len(PUT_TIME_BOUNDS_MS) + 1


@attrs.define(eq=False)
class RuntimeFigures:
    """The handlers."""

    config: BrokerConfig
    store: MessageStore
    statistics: Statistics
    delayed: DelayedMessages
    live: LiveSettings
    clients: GroupTable[Connection]
    server: Callable[[], Server]
    """Return the server that calls this handler: it does not exist yet when the handler is made."""
    timers: Timers | None = None
    parted: Callable[[], str] = lambda: ""
    """Return why this slave's log is another one than its master's, an empty text if it is not."""
    quotas: Quotas | None = None
    changed_settings: Callable[[], str] = lambda: ""

    async def handle(self, request: Request) -> Response:
        """Return all figures as texts."""
        table = {
            **self._general(),
            **self._timers(),
            **self._puts_and_gets(),
            **self._log(),
            **self._pools(),
            **network_figures(self.server().statistics()),
            **self._mismatches(),
            "changedSettings": self.changed_settings(),  # TrioMQ's own key
        }
        if self.quotas is not None:  # TrioMQ's own keys
            for (quota, unit), count in self.quotas.refused.items():
                table[f"quotaRefused_{quota}_{unit}"] = str(count)
        if parted := self.parted():
            table["logsParted"] = parted  # TrioMQ's own key
        oldest = await self.store.read_record(self.store.first_offset)
        for level, (offset, end) in self.delayed.progress().items():
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        messages = decode_records(oldest) if oldest is not None else []
        table["earliestMessageTimeStamp"] = str(messages[0].store_timestamp if messages else -1)
        return Response(body=KvTable(dict(sorted(table.items()))).encode())

    def _general(self) -> dict[str, str]:
        now = self.statistics.clock_ms()
        return {
            "bootTimestamp": str(self.statistics.boot_ms),
            "runtime": uptime_text(now - self.statistics.boot_ms),
            "brokerVersionDesc": version_name(PROTOCOL_VERSION),
            "brokerVersion": str(PROTOCOL_VERSION),
            "brokerActive": "true",
            "startAcceptSendRequestTimeStamp": str(self.live.accept_sends_from_ms),
        }

    def _timers(self) -> dict[str, str]:
        timers = self.timers
        behind_ms, offsets, count = timers.behind() if timers is not None else (0, 0, 0)
        enqueued, delivered = timers.rates if timers is not None else (0.0, 0.0)
        return {
            "timerReadBehind": str(behind_ms // 1000),
            "timerOffsetBehind": str(offsets),
            "timerCongestNum": str(count),
            "timerEnqueueTps": f"{enqueued:.1f}",
            "timerDequeueTps": f"{delivered:.1f}",
        }

    def _mismatches(self) -> dict[str, str]:
        """Return an entry, under a key of TrioMQ's own, for each group whose members disagree."""
        now = trio.current_time()
        return {
            f"subscriptionMismatch_{group.name}": (
                f"for {now - group.mismatch_since:.0f} s: {group.mismatch}"
            )
            for group in self.clients.consumers.values()
            if group.mismatch is not None
        }

    def _puts_and_gets(self) -> dict[str, str]:
        statistics = self.statistics
        totals = statistics.totals
        found, missed = statistics.rates(2), statistics.rates(3)
        handed_out = rates_text(statistics.rates(4))
        average = totals.put_bytes / totals.puts if totals.puts else 0.0
        times = zip(PUT_TIME_LABELS, statistics.put_times, strict=True)
        return {
            "putMessageEntireTimeMax": str(round(statistics.put_time_max * 1000)),
            "getMessageEntireTimeMax": str(round(statistics.get_time_max * 1000)),
            "putMessageTimesTotal": str(totals.puts),
            "putMessageFailedTimes": str(totals.puts_failed),
            "putMessageSizeTotal": str(totals.put_bytes),
            "putMessageAverageSize": f"{average:.2f}",
            "putMessageDistributeTime": " ".join(f"{label}:{count}" for label, count in times),
            "putLatency99": f"{statistics.put_time_quantile(0.99):.2f}",
            "putLatency999": f"{statistics.put_time_quantile(0.999):.2f}",
            "putTps": rates_text(statistics.rates(1)),
            "getFoundTps": rates_text(found),
            "getMissTps": rates_text(missed),
            "getTotalTps": rates_text(
                (found[0] + missed[0], found[1] + missed[1], found[2] + missed[2])
            ),
            "getTransferredTps": handed_out,
            "getTransferedTps": handed_out,
            "msgPutTotalYesterdayMorning": str(statistics.puts_at_midnights[0]),
            "msgPutTotalTodayMorning": str(statistics.puts_at_midnights[1]),
            "msgPutTotalTodayNow": str(totals.puts),
            "msgGetTotalYesterdayMorning": str(statistics.gets_at_midnights[0]),
            "msgGetTotalTodayMorning": str(statistics.gets_at_midnights[1]),
            "msgGetTotalTodayNow": str(totals.gets_messages),
        }

    def _log(self) -> dict[str, str]:
        store = self.store
        log_path = os.fspath(self.config.store.commitlog)
        log_ratio, free_text = self._disk(self.config.store.commitlog)
        queue_ratio, _ = self._disk(self.config.store.root)
        return {
            "commitLogMinOffset": str(store.first_offset),
            "commitLogMaxOffset": str(store.appended.value),
            "commitLogFlushedOffset": str(store.flushed.value),
            "commitLogConfirmedOffset": str(store.confirmed.value),
            "commitLogIndexedOffset": str(store.indexed.value),
            "commitLogDiskRatio": log_ratio,
            f"commitLogDiskRatio_{log_path}": log_ratio,
            "consumeQueueDiskRatio": queue_ratio,
            "commitLogDirCapacity": free_text,
            "dispatchBehindBytes": str(store.confirmed.value - store.indexed.value),
            "dispatchMaxBuffer": str(store.indexer.backlog_bytes),
            "remainHowManyDataToFlush": size_text(store.appended.value - store.flushed.value),
            "pageCacheLockTimeMills": str(store.stall.since_ms()),
        }

    def _disk(self, path: Path) -> tuple[str, str]:
        """Return the used share and the capacity of a path's file system as texts; -1 if none."""
        try:
            usage = self.store.disk.usage(path)
        except OSError:
            return "-1.0", "Total : 0 B, Free : 0 B."
        return (
            f"{usage.ratio:.4f}",
            f"Total : {size_text(usage.used + usage.free)}, Free : {size_text(usage.free)}.",
        )

    def _pools(self) -> dict[str, str]:
        pools = self.server().pools
        table = {}
        for key, name in POOL_KEYS.items():
            table[f"{key}ThreadPoolQueueSize"] = str(len(pools[name]))
            table[f"{key}ThreadPoolQueueCapacity"] = str(pools[name].config.queue_requests_max)
            table[f"{key}ThreadPoolQueueHeadWaitTimeMills"] = str(
                round(pools[name].head_wait_seconds() * 1000)
            )
        table["EndTransactionQueueSize"] = str(len(pools["transaction"]))
        table["EndTransactionThreadPoolQueueCapacity"] = str(
            pools["transaction"].config.queue_requests_max
        )
        return table

    async def item(self, request: Request) -> Response:
        """Return one statistics item over a minute, an hour and a day. Raises: Rejected."""
        header: BrokerStatsHeader = request.header
        if header.stats_key == ALL_KEYS:
            return await self._largest(header.stats_name)
        found = self.statistics.items.get((header.stats_name, header.stats_key))
        if found is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        body = BrokerStats(summary(found.minute), summary(found.hour), summary(found.day))
        return Response(body=body.encode())

    async def _largest(self, name: str) -> Response:
        """Return the sums of an item over all keys, and its largest keys. Checkpoint: maybe."""
        sums: dict[str, list[int]] = {}
        for number, (key, item) in enumerate(list(self.statistics.by_name.get(name, {}).items())):
            # Up to now: the last sample of an hour may be ten minutes old, when a disk is full.
            sums[key] = [item.value - (s[0][1] if s else 0) for s in (item.hour, item.day)]
            if number % KEYS_OF_A_STEP == KEYS_OF_A_STEP - 1:
                await trio.lowlevel.checkpoint()
        largest = heapq.nlargest(LARGEST_MAX, sums, key=lambda key: (sums[key][1], key))
        body = LargestStats(
            hour=sum(hour for hour, _ in sums.values()),
            day=sum(day for _, day in sums.values()),
            count=len(sums),
            largest={key: sums[key] for key in largest},
        )
        return Response(body=body.encode())


def network_figures(figures: ServerStatistics) -> dict[str, str]:
    """Return connections, refusals by pool and the figures of each request code.

    The keys are TrioMQ's own; other tools print them unchanged.
    """
    table = {
        "connections": str(figures.connections),
        "connectionsAccepted": str(figures.accepted),
        "connectionsClosedIdle": str(figures.closed_idle),
        "connectionsTurnedAway": str(figures.turned_away),
    }
    for port, accepted in figures.accepted_by_side_port.items():
        table[f"connectionsAccepted_{port}"] = str(accepted)
    for name, pool in figures.pools.items():
        if pool.overloaded or pool.rejected or pool.expired or pool.stalled:
            table[f"refused_{name}"] = (
                f"overload {pool.overloaded}, rejected {pool.rejected}, waited {pool.expired},"
                f" stalled {pool.stalled}"
            )
    for code, figure in sorted(figures.codes.items()):
        table[f"request_{code}_{request_name(code)}"] = (
            f"count {figure.requests}, errors {figure.errors}, failed {figure.failed}, refused"
            f" {figure.refused}, p50 {milliseconds_text(figure.latency_quantile(0.5))}, p99"
            f" {milliseconds_text(figure.latency_quantile(0.99))}, queued {figure.queued}, wait"
            f" mean {milliseconds_text(figure.wait_seconds_mean)}, wait max"
            f" {milliseconds_text(figure.wait_seconds_max)}"
        )
    return table


def milliseconds_text(seconds: float) -> str:
    """Return a duration in milliseconds."""
    return f"{seconds * 1000:.3f} ms"


def rates_text(rates: tuple[float, float, float]) -> str:
    """Return three numbers in the form that the tools split."""
    return " ".join(f"{rate:.2f}" for rate in rates)


def uptime_text(milliseconds: int) -> str:
    """Return a duration in days, hours, minutes and seconds, in Java's form."""
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def size_text(size_bytes: float) -> str:
    """Return a size with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.1f} {unit}" if unit != "B" else f"{int(size_bytes)} B"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
