"""What is known about a cluster at one moment, and the tables of its topics and groups. Pure.

``mqconsole`` and ``mqadmin top`` show it; ``cluster_poller.py`` reads it. What is not known is None
and never 0: a broker that does not answer, a counter that it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from triomq.remoting.protocol.bodies.controller import GroupReplicas
from triomq.remoting.protocol.bodies.offsets import BrokerConsumeStats
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    WELL_KNOWN_SYSTEM_TOPICS,
    is_system_group,
)

TABLE_ROWS_MAX = 50_000
"""topics or groups that are kept of a cluster"""
MESSAGE_TYPE = "message.type"


@attrs.frozen(kw_only=True)
class BrokerRow:
    """One broker: its last answer, and why there is none newer."""

    cluster: str
    name: str
    id: int
    address: str
    status: Mapping[str, str] | None = None
    """the last answer; None: it never answered"""
    seen_at: float | None = None
    """when that was, in seconds since 1970"""
    failure: str | None = None
    """why the last poll got no answer"""
    gone_since: float | None = None
    """when it was first missing in the list of brokers"""

    @property
    def sort_key(self) -> tuple[str, str, int, str]:
        return self.cluster, self.name, self.id, self.address

    @property
    def answers(self) -> bool:
        return self.failure is None and self.status is not None

    def number(self, *keys: str) -> float | None:
        """Return a counter of the present, the first number of its text; None if it is unknown.

        ``keys``: the spellings of all versions.
        """
        if not self.answers:
            return None
        return first_number(self.status or {}, *keys)

    @property
    def put_rate(self) -> float | None:
        return self.number("putTps")

    @property
    def get_rate(self) -> float | None:
        return self.number("getTransferredTps", "getTransferedTps")

    @property
    def disk_ratio(self) -> float | None:
        return self.number("commitLogDiskRatio")

    @property
    def version(self) -> str | None:
        return (self.status or {}).get("brokerVersionDesc")


def first_number(status: Mapping[str, str], *keys: str) -> float | None:
    """Return the first number of the first key that has one, None without."""
    for key in keys:
        try:
            return float(status[key].split()[0])
        except (KeyError, ValueError, IndexError):
            continue
    return None


@attrs.frozen
class NameServerRow:
    address: str
    failure: str | None


@attrs.frozen(kw_only=True)
class TopicRow:
    """A topic with the sum of its queues at all brokers that listed their topics."""

    name: str
    kind: str
    """normal, retry, dead, system"""
    message_type: str
    read_queues: int
    write_queues: int
    perm: int | None
    """None: it differs between brokers"""
    brokers: tuple[str, ...]
    get_rate: float | None = None
    """messages per second that groups get; None: a broker of the topic has not reported it"""


@attrs.frozen(kw_only=True)
class GroupRow:
    """A group with its backlog at all brokers that reported it."""

    name: str
    lag: int | None
    """None: no broker has reported it"""
    in_flight: int | None
    topics: tuple[str, ...]
    rate: float | None
    brokers: tuple[str, ...]
    whole: bool = True
    """every broker of the group has reported its backlog"""
    waiting: Mapping[tuple[str, str], int] = attrs.field(factory=dict)
    """broker name and topic → number of messages that wait there, if any do"""

    @property
    def system(self) -> bool:
        """Tell whether brokers and tools use the group, not applications."""
        return is_system_group(self.name)


@attrs.frozen(kw_only=True)
class BrokerTables:
    """The topics, groups and backlog of one broker, as it last reported them."""

    topics: Mapping[str, TopicConfig]
    groups: tuple[str, ...]
    backlog: BrokerConsumeStats | None
    """None: the broker does not tell it"""
    taken_at: float


@attrs.frozen(kw_only=True)
class ClusterView:
    """One moment of a cluster."""

    brokers: tuple[BrokerRow, ...] = ()
    name_servers: tuple[NameServerRow, ...] = ()
    failure: str | None = None
    """why the list of brokers is not new: no name server answered"""
    taken_at: float = 0.0
    """when the last poll ended"""
    listed_at: float | None = None
    """when the list of brokers was last read"""
    topics: Mapping[str, TopicRow] = attrs.field(factory=dict)
    groups: Mapping[str, GroupRow] = attrs.field(factory=dict)
    tables_at: float | None = None
    """when the oldest of the brokers' tables was read; None: not yet"""
    tables_missing: Mapping[str, str] = attrs.field(factory=dict)
    """broker name → why its newest table is missing; its last one, if any, is still counted"""
    sets: Mapping[str, GroupReplicas] = attrs.field(factory=dict)
    """broker name → what the controllers know of it; not of those in classic mode"""
    cut: bool = False
    """there are more topics or groups than ``TABLE_ROWS_MAX``"""

    @property
    def clusters(self) -> list[str]:
        return sorted({broker.cluster for broker in self.brokers})

    def leaders(self) -> dict[str, str]:
        """Return broker name → address of the brokers that answer: the master's, if it does."""
        leaders: dict[str, str] = {}
        for row in self.brokers:  # sorted by id within a name
            if row.answers:
                leaders.setdefault(row.name, row.address)
        return leaders

    @property
    def masters(self) -> list[BrokerRow]:
        return [broker for broker in self.brokers if broker.id == 0]

    def broker(self, address: str) -> BrokerRow | None:
        return next((broker for broker in self.brokers if broker.address == address), None)

    @property
    def slave_lags(self) -> dict[str, int | None]:
        """Return address of each slave → bytes of the log that it lacks; None if unknown."""
        ends = {row.name: row.number("commitLogMaxOffset") for row in self.masters}
        lags: dict[str, int | None] = {}
        for row in self.brokers:
            if row.id != 0:
                end, own = ends.get(row.name), row.number("commitLogMaxOffset")
                lags[row.address] = None if end is None or own is None else max(0, int(end - own))
        return lags

    def in_set(self, broker: BrokerRow) -> bool | None:
        """Tell whether a broker is in the sync state set of its group; None in classic mode."""
        group = self.sets.get(broker.name)
        members = () if group is None else group.in_sync_replicas
        at = {one.broker_address for one in members}
        return None if group is None else broker.address in at

    def total(self, values: Iterable[float | None]) -> tuple[float | None, bool]:
        """Return the sum of what is known (None if nothing is), and whether that is all."""
        given = list(values)
        known = [value for value in given if value is not None]
        return (sum(known) if known else None), len(known) == len(given)

    @property
    def put_rate(self) -> tuple[float | None, bool]:
        return self.total(broker.put_rate for broker in self.masters)

    @property
    def get_rate(self) -> tuple[float | None, bool]:
        return self.total(broker.get_rate for broker in self.brokers)

    @property
    def lag(self) -> tuple[int | None, bool]:
        """Return the sum of the backlogs of all groups; a group without offsets has none."""
        if self.tables_at is None:
            return None, False
        groups = self.groups.values()
        whole = all(group.whole for group in groups) and not self.tables_missing
        known = [group.lag for group in groups if group.lag is not None]
        return (sum(known) if known or whole else None), whole


