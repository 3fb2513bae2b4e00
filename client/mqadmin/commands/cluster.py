"""Commands about brokers: clusterList, brokerStatus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.cluster_view import first_number
from triomq.client.admin.missing_brokers import MissingBroker, with_missing
from triomq.client.admin.times import now_ms
from triomq.client.mqadmin.core.command import INTERVAL, AdminCommand
from triomq.client.mqadmin.core.places import BROKERS, NO_BROKERS, beside_missing
from triomq.client.mqadmin.core.result import Result, Row, Table, answered, table_of

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.broker_address import BrokerAddress

Status = Mapping[str, str]


def _text(value: float | None, form: str = "{:.2f}") -> str:
    return "" if value is None else form.format(value)


def _count(status: Status, key: str) -> int | None:
    value = first_number(status, key)
    return None if value is None else int(value)


def broker_row(
    broker: BrokerAddress | MissingBroker, status: Status | None, error: str | None, clock_ms: int
) -> dict[str, object]:
    """Return the row of one broker in clusterList; a value that it did not report is None."""
    known = status or {}
    oldest = first_number(known, "earliestMessageTimeStamp")
    disk = first_number(known, "commitLogDiskRatio")
    return {
        "clusterName": broker.cluster,
        "brokerName": broker.name,
        "brokerId": broker.id,
        "address": broker.address,
        "reachable": status is not None,
        "error": error,
        "missing": broker.since if isinstance(broker, MissingBroker) else None,
        "version": known.get("brokerVersionDesc"),
        "inTps": first_number(known, "putTps"),
        "outTps": first_number(known, "getTransferredTps", "getTransferedTps"),
        "sendQueueSize": _count(known, "sendThreadPoolQueueSize"),
        "sendQueueWaitMs": _count(known, "sendThreadPoolQueueHeadWaitTimeMills"),
        "pullQueueSize": _count(known, "pullThreadPoolQueueSize"),
        "pullQueueWaitMs": _count(known, "pullThreadPoolQueueHeadWaitTimeMills"),
        "ackQueueSize": _count(known, "ackThreadPoolQueueSize"),
        "ackQueueWaitMs": _count(known, "ackThreadPoolQueueHeadWaitTimeMills"),
        "timerReadBehind": _count(known, "timerReadBehind"),
        "timerOffsetBehind": _count(known, "timerOffsetBehind"),
        "timerCongestion": _count(known, "timerCongestNum"),
        "timerInTps": first_number(known, "timerEnqueueTps"),
        "timerOutTps": first_number(known, "timerDequeueTps"),
        "pageCacheLockMs": _count(known, "pageCacheLockTimeMills"),
        "oldestMessageHours": round((clock_ms - oldest) / 3_600_000, 4)
        if oldest is not None and oldest > 0
        else None,
        "diskRatio": disk,
        "active": known["brokerActive"] == "true" if "brokerActive" in known else None,
        "inTotalYesterday": _day(known, "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
        "outTotalYesterday": _day(known, "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
        "inTotalToday": _day(known, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "outTotalToday": _day(known, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
    }


def _day(status: Status, end: str, begin: str) -> int | None:
    last, first = _count(status, end), _count(status, begin)
    return None if last is None or first is None else last - first


LOAD_COLUMNS = (
    "Cluster Name",
    "Broker Name",
    ">BID",
    "Addr",
    "Version",
    ">InTPS(LOAD)",
    ">OutTPS(LOAD)",
    ">Timer(Progress)",
    ">PCWait(ms)",
    ">Hour",
    ">SPACE",
    ">ACTIVATED",
)
LOAD_SPARE = ("Timer(Progress)", "PCWait(ms)", "Hour", "Version", "ACTIVATED", "Cluster Name")
TOTAL_COLUMNS = {
    "Cluster Name": "clusterName",
    "Broker Name": "brokerName",
    ">InTotalYest": "inTotalYesterday",
    ">OutTotalYest": "outTotalYesterday",
    ">InTotalToday": "inTotalToday",
    ">OutTotalToday": "outTotalToday",
}


def _load_cells(row: Row) -> list[str]:
    begin = [row["clusterName"], row["brokerName"], str(row["brokerId"]), row["address"]]
    if not row["reachable"]:
        return [*begin, row["missing"] or "no answer", "", "", "", "", "", "", ""]
    ack = (
        "N"
        if row["ackQueueSize"] is None
        else f"{row['ackQueueSize']},{_text(row['ackQueueWaitMs'], '{:.0f}')}ms"
    )
    send = f"{_text(row['sendQueueSize'], '{:.0f}')},{_text(row['sendQueueWaitMs'], '{:.0f}')}ms"
    pull = f"{_text(row['pullQueueSize'], '{:.0f}')},{_text(row['pullQueueWaitMs'], '{:.0f}')}ms"
    timer = ""
    if row["timerReadBehind"] is not None:
        congestion = (row["timerCongestion"] or 0) / 10_000
        rates = f"{row['timerInTps'] or 0:.1f}, {row['timerOutTps'] or 0:.1f}"
        timer = (
            f"{row['timerReadBehind']}-{row['timerOffsetBehind'] or 0}({congestion:.1f}w, {rates})"
        )
    return [
        *begin,
        row["version"] or "",
        f"{_text(row['inTps'])}({send})",
        f"{_text(row['outTps'])}({pull}|{ack})",
        timer,
        _text(row["pageCacheLockMs"], "{:.0f}"),
        _text(row["oldestMessageHours"]),
        _text(row["diskRatio"], "{:.4f}"),
        "" if row["active"] is None else str(row["active"]).lower(),
    ]


async def cluster_list(admin: Admin, options: Values) -> Result:
    brokers = await admin.brokers(options.maybe_text("clusterName"))
    listed = {broker.address for broker in brokers}
    missing = [
        broker
        for broker in await admin.missing_brokers(options.maybe_text("clusterName")) or ()
        if broker.address not in listed
    ]
    answers = with_missing(
        await admin.statuses(brokers), {broker.address: broker for broker in missing}
    )
    reasons = answers.reasons()
    clock = now_ms()
    every: list[BrokerAddress | MissingBroker] = [*brokers, *missing]
    every.sort(key=lambda one: (one.cluster, one.name, one.id))
    rows = [
        broker_row(broker, answers.values.get(broker.address), reasons.get(broker.address), clock)
        for broker in every
    ]
    if options.flag("moreStats"):
        table = table_of(rows, TOTAL_COLUMNS)
    else:
        table = Table(LOAD_COLUMNS, [_load_cells(row) for row in rows], LOAD_SPARE)
    notes = [] if rows else [NO_BROKERS]
    return answered(answers, {"brokers": rows}, [table], notes=notes)


async def broker_status(admin: Admin, options: Values) -> Result:
    address = options.maybe_text("brokerAddr")
    if address is not None:
        status = await admin.broker_status(address)
        return Result(
            document={"brokers": {address: status}},
            failures={},
            blocks=[Table(("Name", "Value"), sorted(status.items()))],
        )
    brokers = await admin.brokers(options.text("clusterName"))
    answers = await beside_missing(admin, options, await admin.statuses(brokers))
    rows = [
        [address, key, status[key]]
        for address, status in answers.some().items()
        for key in sorted(status)
    ]
    return answered(
        answers, {"brokers": dict(answers.values)}, [Table(("Addr", "Name", "Value"), rows)]
    )


COMMANDS = (
    AdminCommand("clusterList", cluster_list).with_options(
        Option("-m, --moreStats", "print totals of yesterday and today instead of load"),
        INTERVAL,
        Option("-c, --clusterName NAME", "only this cluster"),
    ),
    AdminCommand("brokerStatus", broker_status).with_options(*BROKERS),
)
