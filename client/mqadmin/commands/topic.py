"""Commands about topics.

topicList, topicRoute, topicStatus, updateTopic, deleteTopic, allocateMQ.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.arguments import Option, Values, attribute_changes, filled, truth, whole
from triomq.client.admin.documents import (
    count_of,
    fewer_queues,
    members_of,
    settings_line,
    topic_document,
)
from triomq.client.admin.times import milliseconds_text
from triomq.client.mqadmin.core.command import ROUTE_CLUSTER, TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.places import MASTERS, chosen_brokers
from triomq.client.mqadmin.core.result import Document, Result, Table, answered, table_of
from triomq.remoting.protocol.consuming.allocation import allocate_average
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX, TOPIC_LENGTH_MAX

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.answers import Answers
    from triomq.remoting.protocol.bodies.route import TopicRoute


UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
NAME_CHARACTERS = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def topic_name(text: str) -> str:
    """Read the name of a new topic."""
    name = filled(text)
    if wrong := sorted(set(name) - NAME_CHARACTERS):
        raise ValueError(f"{wrong[0]!r} is not allowed; use letters, digits, % | - _")
    if len(name) > TOPIC_LENGTH_MAX:
        raise ValueError(f"it has {len(name)} characters; the limit is {TOPIC_LENGTH_MAX}")
    return name


# --- topicList


async def topic_list(admin: Admin, options: Values) -> Result:
    topics = await admin.topics()
    if not options.flag("clusterModel"):
        return Result(document={"topics": topics}, blocks=topics)
    silent: dict[str, str] = {}
    asked = set(await admin.leaders())

    async def rows_of(topic: str) -> list[dict[str, str | None]]:
        clusters = sorted({data.cluster for data in (await admin.route(topic)).broker_datas})
        answers = await admin.topic_groups_by_broker(topic)
        silent.update(answers.reasons())
        groups: Sequence[str | None] = sorted(set().union(*answers.values.values()))
        return [
            {"clusterName": cluster, "topic": topic, "consumerGroup": group}
            for cluster in clusters
            for group in groups or ["" if answers.values else None]
        ]

    wanted = [topic for topic in topics if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    answers: Answers[list[dict[str, str | None]]] = await admin.for_each(wanted, rows_of)
    flat = [row for topic in wanted for row in answers.values.get(topic, [])]
    failures = {**answers.reasons(), **silent}  # a broker has a topic of its own name
    columns = {"Cluster Name": "clusterName", "Topic": "topic", "Consumer Group": "consumerGroup"}
    return Result(
        document={"topics": flat},
        blocks=[table_of(flat, columns)],
        failures=failures,
        asked=len(asked | failures.keys()),
    )


# --- topicRoute


def route_document(route: TopicRoute) -> Document:
    """Return a route with RocketMQ's names."""
    return {
        "orderTopicConf": route.order_topic_conf,
        "queueDatas": [
            members_of(
                data, "brokerName", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag"
            )
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        ],
        "brokerDatas": [
            {
                **members_of(data, "cluster", "brokerName"),
                "brokerAddrs": {
                    str(broker_id): data.broker_addrs[broker_id]
                    for broker_id in sorted(data.broker_addrs)
                },
            }
            for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        ],
    }


async def topic_route(admin: Admin, options: Values) -> Result:
    document = route_document(await admin.route(options.text("topic")))
    if not options.flag("list"):
        return Result(
            document=document, blocks=[json.dumps(document, indent=2, ensure_ascii=False)]
        )
    brokers = {data["brokerName"]: data for data in document["brokerDatas"]}
    rows = []
    for queues in document["queueDatas"]:
        broker = brokers.get(queues["brokerName"], {"cluster": "", "brokerAddrs": {}})
        addresses = ", ".join(
            f"{broker_id}={address}" for broker_id, address in broker["brokerAddrs"].items()
        )
        numbers = [queues[key] for key in ("readQueueNums", "writeQueueNums", "perm")]
        rows.append([broker["cluster"], queues["brokerName"], f"{{{addresses}}}", *numbers])
    total = [
        sum(queues[key] for queues in document["queueDatas"])
        for key in ("readQueueNums", "writeQueueNums")
    ]
    rows.append(["Total", len(rows), "", *total, ""])
    columns = ("ClusterName", "BrokerName", "BrokerAddrs", ">ReadQueue", ">WriteQueue", ">Perm")
    return Result(document=document, blocks=[Table(columns, rows)])


# --- topicStatus


async def topic_status(admin: Admin, options: Values) -> Result:
    answers = await admin.topic_stats(options.text("topic"))
    queues: list[dict[str, object]] = [
        {
            **members_of(queue, "brokerName", "queueId"),
            **members_of(offsets, "minOffset", "maxOffset", "lastUpdateTimestamp"),
        }
        for stats in answers.some().values()
        for queue, offsets in stats.offset_table.items()
    ]
    queues.sort(key=lambda queue: (queue["brokerName"], queue["queueId"]))
    tps = sum(stats.topic_put_tps for stats in answers.values.values())
    table = table_of(
        queues,
        {
            "Broker Name": "brokerName",
            ">QID": "queueId",
            ">Min Offset": "minOffset",
            ">Max Offset": "maxOffset",
            "Last Updated": lambda queue: milliseconds_text(queue["lastUpdateTimestamp"]),
        },
    )
    return answered(
        answers, {"queues": queues, "topicPutTps": tps}, [table, "", f"Topic Put TPS: {tps:.2f}"]
    )


# --- updateTopic, deleteTopic


