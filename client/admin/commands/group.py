"""Commands about groups and what they do: deleteSubGroup, getConsumerConfig, brokerConsumeStats, consumerStatus, statsAll, producer, topicClusterList."""

from __future__ import annotations

import json
from typing import Any

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, UsageError, Values, filled, truth, whole
from triomq.client.admin.calls import read_body
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.commands.connection import group_document
from triomq.client.admin.commands.topic import TOPIC
from triomq.client.admin.times import seconds_text
from triomq.client.errors import BrokerError, GroupNotFound
from triomq.remoting.protocol.bodies.groups import ProducerTable, SubscriptionGroupConfig, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.offsets import BrokerConsumeStats, BrokerStats, StatsItem
from triomq.remoting.protocol.bodies.running import ConsumerRunning
from triomq.remoting.protocol.codes import RequestCode, version_name
from triomq.remoting.protocol.headers.admin import BrokerConsumeStatsHeader, BrokerStatsHeader
from triomq.remoting.protocol.headers.client import ConsumerRunningHeader
from triomq.remoting.protocol.headers.topic import DeleteGroupHeader
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX

INTERNAL_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX)


# --- deleteSubGroup, getConsumerConfig -------------------------------------------------------------------------------------------------


async def delete_group(admin: Admin, options: Values) -> Result:
    """Delete a group's settings, and on wish its offsets; of a whole cluster also its retry and dead-letter topics."""
    group, address, cluster = options.text("groupName"), options.maybe_text("brokerAddr"), options.maybe_text("clusterName")
    if (address is None) == (cluster is None):
        raise UsageError("one of -b/--brokerAddr and -c/--clusterName is needed, and only one")
    addresses = [address] if address is not None else [broker.address for broker in await admin.brokers(cluster, masters_only=True)]
    clean = bool(options.maybe_flag("removeOffset"))
    header = DeleteGroupHeader(group, clean, clean or None)
    answers = await admin.for_each(addresses, lambda target: admin.ask(target, RequestCode.DELETE_SUBSCRIPTIONGROUP, header))
    answers.some()
    failures = answers.reasons()
    if cluster is not None:
        for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
            failures |= (await admin.delete_topic(topic, cluster)).reasons()
    where = f" in cluster [{cluster}]" if cluster is not None else ""
    return Result(
        document={"group": group, "brokers": sorted(answers.values), "removeOffset": clean, "failures": failures},
        blocks=[f"delete subscription group [{group}] from broker [{target}]{where} success." for target in answers.values],
        failures=failures,
        asked=max(answers.asked, len(failures)),
    )


async def consumer_config(admin: Admin, options: Values) -> Result:
    """Print a group's settings at every broker that has them."""
    group = options.text("groupName")
    brokers = {broker.address: broker for broker in await admin.brokers()}

    async def one(address: str) -> SubscriptionGroupConfig | None:
        """Out of the table of all groups: a broker that is asked for one group (352) creates it."""
        table = read_body(SubscriptionGroupTable, await admin.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        return table.subscription_group_table.get(group)

    answers = await admin.for_each(brokers, one)
    configs = {address: group_document(config) for address, config in answers.some().items() if config is not None}
    if not configs:
        raise GroupNotFound(26, f"no broker has settings of group {group!r}", "the cluster", "getConsumerConfig")
    blocks = []
    for address, config in configs.items():
        title = f"{brokers[address].cluster}:{brokers[address].name}"
        lines = [f"============================={title}============================="]
        lines += [f"{key:<40}=  {json.dumps(value) if isinstance(value, dict | list | bool) else value}" for key, value in config.items()]
        blocks.append("\n".join(lines))
    return Result(document={"group": group, "brokers": configs, "failures": answers.reasons()}, blocks=blocks, failures=answers.reasons(), asked=answers.asked)


# --- brokerConsumeStats ----------------------------------------------------------------------------------------------------------------


async def broker_consume_stats(admin: Admin, options: Values) -> Result:
    """Print how far behind all groups of a broker are."""
    address = options.text("brokerAddr")
    header = BrokerConsumeStatsHeader(bool(options.maybe_flag("order")))
    stats = read_body(BrokerConsumeStats, await admin.ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header))
    level = options.number("level")
    rows: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "group": group,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offset.broker_offset,
            "consumerOffset": offset.consumer_offset,
            "diff": offset.broker_offset - offset.consumer_offset,
            "lastTimestamp": offset.last_timestamp,
        }
        for entry in stats.consume_stats_list
        for group, tables in entry.items()
        for table in tables
        for queue, offset in table.offset_table.items()
        if offset.broker_offset - offset.consumer_offset >= level
    ]
    rows.sort(key=lambda row: (row["topic"], row["group"], row["brokerName"], row["queueId"]))
    columns = (
        *(Column(title) for title in ("Topic", "Group", "Broker Name")),
        *(Column(title, right=True) for title in ("QID", "Broker Offset", "Consumer Offset", "Diff")),
        Column("LastTime"),
    )
    cells = [[*(str(value) for value in list(row.values())[:-1]), seconds_text(row["lastTimestamp"])] for row in rows]
    return Result(document={"brokerAddr": address, "queues": rows, "diffTotal": stats.total_diff}, blocks=[Table(columns, cells), f"Diff Total: {stats.total_diff}"])


