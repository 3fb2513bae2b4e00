"""Figures for people and tools: GET_BROKER_RUNTIME_INFO (28) and VIEW_BROKER_STATS_DATA (315).

mqadmin parses several of these texts as numbers and fails when one is missing, so every key that a Java broker has is here; what does not
exist in this broker (timer wheel, transient pool) has Java's value for "off".
Source: broker/processor/AdminBrokerProcessor.java#prepareRuntimeInfo, store/StoreStatsService.java#getRuntimeInfo.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs
import trio

from triomq.broker.config import BrokerConfig
from triomq.broker.services.delay import DelayedMessages
from triomq.broker.services.groups import GroupTable
from triomq.broker.services.live_settings import LiveSettings
from triomq.broker.services.statistics import PUT_TIME_BOUNDS_MS, Item, Snapshot, Statistics, snapshot
from triomq.broker.store.store import MessageStore
from triomq.remoting.errors import Rejected
from triomq.remoting.protocol.bodies.cluster import KvTable
from triomq.remoting.protocol.bodies.offsets import BrokerStats, StatsItem
from triomq.remoting.protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode, version_name
from triomq.remoting.protocol.headers.admin import BrokerStatsHeader
from triomq.remoting.protocol.record import decode_records
from triomq.remoting.server.connection import Connection
from triomq.remoting.server.handlers import Request, Response
from triomq.remoting.server.server import Server
from triomq.remoting.server.statistics import ServerStatistics

# Java's name of a queue -> our pool.
POOL_KEYS: Mapping[str, str] = {"send": "send", "pull": "pull", "litePull": "lite-pull", "query": "query", "ack": "ack"}
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
assert len(PUT_TIME_LABELS) == len(PUT_TIME_BOUNDS_MS) + 1


@attrs.define(eq=False)
class RuntimeFigures:
    """Both handlers."""

    config: BrokerConfig
    store: MessageStore
    statistics: Statistics
    delayed: DelayedMessages
    live: LiveSettings
    clients: GroupTable[Connection]
    server: Server = attrs.field(init=False)

    async def handle(self, request: Request) -> Response:
        table = {**self._general(), **self._puts_and_gets(), **self._log(), **self._pools(), **network_figures(self.server.statistics()), **self._mismatches()}
        oldest = await self.store.read_record(self.store.statistics().oldest)
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
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }

    def _mismatches(self) -> dict[str, str]:
        """Groups whose members do not subscribe the same: a key of our own for each."""
        now = trio.current_time()
        return {
            f"subscriptionMismatch_{group.name}": f"for {now - group.mismatch_since:.0f} s: {group.mismatch}"
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
            "getTotalTps": rates_text((found[0] + missed[0], found[1] + missed[1], found[2] + missed[2])),
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
        figures = self.store.statistics()
        log_path = os.fspath(self.config.store.commitlog)
        log_ratio, free_text = self._disk(self.config.store.commitlog)
        queue_ratio, _ = self._disk(self.config.store.root)
        return {
            "commitLogMinOffset": str(figures.oldest),
            "commitLogMaxOffset": str(figures.appended),
            "commitLogFlushedOffset": str(figures.flushed),
            "commitLogConfirmedOffset": str(figures.confirmed),
            "commitLogIndexedOffset": str(figures.indexed),
            "commitLogDiskRatio": log_ratio,
            f"commitLogDiskRatio_{log_path}": log_ratio,
            "consumeQueueDiskRatio": queue_ratio,
            "commitLogDirCapacity": free_text,
            "dispatchBehindBytes": str(figures.confirmed - figures.indexed),
            "dispatchMaxBuffer": str(figures.backlog_bytes),
            "remainHowManyDataToFlush": size_text(figures.appended - figures.flushed),
            "pageCacheLockTimeMills": str(self.store.stall.since_ms()),
        }

    def _disk(self, path: Path) -> tuple[str, str]:
        """(share in use, capacity in words) of the file system of a path; -1 for one that is missing."""
        try:
            usage = self.store.disk.usage(path)
        except OSError:
            return "-1.0", "Total : 0 B, Free : 0 B."
        return f"{usage.ratio:.4f}", f"Total : {size_text(usage.used + usage.free)}, Free : {size_text(usage.free)}."

    def _pools(self) -> dict[str, str]:
        pools = self.server.pools
        table = {}
        for key, name in POOL_KEYS.items():
            table[f"{key}ThreadPoolQueueSize"] = str(len(pools[name]))
            table[f"{key}ThreadPoolQueueCapacity"] = str(pools[name].config.queue_requests_max)
            table[f"{key}ThreadPoolQueueHeadWaitTimeMills"] = str(round(pools[name].head_wait_seconds() * 1000))
        table["EndTransactionQueueSize"] = str(len(pools["transaction"]))
        table["EndTransactionThreadPoolQueueCapacity"] = str(pools["transaction"].config.queue_requests_max)
        return table

    def item(self, request: Request) -> Response:
        """VIEW_BROKER_STATS_DATA: one item over a minute, an hour and a day."""
        header: BrokerStatsHeader = request.header
        found = self.statistics.items.get((header.stats_name, header.stats_key))
        if found is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
        return Response(body=item_body(found).encode())


def network_figures(figures: ServerStatistics) -> dict[str, str]:
    """Connections, refusals by pool and the figures of each request code: keys of our own, which other tools print as they are."""
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
            table[f"refused_{name}"] = f"overload {pool.overloaded}, rejected {pool.rejected}, waited {pool.expired}, stalled {pool.stalled}"
    for code, one in sorted(figures.codes.items()):
        table[f"request_{code}_{code_name(code)}"] = (
            f"count {one.requests}, errors {one.errors}, failed {one.failed}, refused {one.refused}, "
            f"p50 {milliseconds_text(one.latency_quantile(0.5))}, p99 {milliseconds_text(one.latency_quantile(0.99))}, "
            f"queued {one.queued}, wait mean {milliseconds_text(one.wait_seconds_mean)}, wait max {milliseconds_text(one.wait_seconds_max)}"
        )
    return table


def code_name(code: int) -> str:
    return RequestCode(code).name if code in RequestCode._value2member_map_ else "UNKNOWN"


def milliseconds_text(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms"


def item_body(item: Item) -> BrokerStats:
    def column(part: Snapshot) -> StatsItem:
        return StatsItem(part.total, part.per_second, part.per_time)

    return BrokerStats(column(snapshot(item.minute)), column(snapshot(item.hour)), column(snapshot(item.day)))


def rates_text(rates: tuple[float, float, float]) -> str:
    """Three numbers, as the tools split them."""
    return " ".join(f"{rate:.2f}" for rate in rates)


def uptime_text(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.1f} {unit}" if unit != "B" else f"{int(size_bytes)} B"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
