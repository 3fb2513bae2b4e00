"""The command consumeMessage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triomq.client.admin import messages
from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Option, UsageError, Values, whole
from triomq.client.admin.documents import MESSAGE_KEYS, broker_message_document
from triomq.client.admin.times import instant_ms
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.command import TOPIC, AdminCommand, Result, answered
from triomq.client.mqadmin.core.message_text import message_table

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin

DEFAULT_COUNT = 128


async def consume_message(admin: Admin, options: Values) -> Result:
    topic, broker = options.text("topic"), options.maybe_text("brokerName")
    queue_id, offset = options.maybe_number("queueId"), options.maybe_number("offset")
    begin, end = options.value("beginTimestamp"), options.value("endTimestamp")
    if queue_id is not None and broker is None:
        raise UsageError(
            "-i/--queueId needs -b/--brokerName: a queue id alone does not name a queue"
        )
    if offset is not None and queue_id is None:
        raise UsageError(
            "-o/--offset needs -b/--brokerName and -i/--queueId: offsets are counted per queue"
        )
    if offset is not None and begin is not None:
        raise UsageError("give only one of -o/--offset and -s/--beginTimestamp")
    if begin is not None and end is not None and begin > end:
        raise UsageError("-s/--beginTimestamp is after -e/--endTimestamp")
    queues = await admin.queues(topic, broker)
    if queue_id is not None:
        queues = [queue for queue in queues if queue.queue_id == queue_id]
        if not queues:
            raise UsageError(
                f"topic {topic!r} has no queue {queue_id} on broker {broker!r}; `mqadmin topic"
                f" route -t {topic} -l` shows the queues"
            )
    left = options.number("MessageNumber")
    group = options.maybe_text("consumerGroup") or messages.TOOLS_GROUP
    found: list[dict[str, Any]] = []
    ranges: list[dict[str, Any]] = []
    failures: dict[str, TrioMQError] = {}
    for queue in queues:
        if queue.broker_name in failures:
            continue
        try:
            first = await admin.min_offset(queue)
            start = (
                offset
                if offset is not None
                else await admin.offset_by_time(queue, begin)
                if begin is not None
                else first
            )
            stop = await admin.max_offset(queue)
            batch = await admin.read(queue, start, count=left, end_offset=stop, group=group)
        except TrioMQError as error:
            failures[queue.broker_name] = error
            continue
        batch = [
            message
            for message in batch
            if (begin is None or message.store_timestamp >= begin)
            and (end is None or message.store_timestamp <= end)
        ]
        found += [broker_message_document(message, queue.broker_name) for message in batch]
        ranges.append(
            {
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "minOffset": first,
                "maxOffset": stop,
                "read": len(batch),
            }
        )
        left -= len(batch)
        if left <= 0:
            break
    answers = Answers(
        {part["brokerName"]: part for part in ranges if part["brokerName"] not in failures},
        failures,
    )
    if not ranges:
        answers.some()
    stored = sum(int(part["maxOffset"]) - int(part["minOffset"]) for part in ranges)
    note = f"no message of topic {topic} matches; {stored} are stored in these queues"
    document = {"topic": topic, "messages": found, "queues": ranges}
    return answered(answers, document, [message_table(found)], notes=[] if found else [note])


COMMANDS = (
    AdminCommand(
        name="consumeMessage",
        run=consume_message,
        options=(
            TOPIC,
            Option("-b, --brokerName NAME", "only this broker, by name"),
            Option("-i, --queueId ID", "only this queue (with -b)", whole(0)),
            Option("-o, --offset OFFSET", "begin at this offset (with -b and -i)", whole(0)),
            Option(
                "-g, --consumerGroup GROUP", "consumer group of the pulls (default: TOOLS_CONSUMER)"
            ),
            Option(
                "-s, --beginTimestamp TIME",
                "only messages stored then or later, for instance -1h; see times",
                instant_ms,
            ),
            Option("-e, --endTimestamp TIME", "only messages stored then or earlier", instant_ms),
            Option(
                "-c, --MessageNumber N",
                "maximum number of messages",
                whole(1),
                default=DEFAULT_COUNT,
            ),
        ),
        examples=(
            "consumeMessage -t orders",
            "consumeMessage -t orders -b broker-a -i 0 -o 100 -c 10 --json",
        ),
        document=(
            f'{{"topic", "messages": [{{{MESSAGE_KEYS}}}], "queues": [{{"brokerName", "queueId",'
            ' "minOffset", "maxOffset", "read"}], "failures": {broker:'
            " reason}}; body is null and bodyBase64 set when the bytes are not UTF-8"
        ),
        remarks="Reads up to the ends of the queues at the start, and never waits.",
    ),
)
