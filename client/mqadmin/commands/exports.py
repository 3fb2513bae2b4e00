"""Commands that write files about a cluster: exportMetadata, exportConfigs, exportMetrics.

And exportPopRecord, for which brokers write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.arguments import Option, Values, truth
from triomq.client.admin.broker_metadata import broker_metadata, merged
from triomq.client.admin.times import now_ms
from triomq.client.core.errors import BrokerError, GroupOffline, SettingsError
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.places import MASTERS, ask_each, beside_missing, chosen_brokers
from triomq.client.mqadmin.core.result import Document, Result, answered
from triomq.remoting.protocol.bodies.groups import ConsumerConnection, SubscriptionGroupTable
from triomq.remoting.protocol.bodies.offsets import BrokerStats
from triomq.remoting.protocol.bodies.topics import TopicTable
from triomq.remoting.protocol.codes import RequestCode, version_name
from triomq.remoting.protocol.headers.admin import BrokerStatsHeader
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader
from triomq.remoting.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.broker_address import BrokerAddress


DEFAULT_FOLDER = "/tmp/rocketmq/export"
FOLDER = Option("-f, --filePath FOLDER", "folder of the file", default=DEFAULT_FOLDER)


def write_export(options: Values, name: str, document: Mapping[str, object]) -> str:
    """Write a file of the folder and return its path. Raises: SettingsError."""
    path = Path(options.text("filePath")) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=4, ensure_ascii=False, sort_keys=True) + "\n")
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror or error}; name a folder with -f"
        ) from None
    return str(path)


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
    table: dict[str, object] = {"exportTime": now_ms()}
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
    answers = await beside_missing(admin, options, answers)
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
    answers: Answers[object] = Answers(dict.fromkeys(addresses), {})
    if not dry_run:
        answers = await ask_each(admin, addresses, RequestCode.POP_ROLLBACK)
    lines = [
        f"Export broker records, brokerName={names.get(address, '-')}, brokerAddr={address},"
        f" dryRun={str(dry_run).lower()}"
        for address in answers.values
    ]
    return answered(answers, {"brokers": sorted(answers.values), "dryRun": dry_run}, lines)


TPS = {
    "normalInTps": "totalNormalInTps",
    "normalOutTps": "totalNormalOutTps",
    "scheduleInTps": "totalScheduleInTps",
    "transInTps": "totalTransInTps",
}
"""rate of a broker → its sum in the totals"""
DAY = ("normalOneDayInNum", "normalOneDayOutNum", "scheduleOneDayInNum", "transOneDayInNum")


async def puts(admin: Admin, address: str, topic: str) -> tuple[float, int]:
    """Return rate and number of 24 hours of a topic; a broker without messages refuses."""
    header = BrokerStatsHeader("TOPIC_PUT_NUMS", topic)
    try:
        answer = await admin.ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
    except BrokerError:
        return 0.0, 0
    stats = read_body(BrokerStats, answer)
    return stats.minute.tps, stats.day.sum


async def client_kinds(admin: Admin, address: str, groups: Mapping[str, object]) -> list[str]:
    """Return ``JAVA%V5_5_0`` for each kind of connected consumer."""
    kinds: set[str] = set()
    for group in groups:
        header = ConsumerGroupHeader(consumer_group=group)
        try:
            answer = await admin.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        except GroupOffline:
            continue
        for client in read_body(ConsumerConnection, answer).connections:
            kinds.add(f"{client.language}%{version_name(client.version)}")
    return sorted(kinds)


async def broker_figures(admin: Admin, broker: BrokerAddress) -> Document:
    # Not for the help: start-up time.
    from triomq.client.admin.server_settings import read_settings
    from triomq.client.mqadmin.commands.cluster import broker_row  # likewise

    address = broker.address
    status = await admin.broker_status(address)
    settings = (await read_settings(admin, [address], RequestCode.GET_BROKER_CONFIG)).some()
    metadata = await broker_metadata(admin, address, special=False)
    schedule_tps, schedule_day = await puts(admin, address, SCHEDULE_TOPIC)
    half_tps, half_day = await puts(admin, address, HALF_TOPIC)
    row = broker_row(broker, status, None, now_ms())
    return {
        "runtimeEnv": {"cpuNum": settings[address].get("clientCallbackExecutorThreads")},
        "runtimeQuota": {
            "diskRatio": {
                "commitLogDiskRatio": status.get("commitLogDiskRatio"),
                "consumeQueueDiskRatio": status.get("consumeQueueDiskRatio"),
            },
            "tps": {
                "normalInTps": row["inTps"],
                "normalOutTps": row["outTps"],
                "scheduleInTps": schedule_tps,
                "transInTps": half_tps,
            },
            "oneDayNum": {
                "normalOneDayInNum": row["inTotalYesterday"],
                "normalOneDayOutNum": row["outTotalYesterday"],
                "scheduleOneDayInNum": schedule_day,
                "transOneDayInNum": half_day,
            },
            "messageAverageSize": status.get("putMessageAverageSize"),
            "topicSize": len(metadata.topics),
            "groupSize": len(metadata.groups),
        },
        "runtimeVersion": {
            "rocketmqVersion": status.get("brokerVersionDesc"),
            "clientInfo": await client_kinds(admin, address, metadata.groups),
        },
    }


async def export_metrics(admin: Admin, options: Values) -> Result:
    brokers = {
        broker.name: broker
        for broker in await admin.brokers(options.text("clusterName"), masters_only=True)
    }
    answers = await admin.for_each(brokers, lambda name: broker_figures(admin, brokers[name]))
    answers = await beside_missing(admin, options, answers)
    report = dict(answers.some())
    quotas = [figures["runtimeQuota"] for figures in report.values()]
    table = {
        "evaluateReport": report,
        "totalData": {
            "totalTps": {
                total: sum(quota["tps"][key] or 0 for quota in quotas) for key, total in TPS.items()
            },
            "totalOneDayNum": {
                key: sum(quota["oneDayNum"][key] or 0 for quota in quotas) for key in DAY
            },
        },
    }
    path = write_export(options, "metrics.json", table)
    return answered(answers, {"file": path, **table}, [f"export {path} success"])


COMMANDS = (
    AdminCommand("exportMetadata", export_metadata, effect=Effect.ACTS).with_options(
        *MASTERS,
        FOLDER,
        Option("-t, --topic", "only topics: topic.json"),
        Option("-g, --subscriptionGroup", "only groups: subscriptionGroup.json"),
        Option("-s, --specialTopic", "with retry and dead-letter topics"),
    ),
    AdminCommand("exportConfigs", export_configs, effect=Effect.ACTS).with_options(
        Option("-c, --clusterName NAME", "the cluster", required=True), FOLDER
    ),
    AdminCommand("exportPopRecord", export_pop_records, effect=Effect.ACTS).with_options(
        *MASTERS, Option("-d, --dryRun BOOL", "true: only print the brokers", truth)
    ),
    AdminCommand("exportMetrics", export_metrics, effect=Effect.ACTS).with_options(
        Option("-c, --clusterName NAME", "the cluster", required=True), FOLDER
    ),
)
