"""The command queryMsgTraceById: what happened to a message, by the records of its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin import messages
from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.admin.errors import TraceNotFound
from triomq.client.admin.times import instant_ms, seconds_text
from triomq.client.mqadmin.core.command import AdminCommand, Result, Table, answered
from triomq.client.mqadmin.core.trace_text import TRACE_SHAPE, status, trace_document
from triomq.remoting.protocol.names import TRACE_TOPIC

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.trace.trace_events import TraceEvent


def tables(events: list[TraceEvent]) -> list[Table | str]:
    """Return a table of what the producers did, and one for each consumer group."""
    blocks: list[Table | str] = []
    several = len({event.message_id for event in events}) > 1
    for title, some in sections(events):
        columns = ["Type", f"{title}Group", "ClientHost"]
        columns += ["SendTime" if title == "Producer" else "ConsumerTime", "CostTimes", "Status"]
        rows = []
        for event in some:
            cost = None if event.cost_ms is None else f"{event.cost_ms}ms"
            time = seconds_text(event.timestamp)
            row = [event.kind, event.group, event.client_host, time, cost, status(event)]
            rows.append([*row, event.message_id] if several else row)
        blocks.append(Table([*columns, "MsgId"] if several else columns, rows))
    return blocks


def sections(events: list[TraceEvent]) -> list[tuple[str, list[TraceEvent]]]:
    """Return the events of producers, then those of each consumer group."""
    sent = [event for event in events if event.kind != "Sub"]
    found = [("Producer", sent)] if sent else []
    groups = dict.fromkeys(event.group for event in events if event.kind == "Sub")
    for group in groups:
        of_group = [event for event in events if event.kind == "Sub" and event.group == group]
        found.append(("Consumer", of_group))
    return found


async def query_trace(admin: Admin, options: Values) -> Result:
    key, topic = options.text("msgId").strip(), options.text("traceTopic")
    history = await admin.message_trace(
        key,
        trace_topic=topic,
        count=options.number("maxNum"),
        begin_ms=options.value("beginTimestamp"),
        end_ms=options.value("endTimestamp"),
    )
    events, answers = history.events, history.answers
    answers.some()  # raises if no broker answered
    if not events and not answers.failures:
        raise TraceNotFound(key, topic)
    document = {"events": [trace_document(event) for event in events]}
    return answered(answers, document, tables(events))


COMMANDS = (
    AdminCommand(
        name="queryMsgTraceById",
        run=query_trace,
        options=(
            Option("-i, --msgId ID", "the message's id, or a business key", required=True),
            Option("-t, --traceTopic TOPIC", "the topic of the traces", default=TRACE_TOPIC),
            Option(
                "-b, --beginTimestamp TIME",
                "only traces stored then or later",
                instant_ms,
                default=0,
            ),
            Option(
                "-e, --endTimestamp TIME",
                "only traces stored then or earlier",
                instant_ms,
                default=messages.FAR_FUTURE_MS,
            ),
            Option(
                "-c, --maxNum N",
                "maximum number of trace messages of each broker",
                whole(1),
                default=64,
            ),
        ),
        examples=("queryMsgTraceById -i 7F0000010AC018B4AAC2514F3A9B0000",),
        document=f'{{"events": [{TRACE_SHAPE}], "failures": {{broker: reason}}}}',
        remarks=(
            "A trace exists if brokers have the topic (traceTopicEnable=true) and clients trace"
            " (`ClientSettings(trace=True)`, Java: enableTrace); clients send it within 5 s.\n"
            "A message that is being handled has a line without cost and status.\n"
            "With a business key, all messages that have it are shown."
        ),
    ),
)
