"""Commands that print stored messages.

consumeMessage, printMsg, printMsgByQueue, queryMsgByOffset.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from triomq.client.admin import messages
from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Option, UsageError, Values, truth, whole
from triomq.client.admin.documents import broker_message_document
from triomq.client.admin.errors import MessageNotFound
from triomq.client.admin.resend.searching import end_by_time
from triomq.client.admin.resend.selection import tags_of
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.command import BY_TOPIC, TOPIC, AdminCommand, period
from triomq.client.mqadmin.core.message_text import (
    charset,
    in_charset,
    message_lines,
    message_table,
)
from triomq.client.mqadmin.core.result import Document, Result, Table, answered
from triomq.remoting.protocol.bodies.route import MessageQueue

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.remoting.protocol.record import StoredMessage


CHUNK_MESSAGES = 64
MESSAGES_MAX = 100_000
BODY_BYTES_MAX = 256 << 20
"""what one call keeps until it prints: of small messages 100,000, of large ones 256 MiB"""


@attrs.define
class Reading:
    """What a call has read so far, and what it wants."""

    begin: int | None
    end: int | None
    tags: frozenset[str]
    charset: str | None = None
    found: list[tuple[MessageQueue, StoredMessage]] = attrs.field(factory=list)
    body_bytes: int = 0

    @property
    def full(self) -> bool:
        return len(self.found) >= MESSAGES_MAX or self.body_bytes >= BODY_BYTES_MAX

    def take(self, queue: MessageQueue, message: StoredMessage) -> None:
        """Keep a message if it is in the period and has a wanted tag."""
        if (self.begin is not None and message.store_timestamp < self.begin) or (
            self.end is not None and message.store_timestamp > self.end
        ):
            return
        if self.tags and message.properties.get("TAGS") not in self.tags:
            return
        self.found.append((queue, message))
        self.body_bytes += message.size

    def documents(self) -> list[dict[str, object]]:
        documents = [
            broker_message_document(message, queue.broker_name) for queue, message in self.found
        ]
        if self.charset is None:
            return documents
        return [in_charset(document, self.charset) for document in documents]


async def read_queue(admin: Admin, queue: MessageQueue, reading: Reading) -> dict[str, object]:
    """Read a queue from the begin of the period to its present end; return what it holds."""
    first, stop = await admin.min_offset(queue), await admin.max_offset(queue)
    start = first if reading.begin is None else await admin.offset_by_time(queue, reading.begin)
    end = stop
    if reading.end is not None:
        end = min(stop, await end_by_time(admin, queue, reading.end))
    before = len(reading.found)
    while start < end and not reading.full:
        batch = await admin.read(queue, start, count=CHUNK_MESSAGES, end_offset=end)
        for message in batch:
            reading.take(queue, message)
        if len(batch) < CHUNK_MESSAGES:
            break
        start = batch[-1].queue_offset + 1
    return queue_range(queue, first, stop, len(reading.found) - before)


def queue_range(queue: MessageQueue, first: int, stop: int, count: int) -> dict[str, object]:
    """Return the document of a queue of which ``count`` messages were read."""
    return {
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "minOffset": first,
        "maxOffset": stop,
        "read": count,
    }


async def known_queue(admin: Admin, topic: str, broker: str, queue_id: int) -> MessageQueue:
    """Return a queue that can be read. Raises: UsageError, BrokerMissing."""
    queue = MessageQueue(topic, broker, queue_id)
    if queue not in await admin.queues(topic, broker):
        raise UsageError(
            f"topic {topic!r} has no queue {queue_id} on broker {broker!r}; `mqadmin topic route -t"
            f" {topic} -l` shows the queues"
        )
    return queue


def wanted(options: Values) -> Reading:
    begin, end = options.value("beginTimestamp"), options.value("endTimestamp")
    if begin is not None and end is not None and begin > end:
        raise UsageError("-b/--beginTimestamp is after -e/--endTimestamp")
    tags = options.value("subExpression") or frozenset()
    return Reading(begin, end, tags, options.maybe_text("charsetName"))


def limit_notes(reading: Reading) -> list[str]:
    if not reading.full:
        return []
    return [
        (
            f"the output ends after {len(reading.found)} messages, the limit of one call; go on"
            " with -b/--beginTimestamp, or queue by queue with printMsgByQueue"
        )
    ]


def without_body(document: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in document.items() if not key.startswith("body")}


async def print_messages(admin: Admin, options: Values) -> Result:
    topic, reading = options.text("topic"), wanted(options)
    bodies = options.maybe_flag("printBody") is not False
    ranges: list[Document] = []
    failures: dict[str, TrioMQError] = {}
    for queue in await admin.queues(topic):
        if queue.broker_name in failures or reading.full:
            continue
        try:
            ranges.append(await read_queue(admin, queue, reading))
        except TrioMQError as error:
            failures[queue.broker_name] = error
    answers = Answers({part["brokerName"]: part for part in ranges}, failures)
    answers.some()
    documents = reading.documents()
    lines = [
        f"minOffset={part['minOffset']}, maxOffset={part['maxOffset']},"
        f" {part['brokerName']}:{part['queueId']}"
        for part in ranges
    ]
    return answered(
        answers,
        {
            "topic": topic,
            "messages": documents if bodies else list(map(without_body, documents)),
            "queues": ranges,
        },
        [*lines, message_table(documents, bodies=bodies)],
        notes=limit_notes(reading),
    )


async def print_queue(admin: Admin, options: Values) -> Result:
    topic, broker = options.text("topic"), options.text("brokerName")
    queue_id, reading = options.number("queueId"), wanted(options)
    printing, bodies = options.maybe_flag("print"), options.maybe_flag("printBody")
    counting = options.maybe_flag("calculate")
    queue = await known_queue(admin, topic, broker, queue_id)
    part = await read_queue(admin, queue, reading)
    documents = reading.documents()
    tags = Counter(document["tags"] or "" for document in documents)
    counts = [{"tag": tag, "count": count} for tag, count in tags.most_common()]
    shown = [document if bodies else without_body(document) for document in documents]
    blocks: list[Table | str] = []
    if counting:
        blocks.append(Table(("Tag", ">Count"), [[row["tag"], row["count"]] for row in counts]))
    if printing:
        blocks.append(message_table(documents, bodies=bool(bodies)))
    notes = limit_notes(reading)
    if not blocks:
        notes.append(
            f"{len(documents)} messages match; print them with -p true, with their bodies -d true,"
            " or count them by tag with -f true"
        )
    return Result(
        document={**part, "topic": topic, "tags": counts, "messages": shown if printing else None},
        blocks=blocks,
        notes=notes,
    )


async def query_by_offset(admin: Admin, options: Values) -> Result:
    topic, broker = options.text("topic"), options.text("brokerName")
    queue_id, offset = options.number("queueId"), options.number("offset")
    queue = await known_queue(admin, topic, broker, queue_id)
    stored = await admin.read(queue, offset, count=1, end_offset=offset + 1)
    if not stored:
        raise MessageNotFound(f"offset {offset} in queue {broker}:{queue_id}", topic)
    document = broker_message_document(stored[0], broker)
    if (name := options.maybe_text("bodyFormat")) is not None:
        document = in_charset(document, name)
    return Result(document={"messages": [document]}, blocks=message_lines(document))


PERIOD = period("-b, --beginTimestamp", "-e, --endTimestamp")
CHARSET = Option("-c, --charsetName NAME", "character set of the bodies (default: utf-8)", charset)
TAGS = Option("-s, --subExpression TAGS", "only messages with these tags, 'A || B'", tags_of)


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
    if broker is not None and queue_id is not None:
        queues = [await known_queue(admin, topic, broker, queue_id)]
    else:
        queues = await admin.queues(topic, broker)
    left = options.number("MessageNumber")
    group = options.maybe_text("consumerGroup") or messages.TOOLS_GROUP
    found: list[dict[str, object]] = []
    ranges: list[Document] = []
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
        ranges.append(queue_range(queue, first, stop, len(batch)))
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
    AdminCommand("printMsg", print_messages).with_options(
        TOPIC,
        CHARSET,
        TAGS,
        *PERIOD,
        Option("-d, --printBody BOOL", "false: without bodies", truth),
        Option("-l, --lmqParentTopic TOPIC", BY_TOPIC),
    ),
    AdminCommand("printMsgByQueue", print_queue).with_options(
        TOPIC,
        Option("-a, --brokerName NAME", "name of the broker", required=True),
        Option("-i, --queueId ID", "id of the queue", whole(0), required=True),
        CHARSET,
        TAGS,
        *PERIOD,
        Option("-p, --print msg BOOL", "true: print the messages", truth),
        Option("-d, --printBody BOOL", "true: with their bodies", truth),
        Option("-f, --calculate BOOL", "true: count the messages of each tag", truth),
    ),
    AdminCommand("queryMsgByOffset", query_by_offset).with_options(
        TOPIC,
        Option("-b, --brokerName NAME", "name of the broker", required=True),
        Option("-i, --queueId ID", "id of the queue", whole(0), required=True),
        Option("-o, --offset OFFSET", "offset in the queue", whole(0), required=True),
        Option("-f, --bodyFormat NAME", "character set of the body (default: utf-8)", charset),
        Option("-r, --routeTopic TOPIC", BY_TOPIC),
    ),
    AdminCommand("consumeMessage", consume_message).with_options(
        TOPIC,
        Option("-b, --brokerName NAME", "only this broker, by name"),
        Option("-i, --queueId ID", "only this queue (with -b)", whole(0)),
        Option("-o, --offset OFFSET", "begin at this offset (with -b and -i)", whole(0)),
        Option(
            "-g, --consumerGroup GROUP", "consumer group of the pulls (default: TOOLS_CONSUMER)"
        ),
        *period("-s, --beginTimestamp", "-e, --endTimestamp"),
        Option(
            "-c, --MessageNumber N", "maximum number of messages", whole(1), default=DEFAULT_COUNT
        ),
    ),
)
