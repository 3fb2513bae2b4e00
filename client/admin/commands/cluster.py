"""Commands about brokers: clusterList, brokerStatus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triomq.client.admin.admin import Admin, BrokerAddress
from triomq.client.admin.arguments import Option, Values, filled, whole
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.times import now_ms

Status = Mapping[str, str]


def _number(status: Status, key: str) -> float | None:
    """Return a counter as a number; None if the broker does not report it, which is not the same as 0."""
    try:
        return float(status[key])
    except (KeyError, ValueError):
        return None


def _rate(status: Status, *keys: str) -> float | None:
    """Return the rate of the last ten seconds out of a text of three rates; older brokers spell some keys in another way."""
    for key in keys:
        try:
            return float(status[key].split()[0])
        except (KeyError, ValueError, IndexError):
            continue
    return None


def _text(value: float | None, form: str = "{:.2f}") -> str:
    return "" if value is None else form.format(value)


def _count(status: Status, key: str) -> int | None:
    value = _number(status, key)
    return None if value is None else int(value)


def broker_row(broker: BrokerAddress, status: Status | None, error: str | None, clock_ms: int) -> dict[str, Any]:
    """Return what clusterList says about one broker; None for everything that the broker did not say."""
    known = status or {}
    oldest = _number(known, "earliestMessageTimeStamp")
    disk = _number(known, "commitLogDiskRatio")
    return {
        "clusterName": broker.cluster,
        "brokerName": broker.name,
        "brokerId": broker.id,
        "address": broker.address,
        "reachable": status is not None,
        "error": error,
        "version": known.get("brokerVersionDesc"),
        "inTps": _rate(known, "putTps"),
        "outTps": _rate(known, "getTransferredTps", "getTransferedTps"),
        "sendQueueSize": _count(known, "sendThreadPoolQueueSize"),
        "sendQueueWaitMs": _count(known, "sendThreadPoolQueueHeadWaitTimeMills"),
        "pullQueueSize": _count(known, "pullThreadPoolQueueSize"),
        "pullQueueWaitMs": _count(known, "pullThreadPoolQueueHeadWaitTimeMills"),
        "ackQueueSize": _count(known, "ackThreadPoolQueueSize"),
        "ackQueueWaitMs": _count(known, "ackThreadPoolQueueHeadWaitTimeMills"),
        "timerReadBehind": _count(known, "timerReadBehind"),
        "timerOffsetBehind": _count(known, "timerOffsetBehind"),
        "timerCongestion": _count(known, "timerCongestNum"),
        "timerInTps": _rate(known, "timerEnqueueTps"),
        "timerOutTps": _rate(known, "timerDequeueTps"),
        "pageCacheLockMs": _count(known, "pageCacheLockTimeMills"),
        "oldestMessageHours": round((clock_ms - oldest) / 3_600_000, 4) if oldest is not None and oldest > 0 else None,
        "diskRatio": disk,
        "active": known.get("brokerActive") == "true" if status is not None else None,
        "inTotalYesterday": _day(known, "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
        "outTotalYesterday": _day(known, "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
        "inTotalToday": _day(known, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "outTotalToday": _day(known, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
    }


def _day(status: Status, end: str, begin: str) -> int | None:
    last, first = _count(status, end), _count(status, begin)
    return None if last is None or first is None else last - first


LOAD_COLUMNS = (
    Column("Cluster Name"),
    Column("Broker Name"),
    Column("BID", right=True),
    Column("Addr"),
    Column("Version"),
    Column("InTPS(LOAD)", right=True),
    Column("OutTPS(LOAD)", right=True),
    Column("Timer(Progress)", right=True),
    Column("PCWait(ms)", right=True),
    Column("Hour", right=True),
    Column("SPACE", right=True),
    Column("ACTIVATED", right=True),
)
TOTAL_COLUMNS = (
    Column("Cluster Name"),
    Column("Broker Name"),
    Column("InTotalYest", right=True),
    Column("OutTotalYest", right=True),
    Column("InTotalToday", right=True),
    Column("OutTotalToday", right=True),
)


def _load_cells(row: Mapping[str, Any]) -> list[str]:
    begin = [row["clusterName"], row["brokerName"], str(row["brokerId"]), row["address"]]
    if not row["reachable"]:
        return [*begin, "no answer", "", "", "", "", "", "", ""]
    ack = "N" if row["ackQueueSize"] is None else f"{row['ackQueueSize']},{_text(row['ackQueueWaitMs'], '{:.0f}')}ms"
    pull = f"{_text(row['pullQueueSize'], '{:.0f}')},{_text(row['pullQueueWaitMs'], '{:.0f}')}ms"
    timer = ""
    if row["timerReadBehind"] is not None:
        congestion = (row["timerCongestion"] or 0) / 10_000
        rates = f"{row['timerInTps'] or 0:.1f}, {row['timerOutTps'] or 0:.1f}"
        timer = f"{row['timerReadBehind']}-{row['timerOffsetBehind'] or 0}({congestion:.1f}w, {rates})"
    return [
        *begin,
        row["version"] or "",
        f"{_text(row['inTps'])}({_text(row['sendQueueSize'], '{:.0f}')},{_text(row['sendQueueWaitMs'], '{:.0f}')}ms)",
        f"{_text(row['outTps'])}({pull}|{ack})",
        timer,
        _text(row["pageCacheLockMs"], "{:.0f}"),
        _text(row["oldestMessageHours"]),
        _text(row["diskRatio"], "{:.4f}"),
        "true" if row["active"] else "false",
    ]


def _total_cells(row: Mapping[str, Any]) -> list[str]:
    totals = (row["inTotalYesterday"], row["outTotalYesterday"], row["inTotalToday"], row["outTotalToday"])
    return [row["clusterName"], row["brokerName"], *("" if total is None else str(total) for total in totals)]


async def cluster_list(admin: Admin, options: Values) -> Result:
    """List the brokers of one cluster or of all, with their load."""
    brokers = await admin.brokers(options.maybe_text("clusterName"))
    answers = await admin.statuses(brokers)
    reasons = answers.reasons()
    clock = now_ms()
    rows = [
        broker_row(broker, answers.values.get(broker.address), reasons.get(broker.address), clock) for broker in brokers
    ]
    if options.flag("moreStats"):
        table = Table(TOTAL_COLUMNS, [_total_cells(row) for row in rows])
    else:
        table = Table(LOAD_COLUMNS, [_load_cells(row) for row in rows])
    notes = [] if brokers else ["no broker is registered at the name server; start one with `mqbroker -n ADDRESSES`"]
    return Result(
        document={"brokers": rows, "failures": reasons},
        blocks=[table],
        failures=reasons,
        asked=answers.asked,
        notes=notes,
    )


async def broker_status(admin: Admin, options: Values) -> Result:
    """Print the runtime counters of one broker, or of all in a cluster."""
    address = options.maybe_text("brokerAddr")
    if address is not None:
        status = await admin.broker_status(address)
        return Result(
            document={"brokers": {address: status}, "failures": {}},
            blocks=[Table((Column("Name"), Column("Value")), [[key, status[key]] for key in sorted(status)])],
        )
    answers = await admin.statuses(await admin.brokers(options.text("clusterName")))
    rows = [[address, key, status[key]] for address, status in answers.some().items() for key in sorted(status)]
    return Result(
        document={"brokers": dict(answers.values), "failures": answers.reasons()},
        blocks=[Table((Column("Addr"), Column("Name"), Column("Value")), rows)],
        failures=answers.reasons(),
        asked=answers.asked,
    )


COMMANDS = (
    Command(
        name="clusterList",
        group="cluster",
        summary="list clusters and their brokers, with load and health",
        run=cluster_list,
        options=(
            Option("m", "moreStats", "totals of yesterday and today instead of load", None),
            Option("i", "interval", "repeat for ever, every so many seconds", whole(1), placeholder="SECONDS"),
            Option("c", "clusterName", "only this cluster", filled, placeholder="NAME"),
        ),
        examples=("clusterList -n 127.0.0.1:9876", "clusterList --json"),
        document='{"brokers": [{"clusterName", "brokerName", "brokerId", "address", "reachable", "error", "version", "inTps", "outTps", "sendQueueSize", '
        '"sendQueueWaitMs", "pullQueueSize", "pullQueueWaitMs", "ackQueueSize", "ackQueueWaitMs", "timerReadBehind", "timerOffsetBehind", '
        '"timerCongestion", "timerInTps", "timerOutTps", "pageCacheLockMs", "oldestMessageHours", "diskRatio", "active", "inTotalYesterday", '
        '"outTotalYesterday", "inTotalToday", "outTotalToday"}], "failures": {address: reason}}; null = the broker did not say',
        remarks=("A broker that does not answer has a row that says so; nothing is shown as 0 that is not known.",),
    ),
    Command(
        name="brokerStatus",
        group="cluster",
        summary="print the runtime counters of brokers",
        run=broker_status,
        options=(
            Option("b", "brokerAddr", "one broker, host:port", filled, placeholder="ADDRESS"),
            Option("c", "clusterName", "all brokers of a cluster", filled, placeholder="NAME"),
        ),
        one_of=(("brokerAddr", "clusterName"),),
        examples=("brokerStatus -b 127.0.0.1:10911", "brokerStatus -c DefaultCluster --json"),
        document='{"brokers": {address: {counter: text}}, "failures": {address: reason}}',
    ),
)
