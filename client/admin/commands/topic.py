"""Commands about topics: topicList, topicRoute, topicStatus, updateTopic, deleteTopic."""

from __future__ import annotations

import json
from typing import Any

from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, Values, filled, truth, whole
from triomq.client.admin.calls import Answers
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.times import milliseconds_text
from triomq.remoting.protocol.bodies.route import TopicRoute
from triomq.remoting.protocol.bodies.topics import TopicConfig
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX, TOPIC_LENGTH_MAX

UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
NAME_CHARACTERS = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def topic_name(text: str) -> str:
    """Read the name of a topic that shall be created."""
    name = filled(text)
    if wrong := sorted(set(name) - NAME_CHARACTERS):
        raise ValueError(f"{wrong[0]!r} is not allowed; use letters, digits, % | - _")
    if len(name) > TOPIC_LENGTH_MAX:
        raise ValueError(f"it has {len(name)} characters; {TOPIC_LENGTH_MAX} are the limit")
    return name


# --- topicList -------------------------------------------------------------------------------------------------------------------------


async def topic_list(admin: Admin, options: Values) -> Result:
    """List topics; with -c also their clusters and the groups that consume them."""
    topics = await admin.topics()
    if not options.flag("clusterModel"):
        return Result(document={"topics": topics}, blocks=topics)
    rows: dict[str, list[dict[str, str]]] = {}

    async def look(topic: str) -> list[dict[str, str]]:
        clusters = sorted({data.cluster for data in (await admin.route(topic)).broker_datas})
        groups = await admin.topic_groups(topic) or [""]
        return [
            {"clusterName": cluster, "topic": topic, "consumerGroup": group} for cluster in clusters for group in groups
        ]

    wanted = [topic for topic in topics if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    answers: Answers[list[dict[str, str]]] = await admin.for_each(wanted, look)
    rows.update(answers.values)
    flat = [row for topic in wanted for row in rows.get(topic, [])]
    columns = (Column("Cluster Name"), Column("Topic"), Column("Consumer Group"))
    return Result(
        document={"topics": flat, "failures": answers.reasons()},
        blocks=[Table(columns, [list(row.values()) for row in flat])],
        failures=answers.reasons(),
        asked=answers.asked,
    )


# --- topicRoute ------------------------------------------------------------------------------------------------------------------------


def route_document(route: TopicRoute) -> dict[str, Any]:
    """Return a route with RocketMQ's names."""
    return {
        "orderTopicConf": route.order_topic_conf,
        "queueDatas": [
            {
                "brokerName": data.broker_name,
                "readQueueNums": data.read_queue_count,
                "writeQueueNums": data.write_queue_count,
                "perm": data.perm,
                "topicSysFlag": data.topic_sys_flag,
            }
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        ],
        "brokerDatas": [
            {
                "cluster": data.cluster,
                "brokerName": data.broker_name,
                "brokerAddrs": {
                    str(broker_id): data.broker_addrs[broker_id] for broker_id in sorted(data.broker_addrs)
                },
            }
            for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        ],
    }


async def topic_route(admin: Admin, options: Values) -> Result:
    """Print where a topic lives."""
    document = route_document(await admin.route(options.text("topic")))
    if not options.flag("list"):
        return Result(document=document, blocks=[json.dumps(document, indent=2, ensure_ascii=False)])
    brokers = {data["brokerName"]: data for data in document["brokerDatas"]}
    rows = []
    for queues in document["queueDatas"]:
        broker = brokers.get(queues["brokerName"], {"cluster": "", "brokerAddrs": {}})
        addresses = ", ".join(f"{broker_id}={address}" for broker_id, address in broker["brokerAddrs"].items())
        numbers = [str(queues["readQueueNums"]), str(queues["writeQueueNums"]), str(queues["perm"])]
        rows.append([broker["cluster"], queues["brokerName"], f"{{{addresses}}}", *numbers])
    total = [str(sum(queues[key] for queues in document["queueDatas"])) for key in ("readQueueNums", "writeQueueNums")]
    rows.append(["Total", str(len(rows)), "", *total, ""])
    columns = (
        Column("ClusterName"),
        Column("BrokerName"),
        Column("BrokerAddrs"),
        Column("ReadQueue", right=True),
        Column("WriteQueue", right=True),
        Column("Perm", right=True),
    )
    return Result(document=document, blocks=[Table(columns, rows)])


# --- topicStatus -----------------------------------------------------------------------------------------------------------------------


async def topic_status(admin: Admin, options: Values) -> Result:
    """Print the first and next offset of each queue."""
    answers = await admin.topic_stats(options.text("topic"))
    queues: list[dict[str, Any]] = [
        {
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "minOffset": offsets.min_offset,
            "maxOffset": offsets.max_offset,
            "lastUpdateTimestamp": offsets.last_update_timestamp,
        }
        for stats in answers.some().values()
        for queue, offsets in stats.offset_table.items()
    ]
    queues.sort(key=lambda queue: (queue["brokerName"], queue["queueId"]))
    tps = sum(stats.topic_put_tps for stats in answers.values.values())
    columns = (
        Column("Broker Name"),
        Column("QID", right=True),
        Column("Min Offset", right=True),
        Column("Max Offset", right=True),
        Column("Last Updated"),
    )
    rows = [
        [
            queue["brokerName"],
            *(str(queue[key]) for key in ("queueId", "minOffset", "maxOffset")),
            milliseconds_text(queue["lastUpdateTimestamp"]),
        ]
        for queue in queues
    ]
    return Result(
        document={"queues": queues, "topicPutTps": tps, "failures": answers.reasons()},
        blocks=[Table(columns, rows), "", f"Topic Put TPS: {tps:.2f}"],
        failures=answers.reasons(),
        asked=answers.asked,
    )


# --- updateTopic, deleteTopic ----------------------------------------------------------------------------------------------------------


def attribute_changes(text: str) -> str:
    """Check `+key=value,-key` before any broker sees it."""
    keys = []
    for part in filled(text).split(","):
        sign, (key, _, value) = part.strip()[:1], part.strip()[1:].partition("=")
        if not key or (sign, bool(value)) not in (("+", True), ("-", False)):
            raise ValueError(f"{part!r} is neither +key=value nor -key")
        keys.append(key)
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"{twice[0]!r} occurs twice")
    return text.replace(" ", "")


