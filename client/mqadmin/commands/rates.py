"""Commands about rates and backlog: statsAll, brokerConsumeStats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers, read_body
from triomq.client.admin.arguments import Option, Values, truth, whole
from triomq.client.admin.broker_rates import summed_item
from triomq.client.admin.documents import members_of
from triomq.client.admin.times import seconds_text
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.result import Document, Result, sum_text, table_of
from triomq.remoting.protocol.bodies.offsets import BrokerConsumeStats
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import BrokerConsumeStatsHeader
from triomq.remoting.protocol.names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

INTERNAL_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX)


async def stats_all(admin: Admin, options: Values) -> Result:
    only = options.maybe_text("topic")
    topics = [
        topic
        for topic in await admin.topics()
        if not topic.startswith(INTERNAL_PREFIXES) and only in (None, topic)
    ]
    silent: dict[str, str] = {}
    answers = await admin.for_each(topics, lambda topic: topic_rates(admin, topic, silent))
    rows = [row for topic in topics for row in answers.values.get(topic, [])]
    failures = {**answers.reasons(), **silent}  # a broker has a topic of its own name
    asked = len((await admin.leaders()).keys() | failures.keys())
    if options.flag("activeTopic"):
        rows = [row for row in rows if row["in24h"] or row["out24h"]]
    table = table_of(
        rows,
        {
            "Topic": "topic",
            "Consumer Group": lambda row: row["group"] or "NO_CONSUMER",
            ">Accumulation": lambda row: sum_text(row["accumulation"], whole=not row["incomplete"]),
            ">InTPS": lambda row: f"{row['inTps']:.2f}",
            ">OutTPS": lambda row: f"{row['outTps']:.2f}",
            ">InMsg24Hour": "in24h",
            ">OutMsg24Hour": "out24h",
            ">Inflight": "inflight",
        },
    )
    return Result(document={"topics": rows}, blocks=[table], failures=failures, asked=asked)


async def topic_rates(admin: Admin, topic: str, silent: dict[str, str]) -> list[Document]:
    """Return a row for each group of a topic, none if no broker of the topic answers.

    Brokers that do not answer are added to ``silent``, with the reason.
    """
    brokers = await admin.topic_brokers(topic)
    groups = await admin.topic_groups_by_broker(topic)
    silent.update(groups.reasons())
    answering = {name: address for name, address in brokers.items() if name in groups.values}
    if not answering:
        return []
    in_tps, in_day = await summed_item(admin, answering, "TOPIC_PUT_NUMS", topic, silent)
    rows = []
    for group in sorted({group for some in groups.values.values() for group in some}) or [""]:
        out_tps, out_day = (
            await summed_item(admin, answering, "GROUP_GET_NUMS", f"{topic}@{group}", silent)
            if group
            else (0.0, 0)
        )
        stats = await admin.consume_stats(group, topic) if group else Answers({}, {})
        silent.update(stats.reasons())
        behind = sum(
            offset.broker_offset - offset.consumer_offset
            for table in stats.values.values()
            for offset in table.offset_table.values()
        )
        in_flight = sum(
            max(0, offset.pull_offset - offset.consumer_offset)
            for table in stats.values.values()
            for offset in table.offset_table.values()
        )
        row = {
            "topic": topic,
            "group": group or None,
            "accumulation": behind,
            "inflight": in_flight,
            "inTps": in_tps,
            "outTps": out_tps,
            "in24h": in_day,
            "out24h": out_day,
        }
        rows.append({**row, "incomplete": not silent.keys().isdisjoint(brokers)})
    return rows


# --- brokerConsumeStats


async def broker_consume_stats(admin: Admin, options: Values) -> Result:
    address = options.text("brokerAddr")
    header = BrokerConsumeStatsHeader(bool(options.maybe_flag("order")))
    answer = await admin.ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header)
    stats = read_body(BrokerConsumeStats, answer)
    level = options.number("level")
    rows: list[dict[str, object]] = [
        {
            "topic": queue.topic,
            "group": group,
            **members_of(queue, "brokerName", "queueId"),
            **members_of(offset, "brokerOffset", "consumerOffset"),
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
    table = table_of(
        rows,
        {
            "Topic": "topic",
            "Group": "group",
            "Broker Name": "brokerName",
            ">QID": "queueId",
            ">Broker Offset": "brokerOffset",
            ">Consumer Offset": "consumerOffset",
            ">Diff": "diff",
            "LastTime": lambda row: seconds_text(row["lastTimestamp"]),
        },
    )
    return Result(
        document={"brokerAddr": address, "queues": rows, "diffTotal": stats.total_diff},
        blocks=[table, f"Diff Total: {stats.total_diff}"],
    )


COMMANDS = (
    AdminCommand("statsAll", stats_all).with_options(
        Option("-a, --activeTopic", "only topics with messages sent or consumed within 24 hours"),
        Option("-t, --topic TOPIC", "only this topic"),
    ),
    AdminCommand("brokerConsumeStats", broker_consume_stats).with_options(
        Option("-b, --brokerAddr ADDRESS", "the broker, host:port", required=True),
        Option("-t, --timeoutMillis MS", "accepted for old scripts; see --timeout", whole(1)),
        Option(
            "-l, --level N", "only queues with at least this lag, in messages", whole(0), default=0
        ),
        Option("-o, --order BOOL", "true: only ordered topics", truth),
    ),
)