def _sys_flag(options: Values) -> int | None:
    unit, unit_sub = options.maybe_flag("unit"), options.maybe_flag("hasUnitSub")
    if unit is None and unit_sub is None:
        return None
    return (UNIT_FLAG if unit else 0) | (UNIT_SUB_FLAG if unit_sub else 0)


async def queues_left(admin: Admin, options: Values) -> list[str]:
    """Return a warning for each broker at which the topic gets fewer queues to read."""
    topic, count = options.text("topic"), options.maybe_number("readQueueNums")
    if count is None:
        return []

    async def had(address: str) -> int:
        old = await admin.topic_config(topic, address)
        return 0 if old is None else old.read_queue_count

    before = await admin.for_each(await chosen_brokers(admin, options), had)
    return [
        fewer_queues(topic, address, old, count)
        for address, old in before.values.items()
        if old > count
    ]


async def update_topic(admin: Admin, options: Values) -> Result:
    topic, attributes = options.text("topic"), options.maybe_text("attributes") or ""
    notes = await queues_left(admin, options)
    answers = await admin.update_topic(
        topic,
        cluster=options.maybe_text("clusterName"),
        address=options.maybe_text("brokerAddr"),
        read_queues=options.maybe_number("readQueueNums"),
        write_queues=options.maybe_number("writeQueueNums"),
        perm=options.maybe_number("perm"),
        order=options.maybe_flag("order"),
        sys_flag=_sys_flag(options),
        attributes=attributes,
    )
    configs = answers.some()
    failures = answers.reasons()
    if options.maybe_flag("order"):
        failures |= (await admin.set_order_config(topic)).reasons()
    documents = {target: topic_document(config) for target, config in configs.items()}
    settings = dict(next(iter(documents.values())))
    if attributes:
        settings["attributes"] = attributes
    lines = [f"create topic to {target} success." for target in documents]
    return Result(
        document={"brokers": documents},
        blocks=[*lines, settings_line(settings)],
        failures=failures,
        asked=answers.asked,
        notes=notes,
    )


async def delete_topic(admin: Admin, options: Values) -> Result:
    topic, cluster = options.text("topic"), options.text("clusterName")
    readers = await admin.topic_groups_by_broker(topic)
    groups = sorted(set().union(*readers.values.values()))
    answers = await admin.delete_topic(topic, cluster)
    targets = list(answers.some())
    line = f"delete topic [{topic}] from cluster [{cluster}] success."
    document = {"topic": topic, "deletedAt": targets, "groups": groups}
    note = f"{count_of(len(groups), 'group')} read{'' if len(groups) > 1 else 's'} topic {topic}: "
    notes = [note + ", ".join(groups)] if groups else []
    return answered(answers, document, [line], notes=notes)


# --- allocateMQ


def members(text: str) -> list[str]:
    """Read ``a,b,c``."""
    names = [filled(part) for part in filled(text).split(",")]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} occurs twice")
    return names


async def allocate(admin: Admin, options: Values) -> Result:
    topic, names = options.text("topic"), options.value("ipList")
    queues = await admin.queues(topic)
    shares = {name: allocate_average(name, queues, names) for name in names}
    document = {
        name: [members_of(queue, "topic", "brokerName", "queueId") for queue in share]
        for name, share in shares.items()
    }
    rows = [{"member": name, **row} for name, share in document.items() for row in share]
    columns = {"Member": "member", "Broker Name": "brokerName", ">QID": "queueId"}
    idle = [name for name, share in shares.items() if not share]
    notes = (
        [f"{', '.join(idle)} would get no queue: topic {topic} has {len(queues)}"] if idle else []
    )
    return Result(
        document={"topic": topic, "result": document}, blocks=[table_of(rows, columns)], notes=notes
    )


COMMANDS = (
    AdminCommand("topicList", topic_list).with_options(
        Option("-c, --clusterModel", "with the cluster and the consumer groups of each topic")
    ),
    AdminCommand("topicRoute", topic_route).with_options(
        TOPIC, Option("-l, --list", "print a table instead of JSON text")
    ),
    AdminCommand("topicStatus", topic_status).with_options(TOPIC, ROUTE_CLUSTER),
    AdminCommand("updateTopic", update_topic, effect=Effect.CHANGES).with_options(
        *MASTERS,
        Option("-t, --topic TOPIC", "name of the topic", topic_name, required=True),
        Option("-r, --readQueueNums N", "queues that consumers read (new topic: 8)", whole(1)),
        Option("-w, --writeQueueNums N", "queues that producers write (new topic: 8)", whole(1)),
        Option("-p, --perm PERM", "2 = write, 4 = read, 6 = both (new topic: 6)", whole(0, 7)),
        Option("-o, --order BOOL", "strictly ordered topic: true or false", truth),
        Option("-u, --unit BOOL", "unit topic: true or false", truth),
        Option("-s, --hasUnitSub BOOL", "has unit subscriptions: true or false", truth),
        Option(
            "-a, --attributes CHANGES",
            "+key=value sets, -key removes; separated by commas",
            attribute_changes,
        ),
    ),
    AdminCommand(
        "deleteTopic",
        delete_topic,
        effect=Effect.DESTROYS,
        loss="the topic with its queues and offsets",
    ).with_options(TOPIC, Option("-c, --clusterName NAME", "cluster of the topic", required=True)),
    AdminCommand("allocateMQ", allocate).with_options(
        TOPIC,
        Option(
            "-i, --ipList NAMES",
            "the members, joined by commas: addresses, or other names",
            members,
            required=True,
        ),
    ),
)