def config_document(config: TopicConfig) -> dict[str, Any]:
    """Return a topic's settings with RocketMQ's names."""
    return {
        "topicName": config.topic_name,
        "readQueueNums": config.read_queue_count,
        "writeQueueNums": config.write_queue_count,
        "perm": config.perm,
        "order": config.order,
        "topicSysFlag": config.topic_sys_flag,
        "attributes": dict(config.attributes),
    }


def _sys_flag(options: Values) -> int | None:
    unit, unit_sub = options.maybe_flag("unit"), options.maybe_flag("hasUnitSub")
    if unit is None and unit_sub is None:
        return None
    return (UNIT_FLAG if unit else 0) | (UNIT_SUB_FLAG if unit_sub else 0)


async def update_topic(admin: Admin, options: Values) -> Result:
    """Create or change a topic."""
    topic, address = options.text("topic"), options.maybe_text("brokerAddr")
    answers = await admin.update_topic(
        topic,
        cluster=options.maybe_text("clusterName"),
        address=address,
        read_queues=options.maybe_number("readQueueNums"),
        write_queues=options.maybe_number("writeQueueNums"),
        perm=options.maybe_number("perm"),
        order=options.maybe_flag("order"),
        sys_flag=_sys_flag(options),
        attributes=options.maybe_text("attributes") or "",
    )
    configs = answers.some()
    failures = answers.reasons()
    if options.maybe_flag("order"):
        failures |= (await admin.set_order_config(topic)).reasons()
    lines = [f"create topic to {target} success." for target in configs]
    config = next(iter(configs.values()))
    attributes = options.maybe_text("attributes")
    settings = {**config_document(config), **({"attributes": attributes} if attributes else {})}
    lines.append("  ".join(f"{key}={_plain(value)}" for key, value in settings.items()))
    return Result(
        document={
            "brokers": {target: config_document(config) for target, config in configs.items()},
            "failures": failures,
        },
        blocks=lines,
        failures=failures,
        asked=answers.asked,
    )


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def delete_topic(admin: Admin, options: Values) -> Result:
    """Delete a topic at the brokers of a cluster and at the name servers."""
    topic, cluster = options.text("topic"), options.text("clusterName")
    await admin.route(topic)
    answers = await admin.delete_topic(topic, cluster)
    targets = list(answers.some())
    return Result(
        document={"topic": topic, "deletedAt": targets, "failures": answers.reasons()},
        blocks=[f"delete topic [{topic}] from cluster [{cluster}] success."],
        failures=answers.reasons(),
        asked=answers.asked,
    )


