"""The command exportMetrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, Values
from triomq.client.admin.broker_metadata import broker_metadata
from triomq.client.admin.times import now_ms
from triomq.client.core.errors import BrokerError, GroupOffline
from triomq.client.mqadmin.core.command import AdminCommand, Effect, Result, answered
from triomq.client.mqadmin.core.export_files import FOLDER, write_export
from triomq.remoting.protocol.bodies.groups import ConsumerConnection
from triomq.remoting.protocol.bodies.offsets import BrokerStats
from triomq.remoting.protocol.codes import RequestCode, version_name
from triomq.remoting.protocol.headers.admin import BrokerStatsHeader
from triomq.remoting.protocol.headers.client import ConsumerGroupHeader
from triomq.remoting.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.broker_address import BrokerAddress

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


async def broker_figures(admin: Admin, broker: BrokerAddress) -> dict[str, Any]:
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
    AdminCommand(
        name="exportMetrics",
        effect=Effect.ACTS,
        run=export_metrics,
        options=(Option("-c, --clusterName NAME", "the cluster", required=True), FOLDER),
        examples=("exportMetrics -c DefaultCluster -f export",),
        document=(
            '{"file", "evaluateReport": {broker: {"runtimeEnv": JSON, "runtimeQuota": JSON,'
            ' "runtimeVersion": JSON}}, "totalData": {"totalTps": JSON, "totalOneDayNum": JSON},'
            ' "failures": {broker: reason}}'
        ),
        remarks=(
            "The file has the same members as the document, which are RocketMQ's; null is what a"
            " broker does not tell."
        ),
    ),
)
