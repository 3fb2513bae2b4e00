"""Commands that write files about a cluster: exportMetadata, exportConfigs; and exportPopRecord."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Option, Values, truth
from triomq.client.admin.broker_metadata import broker_metadata, merged
from triomq.client.admin.times import now_ms
from triomq.client.mqadmin.core.command import (
    MASTERS,
    ONE_PLACE,
    AdminCommand,
    Effect,
    Result,
    answered,
    ask_each,
    chosen_brokers,
)
from triomq.client.mqadmin.core.export_files import FOLDER, write_export
from triomq.remoting.protocol.bodies.groups import SubscriptionGroupTable
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

CONFIG_KEYS = (
    *("autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerClusterName", "brokerId"),
    *("brokerName", "brokerRole", "fileReservedTime", "filterServerNums", "flushDiskType"),
    *("maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn"),
    *("traceTopicEnable", "useTLS"),
)
"""the settings that exportConfigs chooses"""


async def export_metadata(admin: Admin, options: Values) -> Result:
    special = options.flag("specialTopic")
    addresses = await chosen_brokers(admin, options)
    answers = await admin.for_each(
        addresses, lambda address: broker_metadata(admin, address, special=special)
    )
    topics, groups, different = merged(answers)
    table: dict[str, Any] = {"exportTime": now_ms()}
    only_topics, only_groups = options.flag("topic"), options.flag("subscriptionGroup")
    if not only_groups or only_topics:
        table["topicConfigTable"] = json.loads(TopicTable(topics).encode())["topicConfigTable"]
    if not only_topics:
        plain = json.loads(SubscriptionGroupTable(groups).encode())
        table["subscriptionGroupTable"] = plain["subscriptionGroupTable"]
    part = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
    path = write_export(options, f"{part}.json", table)
    notes = [
        (
            f"brokers have different settings of {', '.join(different)}; the file has the largest"
            " numbers of queues, and otherwise the settings of the first broker"
        )
    ]
    return answered(
        answers,
        {"file": path, "topics": sorted(topics), "groups": sorted(groups)},
        [f"export {path} success"],
        notes=notes if different else [],
    )


async def export_configs(admin: Admin, options: Values) -> Result:
    from triomq.client.admin.server_settings import read_settings  # not for the help

    brokers = await admin.brokers(options.text("clusterName"))
    masters = [broker.address for broker in brokers if broker.id == 0]
    answers = await read_settings(admin, masters, RequestCode.GET_BROKER_CONFIG)
    configs = {
        settings.get("brokerName", address): {
            key: settings[key] for key in CONFIG_KEYS if key in settings
        }
        for address, settings in answers.some().items()
    }
    scale = {
        "namesrvSize": len(admin.namesrv_addresses),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": len(brokers) - len(masters),
    }
    table = {"clusterScale": scale, "brokerConfigs": configs}
    path = write_export(options, "configs.json", table)
    return answered(answers, {"file": path, **table}, [f"export {path} success"])


async def export_pop_records(admin: Admin, options: Values) -> Result:
    dry_run = bool(options.maybe_flag("dryRun"))
    cluster = options.maybe_text("clusterName")
    known = await admin.brokers(cluster) if cluster is not None else []
    names = {broker.address: broker.name for broker in known}
    addresses = await chosen_brokers(admin, options)
    answers: Answers[Any] = Answers(dict.fromkeys(addresses), {})
    if not dry_run:
        answers = await ask_each(admin, addresses, RequestCode.POP_ROLLBACK)
    lines = [
        f"Export broker records, brokerName={names.get(address, '-')}, brokerAddr={address},"
        f" dryRun={str(dry_run).lower()}"
        for address in answers.values
    ]
    return answered(answers, {"brokers": sorted(answers.values), "dryRun": dry_run}, lines)


COMMANDS = (
    AdminCommand(
        name="exportMetadata",
        effect=Effect.ACTS,
        run=export_metadata,
        options=(
            *MASTERS,
            FOLDER,
            Option("-t, --topic", "only topics: topic.json"),
            Option("-g, --subscriptionGroup", "only groups: subscriptionGroup.json"),
            Option("-s, --specialTopic", "with retry and dead-letter topics"),
        ),
        one_of=ONE_PLACE,
        examples=("exportMetadata -c DefaultCluster -f export",),
        document=(
            '{"file", "topics": [name], "groups": [name], "failures": {address: reason}}; the file:'
            ' {"exportTime", "topicConfigTable": {name: settings}, "subscriptionGroupTable": {name:'
            " settings}}"
        ),
        remarks=(
            "Numbers of queues are those of one broker; RocketMQ's mqadmin adds up those of all, so"
            " that a cluster made of its file has too many."
        ),
    ),
    AdminCommand(
        name="exportConfigs",
        effect=Effect.ACTS,
        run=export_configs,
        options=(Option("-c, --clusterName NAME", "the cluster", required=True), FOLDER),
        examples=("exportConfigs -c DefaultCluster -f export",),
        document=(
            '{"file", "clusterScale": {"namesrvSize", "masterBrokerSize", "slaveBrokerSize"},'
            ' "brokerConfigs": {broker: {setting: text}}, "failures": {address: reason}}'
        ),
        remarks="The file has the same members as the document, and the settings of RocketMQ's.",
    ),
    AdminCommand(
        name="exportPopRecord",
        effect=Effect.ACTS,
        run=export_pop_records,
        options=(
            *MASTERS,
            Option("-d, --dryRun BOOL", "true: only print the brokers", truth),
        ),
        one_of=ONE_PLACE,
        examples=("exportPopRecord -c DefaultCluster -d true",),
        document='{"brokers": [address], "dryRun", "failures": {address: reason}}',
        remarks=(
            "Brokers of RocketMQ with popConsumerKVServiceEnable write their POP records to the"
            " log, before a change back to the store without it. RocketMQ's mqadmin reads -d the"
            " wrong way round."
        ),
    ),
)