TOPIC = Option("t", "topic", "name of the topic", filled, required=True, placeholder="TOPIC")
ROUTE_CLUSTER = Option(
    "c", "cluster", "accepted for old scripts; the route is always found by the topic", filled, placeholder="NAME"
)

COMMANDS = (
    Command(
        name="topicList",
        group="topic",
        summary="list the topics",
        run=topic_list,
        options=(Option("c", "clusterModel", "with the cluster and the consumer groups of each topic", None),),
        examples=("topicList", "topicList -c"),
        document='{"topics": [name]}; with -c {"topics": [{"clusterName", "topic", "consumerGroup"}], "failures": {topic: reason}}',
    ),
    Command(
        name="topicRoute",
        group="topic",
        summary="print the brokers and queues of a topic",
        run=topic_route,
        options=(TOPIC, Option("l", "list", "a table instead of JSON text", None)),
        examples=("topicRoute -t orders", "topicRoute -t orders -l"),
        document='{"orderTopicConf", "queueDatas": [{"brokerName", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag"}], '
        '"brokerDatas": [{"cluster", "brokerName", "brokerAddrs": {id: address}}]}',
    ),
    Command(
        name="topicStatus",
        group="topic",
        summary="print the first and next offset of each queue of a topic",
        run=topic_status,
        options=(TOPIC, ROUTE_CLUSTER),
        examples=("topicStatus -t orders",),
        document='{"queues": [{"brokerName", "queueId", "minOffset", "maxOffset", "lastUpdateTimestamp"}], "topicPutTps", "failures": {broker: reason}}',
        remarks=("Topic Put TPS is the sum of what the brokers report.",),
    ),
    Command(
        name="updateTopic",
        group="topic",
        summary="create a topic, or change it",
        run=update_topic,
        options=(
            Option("b", "brokerAddr", "at one broker, host:port", filled, placeholder="ADDRESS"),
            Option("c", "clusterName", "at all masters of a cluster", filled, placeholder="NAME"),
            Option("t", "topic", "name of the topic", topic_name, required=True, placeholder="TOPIC"),
            Option("r", "readQueueNums", "queues that consumers read (new topic: 8)", whole(1), placeholder="N"),
            Option("w", "writeQueueNums", "queues that producers write (new topic: 8)", whole(1), placeholder="N"),
            Option("p", "perm", "2 = write, 4 = read, 6 = both (new topic: 6)", whole(0, 7), placeholder="PERM"),
            Option("o", "order", "strictly ordered topic: true or false", truth, placeholder="BOOL"),
            Option("u", "unit", "unit topic: true or false", truth, placeholder="BOOL"),
            Option("s", "hasUnitSub", "has unit subscriptions: true or false", truth, placeholder="BOOL"),
            Option(
                "a",
                "attributes",
                "+key=value sets, -key removes, several separated by commas",
                attribute_changes,
                placeholder="CHANGES",
            ),
        ),
        one_of=(("brokerAddr", "clusterName"),),
        examples=("updateTopic -c DefaultCluster -t orders -r 8 -w 8", "updateTopic -b 127.0.0.1:10911 -t orders -p 4"),
        document='{"brokers": {address: {"topicName", "readQueueNums", "writeQueueNums", "perm", "order", "topicSysFlag", "attributes"}}, "failures": {address: reason}}',
        remarks=(
            "A change is a patch: options that are not given keep their values (RocketMQ's tool puts them back to its defaults).",
            "Returns when the name servers show the change, so the topic can be used at once.",
        ),
    ),
    Command(
        name="deleteTopic",
        group="topic",
        summary="delete a topic",
        run=delete_topic,
        options=(
            TOPIC,
            Option("c", "clusterName", "the cluster to delete it from", filled, required=True, placeholder="NAME"),
        ),
        examples=("deleteTopic -c DefaultCluster -t orders",),
        document='{"topic", "deletedAt": [address], "failures": {address: reason}}',
        remarks=("A topic that does not exist is an error (exit code 4).",),
    ),
)