def topic_kind(name: str, servers: Collection[str] = ()) -> str:
    """Return normal, retry, dead or system.

    ``servers``: names of brokers and clusters; each has a topic of its own.
    """
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead"
    system = (
        name in servers or name in WELL_KNOWN_SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)
    )
    return "system" if system else "normal"


def topic_rows(
    tables: Mapping[str, BrokerTables], servers: Collection[str] = ()
) -> dict[str, TopicRow]:
    """Return the topics of all brokers, sorted by name."""
    found: dict[str, dict[str, TopicConfig]] = {}
    for broker, table in tables.items():
        for name, config in table.topics.items():
            found.setdefault(name, {})[broker] = config
    rates = _get_rates(tables)
    silent = {broker for broker, table in tables.items() if table.backlog is None}
    return {
        name: _topic_row(
            name,
            found[name],
            servers,
            None if silent.intersection(found[name]) else rates.get(name, 0.0),
        )
        for name in sorted(found)[:TABLE_ROWS_MAX]
    }


def _get_rates(tables: Mapping[str, BrokerTables]) -> dict[str, float]:
    """Return topic → messages per second that all its groups get.

    A broker tells offsets and rate of each group and topic in a part of its own.
    """
    rates: dict[str, float] = {}
    for table in tables.values():
        for entry in table.backlog.consume_stats_list if table.backlog is not None else ():
            for part in (part for parts in entry.values() for part in parts):
                if (queue := next(iter(part.offset_table), None)) is not None:
                    rates[queue.topic] = rates.get(queue.topic, 0.0) + part.consume_tps
    return rates


def _topic_row(
    name: str, configs: Mapping[str, TopicConfig], servers: Collection[str], get_rate: float | None
) -> TopicRow:
    perms = {config.perm for config in configs.values()}
    kinds = {config.attributes.get(MESSAGE_TYPE, "NORMAL") for config in configs.values()}
    return TopicRow(
        name=name,
        kind=topic_kind(name, servers),
        message_type=kinds.pop() if len(kinds) == 1 else "MIXED",
        read_queues=sum(config.read_queue_count for config in configs.values()),
        write_queues=sum(config.write_queue_count for config in configs.values()),
        perm=perms.pop() if len(perms) == 1 else None,
        brokers=tuple(sorted(configs)),
        get_rate=get_rate,
    )


@attrs.define
class _GroupSum:
    lag: int = 0
    in_flight: int = 0
    rate: float = 0.0
    reported: bool = False
    topics: set[str] = attrs.field(factory=set)
    brokers: set[str] = attrs.field(factory=set)
    waiting: dict[tuple[str, str], int] = attrs.field(factory=dict)


def group_rows(tables: Mapping[str, BrokerTables]) -> dict[str, GroupRow]:
    """Return the groups of all brokers, sorted by name.

    The backlog of a group is unknown if a broker that has the group reports no backlog.
    """
    sums: dict[str, _GroupSum] = {}
    silent: set[str] = set()
    for broker, table in tables.items():
        for name in table.groups:
            sums.setdefault(name, _GroupSum()).brokers.add(broker)
        if table.backlog is None:
            silent.update(table.groups)
            continue
        for entry in table.backlog.consume_stats_list:
            for name, parts in entry.items():
                group = sums.setdefault(name, _GroupSum())
                group.brokers.add(broker)
                for part in parts:
                    group.rate += part.consume_tps
                    for queue, offset in part.offset_table.items():
                        group.reported = True
                        lag = max(0, offset.broker_offset - offset.consumer_offset)
                        group.lag += lag
                        if lag:
                            place = broker, queue.topic
                            group.waiting[place] = group.waiting.get(place, 0) + lag
                        group.in_flight += max(0, offset.pull_offset - offset.consumer_offset)
                        group.topics.add(queue.topic)
    return {
        name: GroupRow(
            name=name,
            lag=None if name in silent or not group.reported else group.lag,
            in_flight=None if name in silent or not group.reported else group.in_flight,
            rate=None if name in silent or not group.reported else group.rate,
            topics=tuple(sorted(group.topics)),
            brokers=tuple(sorted(group.brokers)),
            whole=name not in silent,
            waiting=group.waiting,
        )
        for name, group in sorted(sums.items())[:TABLE_ROWS_MAX]
    }
