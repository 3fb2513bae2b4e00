"""The command consumeMessage, and how any command shows a message."""

from __future__ import annotations

import base64
from typing import Any

from triomq.client.admin import messages
from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, UsageError, Values, filled, whole
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.commands.topic import TOPIC
from triomq.client.admin.times import instant_ms, milliseconds_text
from triomq.remoting.address import format_address
from triomq.remoting.errors import RemotingError
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.record import StoredMessage

DEFAULT_COUNT = 128


def message_document(message: StoredMessage, broker_name: str) -> dict[str, Any]:
    """Return a stored message as `--json` shows it: the body as text if it is UTF-8, else in base64."""
    try:
        body: bytes = plain_body(message.body, message.sys_flag)
    except RemotingError:
        body = message.body  # compressed in a way that we cannot undo; shown as it is stored
    try:
        text, encoded = body.decode(), None
    except UnicodeDecodeError:
        text, encoded = None, base64.b64encode(body).decode()
    return {
        "topic": message.topic,
        "brokerName": broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "tags": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "body": text,
        "bodyBase64": encoded,
        "bornTimestamp": message.born_timestamp,
        "bornHost": format_address(*message.born_host),
        "storeTimestamp": message.store_timestamp,
        "storeHost": format_address(*message.store_host),
        "commitLogOffset": message.log_offset,
        "storeSize": message.size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
    }


def body_text(document: dict[str, Any]) -> str:
    """Return a body for people."""
    return document["body"] if document["body"] is not None else f"base64:{document['bodyBase64']}"


# --- consumeMessage --------------------------------------------------------------------------------------------------------------------


async def consume_message(admin: Admin, options: Values) -> Result:
    """Print messages of a topic, a broker or a queue; no offset moves."""
    topic, broker, queue_id = options.text("topic"), options.maybe_text("brokerName"), options.maybe_number("queueId")
    offset, begin, end = options.maybe_number("offset"), options.value("beginTimestamp"), options.value("endTimestamp")
    if queue_id is not None and broker is None:
        raise UsageError("-i/--queueId needs -b/--brokerName: a queue id alone does not name a queue")
    if offset is not None and queue_id is None:
        raise UsageError("-o/--offset needs -b/--brokerName and -i/--queueId: offsets are counted per queue")
    if offset is not None and begin is not None:
        raise UsageError("give only one of -o/--offset and -s/--beginTimestamp")
    if begin is not None and end is not None and begin > end:
        raise UsageError("-s/--beginTimestamp lies after -e/--endTimestamp")
    queues = await admin.queues(topic, broker)
    if queue_id is not None:
        queues = [queue for queue in queues if queue.queue_id == queue_id]
        if not queues:
            raise UsageError(
                f"topic {topic!r} has no queue {queue_id} on broker {broker!r}; `mqadmin topicRoute -t {topic} -l` shows how many there are"
            )
    left, group = options.number("MessageNumber"), options.maybe_text("consumerGroup") or messages.TOOLS_GROUP
    found: list[dict[str, Any]] = []
    ranges: list[dict[str, Any]] = []
    for queue in queues:
        first = await admin.min_offset(queue)
        start = (
            offset if offset is not None else await admin.offset_by_time(queue, begin) if begin is not None else first
        )
        stop = await admin.max_offset(queue)
        batch = await admin.read(queue, start, count=left, end_offset=stop, group=group)
        batch = [
            message
            for message in batch
            if (begin is None or message.store_timestamp >= begin) and (end is None or message.store_timestamp <= end)
        ]
        found += [message_document(message, queue.broker_name) for message in batch]
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
    columns = (
        Column("Broker Name"),
        Column("QID", right=True),
        Column("Offset", right=True),
        Column("Store Time"),
        Column("Tags"),
        Column("Keys"),
        Column("MsgId"),
        Column("Body"),
    )
    rows = [
        [
            message["brokerName"],
            str(message["queueId"]),
            str(message["queueOffset"]),
            milliseconds_text(message["storeTimestamp"]),
            message["tags"] or "",
            " ".join(message["keys"]),
            message["msgId"],
            body_text(message),
        ]
        for message in found
    ]
    notes = (
        []
        if found
        else [
            f"no message of topic {topic} matches; {sum(int(part['maxOffset']) - int(part['minOffset']) for part in ranges)} are stored in these queues"
        ]
    )
    return Result(
        document={"topic": topic, "messages": found, "queues": ranges}, blocks=[Table(columns, rows)], notes=notes
    )


COMMANDS = (
    Command(
        name="consumeMessage",
        group="message",
        summary="print stored messages, without moving any group's offset",
        run=consume_message,
        options=(
            TOPIC,
            Option("b", "brokerName", "only this broker, by name", filled, placeholder="NAME"),
            Option("i", "queueId", "only this queue (with -b)", whole(0), placeholder="ID"),
            Option("o", "offset", "begin at this offset (with -b and -i)", whole(0), placeholder="OFFSET"),
            Option("g", "consumerGroup", "group to read as (default: TOOLS_CONSUMER)", filled, placeholder="GROUP"),
            Option(
                "s",
                "beginTimestamp",
                "only messages stored then or later: milliseconds, yyyy-MM-dd#HH:mm:ss:SSS, or now",
                instant_ms,
                placeholder="TIME",
            ),
            Option("e", "endTimestamp", "only messages stored then or earlier", instant_ms, placeholder="TIME"),
            Option("c", "MessageNumber", "how many messages at most", whole(1), default=DEFAULT_COUNT, placeholder="N"),
        ),
        examples=("consumeMessage -t orders", "consumeMessage -t orders -b broker-a -i 0 -o 100 -c 10 --json"),
        document='{"topic", "messages": [{"topic", "brokerName", "queueId", "queueOffset", "msgId", "offsetMsgId", "tags", "keys": [key], "properties": {name: text}, '
        '"body", "bodyBase64", "bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "commitLogOffset", "storeSize", "sysFlag", "flag", "reconsumeTimes"}], '
        '"queues": [{"brokerName", "queueId", "minOffset", "maxOffset", "read"}]}; body is null and bodyBase64 set when the bytes are not UTF-8',
        remarks=("Reads up to the offsets that the queues have at the start, and never waits.",),
    ),
)
