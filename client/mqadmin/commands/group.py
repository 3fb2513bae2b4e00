"""Commands about groups: deleteSubGroup, getConsumerConfig, setConsumeMode, and two others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, Values, truth, whole
from triomq.client.admin.documents import group_document, members_of
from triomq.client.admin.times import seconds_text
from triomq.client.core.errors import GroupNotFound
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Effect
from triomq.client.mqadmin.core.places import MASTERS, ask_each, chosen_brokers
from triomq.client.mqadmin.core.result import Result, answered, table_of
from triomq.remoting.protocol.bodies.assignment import MessageRequestMode
from triomq.remoting.protocol.bodies.groups import (
    ProducerTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from triomq.remoting.protocol.codes import RequestCode, ResponseCode, version_name
from triomq.remoting.protocol.headers.topic import DeleteGroupHeader
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


# --- deleteSubGroup, getConsumerConfig


async def delete_group(admin: Admin, options: Values) -> Result:
    """Delete a group's settings.

    With -r also its offsets, and with -c its retry and dead-letter topics.
    """
    group, cluster = options.text("groupName"), options.maybe_text("clusterName")
    addresses = await chosen_brokers(admin, options)
    clean = bool(options.maybe_flag("removeOffset"))
    header = DeleteGroupHeader(group, clean, clean or None)
    answers = await ask_each(admin, addresses, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
    failures = answers.reasons()
    if cluster is not None:
        for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
            failures |= (await admin.delete_topic(topic, cluster)).reasons()
    where = f" in cluster [{cluster}]" if cluster is not None else ""
    return Result(
        document={"group": group, "brokers": sorted(answers.values), "removeOffset": clean},
        blocks=[
            f"delete subscription group [{group}] from broker [{target}]{where} success."
            for target in answers.values
        ],
        failures=failures,
        asked=len(answers.values.keys() | failures.keys()),
    )


async def consumer_config(admin: Admin, options: Values) -> Result:
    group = options.text("groupName")
    brokers = {broker.address: broker for broker in await admin.brokers()}

    async def config_at(address: str) -> SubscriptionGroupConfig | None:
        """Read the table of all groups: a broker creates a group that it is asked for."""
        answer = await admin.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return read_body(SubscriptionGroupTable, answer).subscription_group_table.get(group)

    answers = await admin.for_each(brokers, config_at)
    configs = {
        address: group_document(config)
        for address, config in answers.some().items()
        if config is not None
    }
    if not configs:
        raise GroupNotFound(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"no broker has settings of group {group!r}",
            "the cluster",
            "getConsumerConfig",
        )
    blocks = []
    for address, config in configs.items():
        title = f"{brokers[address].cluster}:{brokers[address].name}"
        lines = [f"============================={title}============================="]
        lines += [
            f"{key:<40}=  {json.dumps(value) if isinstance(value, dict | list | bool) else value}"
            for key, value in config.items()
        ]
        blocks.append("\n".join(lines))
    return answered(answers, {"group": group, "brokers": configs}, blocks)


# --- setConsumeMode


async def set_consume_mode(admin: Admin, options: Values) -> Result:
    """Let a group read a topic by pulls, or by pops."""
    topic, group = options.text("topicName"), options.text("groupName")
    mode, share = options.text("mode"), options.number("popShareQueueNum")
    body = MessageRequestMode(
        topic=topic, consumer_group=group, mode=mode, pop_share_queue_count=share
    )
    addresses = await chosen_brokers(admin, options)
    answers = await ask_each(
        admin, addresses, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.encode()
    )
    document = {
        "topic": topic,
        "group": group,
        "mode": mode,
        "popShareQueueNum": share,
        "brokers": sorted(answers.values),
    }
    blocks = [f"set consume mode to {target} success." for target in sorted(answers.values)]
    blocks.append(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{share}]")
    return answered(answers, document, blocks)


def read_mode(text: str) -> str:
    """Return PULL or POP. Raises: ValueError."""
    if text.upper() not in ("PULL", "POP"):
        raise ValueError("use PULL or POP")
    return text.upper()


# --- producer, topicClusterList


async def producers(admin: Admin, options: Values) -> Result:
    answer = await admin.ask(options.text("broker"), RequestCode.GET_ALL_PRODUCER_INFO)
    known = read_body(ProducerTable, answer).data
    groups = {
        group: [
            {
                **members_of(one, "clientId", "remoteIP", "language"),
                "version": version_name(one.version),
                "lastUpdateTimestamp": one.last_update_timestamp,
            }
            for one in sorted(members, key=lambda one: one.client_id)
        ]
        for group, members in sorted(known.items())
    }
    table = table_of(
        [{"group": group, **row} for group, members in groups.items() for row in members],
        {
            "Group": "group",
            "ClientId": "clientId",
            "RemoteIP": "remoteIP",
            "Language": "language",
            "Version": "version",
            "LastUpdate": lambda row: seconds_text(row["lastUpdateTimestamp"]),
        },
    )
    return Result(document={"groups": groups}, blocks=[table])


async def topic_cluster_list(admin: Admin, options: Values) -> Result:
    topic = options.text("topic")
    clusters = sorted({data.cluster for data in (await admin.route(topic)).broker_datas})
    return Result(document={"topic": topic, "clusters": clusters}, blocks=clusters)


GROUP_NAME = Option("-g, --groupName GROUP", "the group", required=True)

COMMANDS = (
    AdminCommand(
        "deleteSubGroup",
        delete_group,
        effect=Effect.DESTROYS,
        loss="the group's settings, and with -r its offsets",
    ).with_options(
        GROUP_NAME,
        Option("-b, --brokerAddr ADDRESS", "at one broker, host:port"),
        Option(
            "-c, --clusterName NAME",
            "at all masters of a cluster, with the group's retry and dead-letter topics",
        ),
        Option("-r, --removeOffset BOOL", "true: also delete its offsets", truth),
    ),
    AdminCommand("getConsumerConfig", consumer_config).with_options(GROUP_NAME),
    AdminCommand("setConsumeMode", set_consume_mode, effect=Effect.CHANGES).with_options(
        *MASTERS,
        Option("-t, --topicName TOPIC", "name of the topic", required=True),
        GROUP_NAME,
        Option("-m, --mode MODE", "PULL or POP", read_mode, required=True),
        Option(
            "-q, --popShareQueueNum COUNT",
            "with how many other members each queue is shared; 0: with all",
            whole(-1),
            default=0,
        ),
    ),
    AdminCommand("producer", producers).with_options(
        Option("-b, --broker ADDRESS", "the broker, host:port", required=True)
    ),
    AdminCommand("topicClusterList", topic_cluster_list).with_options(TOPIC),
)