# --- consumerStatus --------------------------------------------------------------------------------------------------------------------


async def consumer_status(admin: Admin, options: Values) -> Result:
    """Ask the members of a group what they are doing."""
    group, wanted = options.text("consumerGroup"), options.maybe_text("clientId")
    connections = (await admin.consumer_connections(group, options.maybe_text("brokerAddr"))).some()
    brokers = {member.client_id: address for address, connection in connections.items() for member in connection.connections}
    versions = {member.client_id: version_name(member.version) for connection in connections.values() for member in connection.connections}
    if wanted is not None and wanted not in brokers:
        raise UsageError(f"-i/--clientId {wanted!r} is not connected; members are {', '.join(sorted(brokers))}")
    jstack = options.flag("jstack")

    async def one(client_id: str) -> ConsumerRunning:
        header = ConsumerRunningHeader(group, client_id, jstack)
        return read_body(ConsumerRunning, await admin.ask(brokers[client_id], RequestCode.GET_CONSUMER_RUNNING_INFO, header))

    answers = await admin.for_each([wanted] if wanted is not None else sorted(brokers), one)
    running = answers.some()
    clients = {client_id: running_document(state) for client_id, state in running.items()}
    owners: dict[str, list[str]] = {}
    for client_id, state in running.items():
        for queue in state.queues:
            owners.setdefault(f"{queue.topic} {queue.broker_name} {queue.queue_id}", []).append(client_id)
    shared = {queue: names for queue, names in sorted(owners.items()) if len(names) > 1}
    subscriptions = {client_id: sorted((one.topic, one.sub_string) for one in state.subscriptions) for client_id, state in running.items()}
    same = len({tuple(value) for value in subscriptions.values()}) < 2
    rows = [[str(index), client_id, versions[client_id], str(len(running[client_id].queues))] for index, client_id in enumerate(running, 1)]
    columns = (Column("Index", right=True), Column("ClientId"), Column("Version"), Column("Queues", right=True))
    blocks: list[Table | str] = [Table(columns, rows)]
    blocks += [report(client_id, state) for client_id, state in running.items()] if wanted is not None else []
    if wanted is None:
        blocks.append("All members have the same subscription." if same else "MEMBERS SUBSCRIBE DIFFERENT THINGS: " + json.dumps(subscriptions, ensure_ascii=False))
        if any(state.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY" for state in running.values()):
            blocks.append("Rebalance is complete: no queue has two owners." if not shared else f"QUEUES WITH TWO OWNERS: {json.dumps(shared)}")
    return Result(
        document={"group": group, "clients": clients, "sameSubscriptions": same, "sharedQueues": shared, "failures": answers.reasons()},
        blocks=blocks,
        failures=answers.reasons(),
        asked=answers.asked,
    )


def running_document(state: ConsumerRunning) -> dict[str, Any]:
    return {
        "properties": dict(sorted(state.properties.items())),
        "subscriptions": {one.topic: one.sub_string for one in state.subscriptions},
        "queues": [
            {
                "topic": queue.topic,
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "commitOffset": held.commit_offset,
                "cachedMessages": held.cached_count,
                "locked": held.locked,
                "lastPull": held.last_pull_timestamp,
                "lastConsume": held.last_consume_timestamp,
            }
            for queue, held in sorted(state.queues.items())
        ],
        "rates": {
            topic: {"pullRT": rate.pull_rt, "pullTPS": rate.pull_tps, "consumeRT": rate.consume_rt, "consumeOKTPS": rate.consume_ok_tps, "consumeFailedTPS": rate.consume_failed_tps}
            for topic, rate in sorted(state.rates.items())
        },
        "jstack": state.jstack,
    }


def report(client_id: str, state: ConsumerRunning) -> str:
    """One client's state for people, in the sections of RocketMQ's report."""
    document = running_document(state)
    lines = ["#Consumer Properties#", *(f"{key:<40}: {value}" for key, value in document["properties"].items())]
    lines += ["", "#Consumer Subscription#", *(f"Topic: {topic:<40} SubExpression: {expression}" for topic, expression in document["subscriptions"].items())]
    lines += ["", "#Consumer Queues#"]
    lines += [
        f"{row['topic']:<40} {row['brokerName']:<20} {row['queueId']:>4}  offset {row['commitOffset']}  cached {row['cachedMessages']}  last consumed {seconds_text(row['lastConsume'])}"
        for row in document["queues"]
    ]
    lines += ["", "#Consumer RT&TPS#"]
    lines += [f"{topic:<40} {json.dumps(rate)}" for topic, rate in document["rates"].items()]
    return "\n".join([*lines, *(["", "#Consumer jstack#", state.jstack] if state.jstack else [])])


# --- statsAll --------------------------------------------------------------------------------------------------------------------------


async def stats_all(admin: Admin, options: Values) -> Result:
    """Print rates and backlog of topics and the groups that consume them."""
    only = options.maybe_text("topic")
    topics = [topic for topic in await admin.topics() if not topic.startswith(INTERNAL_PREFIXES) and only in (None, topic)]
    answers = await admin.for_each(topics, lambda topic: topic_rates(admin, topic))
    rows = [row for topic in topics for row in answers.values.get(topic, [])]
    if options.flag("activeTopic"):
        rows = [row for row in rows if row["in24h"] or row["out24h"]]
    columns = (Column("Topic"), Column("Consumer Group"), *(Column(title, right=True) for title in ("Accumulation", "InTPS", "OutTPS", "InMsg24Hour", "OutMsg24Hour")))
    cells = [[row["topic"], row["group"] or "NO_CONSUMER", str(row["accumulation"]), f"{row['inTps']:.2f}", f"{row['outTps']:.2f}", str(row["in24h"]), str(row["out24h"])] for row in rows]
    return Result(document={"topics": rows, "failures": answers.reasons()}, blocks=[Table(columns, cells)], failures=answers.reasons(), asked=answers.asked)


async def topic_rates(admin: Admin, topic: str) -> list[dict[str, Any]]:
    addresses = list((await admin.topic_brokers(topic)).values())
    in_tps, in_day = await item(admin, addresses, "TOPIC_PUT_NUMS", topic)
    rows = []
    for group in await admin.topic_groups(topic) or [""]:
        out_tps, out_day = await item(admin, addresses, "GROUP_GET_NUMS", f"{topic}@{group}") if group else (0.0, 0)
        tables = (await admin.consume_stats(group, topic)).values.values() if group else ()
        behind = sum(offset.broker_offset - offset.consumer_offset for table in tables for offset in table.offset_table.values())
        rows.append({"topic": topic, "group": group or None, "accumulation": behind, "inTps": in_tps, "outTps": out_tps, "in24h": in_day, "out24h": out_day})
    return rows


async def item(admin: Admin, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    """(per second, within 24 hours) over all brokers; a broker that has nothing to count answers so."""
    rate, total = 0.0, 0
    for address in addresses:
        try:
            stats = read_body(BrokerStats, await admin.ask(address, RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(name, key)))
        except BrokerError:
            continue
        rate += stats.minute.tps
        total += day_of(stats)
    return rate, total


def day_of(stats: BrokerStats) -> int:
    """A broker that has just started knows no day yet, then its hour counts, then its minute."""
    windows: tuple[StatsItem, ...] = (stats.day, stats.hour, stats.minute)
    return next((window.sum for window in windows if window.sum), 0)


# --- producer, topicClusterList --------------------------------------------------------------------------------------------------------


async def producers(admin: Admin, options: Values) -> Result:
    """Print all producers of a broker."""
    table = read_body(ProducerTable, await admin.ask(options.text("broker"), RequestCode.GET_ALL_PRODUCER_INFO)).data
    groups = {
        group: [
            {"clientId": one.client_id, "remoteIP": one.remote_address, "language": one.language, "version": version_name(one.version), "lastUpdateTimestamp": one.last_update_timestamp}
            for one in sorted(members, key=lambda one: one.client_id)
        ]
        for group, members in sorted(table.items())
    }
    rows = [[group, *(str(value) for value in list(row.values())[:-1]), seconds_text(row["lastUpdateTimestamp"])] for group, members in groups.items() for row in members]  # type: ignore[arg-type]
    columns = tuple(Column(title) for title in ("Group", "ClientId", "RemoteIP", "Language", "Version", "LastUpdate"))
    return Result(document={"groups": groups}, blocks=[Table(columns, rows)])


async def topic_cluster_list(admin: Admin, options: Values) -> Result:
    """Print the clusters that have a topic."""
    clusters = sorted({data.cluster for data in (await admin.route(options.text("topic"))).broker_datas})
    return Result(document={"topic": options.text("topic"), "clusters": clusters}, blocks=clusters)


GROUP_NAME = Option("g", "groupName", "the group", filled, required=True, placeholder="GROUP")

COMMANDS = (
    Command(
        name="deleteSubGroup",
        group="consumer",
        summary="delete a consumer group's settings",
        run=delete_group,
        options=(
            GROUP_NAME,
            Option("b", "brokerAddr", "at one broker, host:port", filled, placeholder="ADDRESS"),
            Option("c", "clusterName", "at all masters of a cluster, with the group's retry and dead-letter topics", filled, placeholder="NAME"),
            Option("r", "removeOffset", "true: its offsets go too", truth, placeholder="BOOL"),
        ),
        examples=("deleteSubGroup -c DefaultCluster -g billing -r true",),
        document='{"group", "brokers": [address], "removeOffset", "failures": {address: reason}}',
    ),
    Command(
        name="getConsumerConfig",
        group="consumer",
        summary="print a consumer group's settings at every broker",
        run=consumer_config,
        options=(GROUP_NAME,),
        examples=("getConsumerConfig -g billing",),
        document='{"group", "brokers": {address: {"groupName", "consumeEnable", …}}, "failures": {address: reason}}',
    ),
    Command(
        name="brokerConsumeStats",
        group="consumer",
        summary="print how far behind all groups of a broker are",
        run=broker_consume_stats,
        options=(
            Option("b", "brokerAddr", "the broker, host:port", filled, required=True, placeholder="ADDRESS"),
            Option("t", "timeoutMillis", "taken and not used: see --timeout", whole(1), placeholder="MS"),
            Option("l", "level", "only queues that are at least so many messages behind", whole(0), default=0, placeholder="N"),
            Option("o", "order", "true: only ordered topics", truth, placeholder="BOOL"),
        ),
        examples=("brokerConsumeStats -b 127.0.0.1:10911 -l 1000",),
        document='{"brokerAddr", "queues": [{"topic", "group", "brokerName", "queueId", "brokerOffset", "consumerOffset", "diff", "lastTimestamp"}], "diffTotal"}',
    ),
    Command(
        name="consumerStatus",
        group="consumer",
        summary="ask the members of a group what they are doing",
        run=consumer_status,
        options=(
            Option("g", "consumerGroup", "the group", filled, required=True, placeholder="GROUP"),
            Option("i", "clientId", "only this member, with everything it says", filled, placeholder="ID"),
            Option("b", "brokerAddr", "ask through this broker, host:port", filled, placeholder="ADDRESS"),
            Option("s", "jstack", "with the stacks of its threads or tasks", None),
        ),
        examples=("consumerStatus -g billing", "consumerStatus -g billing -i 10.0.0.7@4242 -s"),
        document='{"group", "clients": {clientId: {"properties", "subscriptions", "queues": […], "rates", "jstack"}}, "sameSubscriptions", "sharedQueues", "failures": {clientId: reason}}',
        remarks=("No files are written: --json has everything.",),
    ),
    Command(
        name="statsAll",
        group="topic",
        summary="print rates and backlog of all topics and their groups",
        run=stats_all,
        options=(
            Option("a", "activeTopic", "only where something was sent or consumed within 24 hours", None),
            Option("t", "topic", "only this topic", filled, placeholder="TOPIC"),
        ),
        examples=("statsAll -a",),
        document='{"topics": [{"topic", "group", "accumulation", "inTps", "outTps", "in24h", "out24h"}], "failures": {topic: reason}}',
    ),
    Command(
        name="producer",
        group="producer",
        summary="print all producers that are connected to a broker",
        run=producers,
        options=(Option("b", "broker", "the broker, host:port", filled, required=True, placeholder="ADDRESS"),),
        examples=("producer -b 127.0.0.1:10911",),
        document='{"groups": {group: [{"clientId", "remoteIP", "language", "version", "lastUpdateTimestamp"}]}}',
    ),
    Command(
        name="topicClusterList",
        group="topic",
        summary="print the clusters that have a topic",
        run=topic_cluster_list,
        options=(TOPIC,),
        examples=("topicClusterList -t orders",),
        document='{"topic", "clusters": [name]}',
    ),
)
