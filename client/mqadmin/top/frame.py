"""One frame of ``mqadmin top``: what is known at one moment, as rows. Pure.

A value that is not known is None, and never 0: the counters of a broker that does not answer, the
rate of a topic that has not had its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import attrs

from triomq.client.admin.cluster_view import BrokerRow, ClusterView, GroupRow, TopicRow
from triomq.client.mqadmin.core.result import Row
from triomq.client.mqadmin.top.details import DETAIL_SECONDS_MAX, GroupDetail, TopicDetail

D = TypeVar("D", TopicDetail, GroupDetail)
NAME_SERVER, MASTER, SLAVE = "name server", "master", "slave"


@attrs.frozen(kw_only=True)
class TopFrame:
    """One moment of the view."""

    view: ClusterView = attrs.field(factory=ClusterView)
    topics: Mapping[str, TopicDetail] = attrs.field(factory=dict)
    groups: Mapping[str, GroupDetail] = attrs.field(factory=dict)

    def age_seconds(self, now: float) -> float | None:
        """Return the age of the newest answers; None before the first poll has ended."""
        return max(0.0, now - self.view.taken_at) if self.view.taken_at else None

    def failures(self) -> dict[str, str]:
        """Return server → why it does not answer, and broker name → why its tables are missing."""
        silent = {row.address: row.failure for row in self.view.name_servers if row.failure}
        for broker in self.view.brokers:
            if (why := broker_problem(broker)) is not None:
                silent[broker.address] = why
        names = {row.name for row in self.view.brokers if row.answers}
        tables = {name: why for name, why in self.view.tables_missing.items() if name in names}
        return silent | tables


def broker_problem(broker: BrokerRow) -> str | None:
    """Return why a broker has no present values, None if it has."""
    if broker.gone_since is not None:
        return "it is not registered any more"
    if broker.failure is not None:
        return broker.failure or "no answer"
    return None if broker.answers else "not asked yet"


def server_rows(frame: TopFrame, now: float) -> list[Row]:
    """Return a row for each name server and broker."""
    view = frame.view
    rows: list[Row] = [
        {
            **dict.fromkeys(BROKER_KEYS),
            "role": NAME_SERVER,
            "address": server.address,
            "error": server.failure,
        }
        for server in view.name_servers
    ]
    lags = view.slave_lags
    return rows + [_broker_row(view, broker, lags, now) for broker in view.brokers]


BROKER_KEYS = (
    *("role", "address", "clusterName", "brokerName", "brokerId", "inSet", "epoch", "version"),
    *("inTps", "outTps", "commitLogDiskRatio", "slaveLagBytes", "pageCacheLockMs"),
    *("putLatency99Ms", "putLatency999Ms", "ageSeconds", "error"),
)


def _broker_row(
    view: ClusterView, broker: BrokerRow, lags: Mapping[str, int | None], now: float
) -> Row:
    group = view.sets.get(broker.name)
    return {
        "role": SLAVE if broker.id else MASTER,
        "address": broker.address,
        "clusterName": broker.cluster,
        "brokerName": broker.name,
        "brokerId": broker.id,
        "inSet": view.in_set(broker),
        "epoch": None if group is None else group.master_epoch,
        "version": broker.version,
        "inTps": broker.put_rate,
        "outTps": broker.get_rate,
        "commitLogDiskRatio": broker.disk_ratio,
        "slaveLagBytes": lags.get(broker.address),
        "pageCacheLockMs": broker.number("pageCacheLockTimeMills"),
        "putLatency99Ms": broker.number("putLatency99"),
        "putLatency999Ms": broker.number("putLatency999"),
        "ageSeconds": None if broker.seen_at is None else round(max(0.0, now - broker.seen_at), 1),
        "error": broker_problem(broker),
    }


def incompleteness(view: ClusterView) -> Callable[[Collection[str]], bool]:
    """Return a function that says whether a sum over some brokers may lack something.

    True if the table of one of these brokers is missing, or of a broker that never sent one.
    """
    missing = view.tables_missing.keys()
    if not missing:
        return lambda brokers: False
    known = {name for topic in view.topics.values() for name in topic.brokers}
    if missing - known:
        return lambda brokers: True
    return lambda brokers: not missing.isdisjoint(brokers)


def topic_table(frame: TopFrame, now: float, *, everything: bool) -> list[Row]:
    """Return a row for each topic; ``everything``: also those of the system, retries, the dead."""
    lacks = incompleteness(frame.view)
    return [
        _topic_row(topic, _fresh(frame.topics.get(name), now), lacks(topic.brokers))
        for name, topic in frame.view.topics.items()
        if everything or topic.kind == "normal"
    ]


def _topic_row(topic: TopicRow, detail: TopicDetail | None, missing: bool) -> Row:
    return {
        "topic": topic.name,
        "kind": topic.kind,
        "inTps": None if detail is None else detail.put_rate,
        "outTps": topic.get_rate,
        "in24h": None if detail is None else detail.day_count,
        "brokers": len(topic.brokers),
        "incomplete": missing or (detail is not None and not detail.whole),
    }


def group_table(frame: TopFrame, now: float, *, everything: bool) -> list[Row]:
    """Return a row for each group; ``everything``: also those of brokers and tools."""
    lacks = incompleteness(frame.view)
    return [
        _group_row(group, _fresh(frame.groups.get(name), now), lacks(group.brokers))
        for name, group in frame.view.groups.items()
        if everything or not group.system
    ]


def _group_row(group: GroupRow, detail: GroupDetail | None, missing: bool) -> Row:
    return {
        "group": group.name,
        "lag": group.lag,
        "members": None if detail is None else detail.members,
        "consumeTps": group.rate,
        "oldestSeconds": None if detail is None else detail.oldest_seconds,
        "topics": len(group.topics),
        "incomplete": missing or not group.whole,
    }


def _fresh(detail: D | None, now: float) -> D | None:
    """Return a detail, None if it is too old to be shown."""
    return detail if detail is not None and now - detail.taken_at < DETAIL_SECONDS_MAX else None
