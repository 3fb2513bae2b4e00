"""Commands that find messages: queryMsgByKey, queryMsgById, queryMsgByUniqueKey."""

from __future__ import annotations

import base64
import codecs
import ipaddress
import json
from collections.abc import Mapping
from typing import Any

from triomq.client.admin import messages
from triomq.client.admin.admin import Admin
from triomq.client.admin.arguments import Option, UsageError, Values, filled, whole
from triomq.client.admin.calls import read_body
from triomq.client.admin.command import Column, Command, Result, Table
from triomq.client.admin.commands.message import body_text, message_document
from triomq.client.admin.commands.topic import ROUTE_CLUSTER, TOPIC
from triomq.client.admin.errors import MessageNotFound
from triomq.client.admin.times import instant_ms, milliseconds_text
from triomq.remoting.address import format_address
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import ConsumeDirectlyHeader

UNIQUE_COUNT_MAX = 32
V4_ID_LENGTH, V6_ID_LENGTH = 32, 56
"""hex digits of an offset message id: address, port as 4 bytes, commit-log offset as 8"""


def parse_offset_id(text: str) -> tuple[str, int] | None:
    """Return (broker address, commit-log offset) of an offset message id, None for another kind of id."""
    if len(text) not in (V4_ID_LENGTH, V6_ID_LENGTH):
        return None
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    host = ipaddress.ip_address(raw[:-12])
    port = int.from_bytes(raw[-12:-8], "big")
    if not 0 < port < 65536:
        return None
    return format_address(str(host), port), int.from_bytes(raw[-8:], "big")


LABELS: Mapping[str, str] = {
    "offsetMsgId": "OffsetID",
    "topic": "Topic",
    "tags": "Tags",
    "keys": "Keys",
    "queueId": "Queue ID",
    "queueOffset": "Queue Offset",
    "commitLogOffset": "CommitLog Offset",
    "reconsumeTimes": "Reconsume Times",
    "bornTimestamp": "Born Timestamp",
    "storeTimestamp": "Store Timestamp",
    "bornHost": "Born Host",
    "storeHost": "Store Host",
    "sysFlag": "System Flag",
    "properties": "Properties",
}


def message_lines(document: dict[str, Any]) -> list[str]:
    """Return a message as labelled lines."""
    lines = []
    for key, label in LABELS.items():
        value = document[key]
        if key.endswith("Timestamp"):
            value = milliseconds_text(value)
        elif key == "keys":
            value = " ".join(value)
        elif key == "properties":
            value = json.dumps(value, ensure_ascii=False, sort_keys=True)
        lines.append(f"{label + ':':<20} {'' if value is None else value}".rstrip())
    lines.append(f"{'Body:':<20} {body_text(document)}")
    if (consumed := document.get("consumed")) is not None:
        lines.append(f"{'Consumed by:':<20} {consumed['clientId']}: {consumed['consumeResult']} in {consumed['spentTimeMills']} ms {consumed['remark'] or ''}".rstrip())
    return lines


def charset(text: str) -> str:
    """Read the name of a character set."""
    try:
        return codecs.lookup(text.strip()).name
    except LookupError:
        raise ValueError("no such character set; use for instance utf-8, gbk or latin-1") from None


def _with_charset(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the message with its body read in another character set; what does not fit is shown as U+FFFD."""
    body = document["body"].encode() if document["body"] is not None else base64.b64decode(document["bodyBase64"])
    return {**document, "body": body.decode(name, "replace"), "bodyBase64": None}


def _check_client(options: Values) -> None:
    if ("consumerGroup" in options) != ("clientId" in options):
        raise UsageError("-g/--consumerGroup and -d/--clientId belong together: give both, or none")


async def _given_to_client(
    admin: Admin, options: Values, found: list[dict[str, Any]], failures: dict[str, str]
) -> list[dict[str, Any]]:
    """Have one client consume each message now, where that is asked for; the broker sends it, and nothing is committed.

    A broker that left the topic's route since it was asked for the message is noted among the failures, and its messages stay as they are.
    """
    if "consumerGroup" not in options:
        return found
    group, client_id = options.text("consumerGroup"), options.text("clientId")
    addresses = await admin.topic_brokers(options.text("topic"))
    done = []
    for document in found:
        broker = document["brokerName"]
        address = addresses.get(broker)
        if address is None:
            failures[broker] = f"it is not in the route of topic {options.text('topic')} any more, so it could not give its messages to {client_id}"
            done.append(document)
            continue
        header = ConsumeDirectlyHeader(group, client_id, document["offsetMsgId"], broker, document["topic"])
        answer = await admin.ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        result = read_body(ConsumeDirectlyResult, answer)
        consumed = {"clientId": client_id, "consumeResult": result.consume_result, "spentTimeMills": result.spent_ms, "remark": result.remark}
        done.append({**document, "consumed": consumed})
    return done


def _details(found: list[dict[str, Any]], failures: Mapping[str, str], asked: int) -> Result:
    blocks: list[str] = []
    for position, document in enumerate(found):
        blocks += [*([""] if position else []), *message_lines(document)]
    return Result(
        document={"messages": found, "failures": dict(failures)}, blocks=blocks, failures=failures, asked=asked
    )


async def _by_unique_key(
    admin: Admin, topic: str, message_id: str, count: int
) -> tuple[list[dict[str, Any]], Mapping[str, str], int]:
    answers = await admin.query(topic, message_id, count=UNIQUE_COUNT_MAX, unique=True)
    found = [(message, broker) for broker, stored in answers.some().items() for message in stored]
    found.sort(key=lambda pair: pair[0].store_timestamp, reverse=True)
    return [message_document(message, broker) for message, broker in found[:count]], answers.reasons(), answers.asked


async def query_by_key(admin: Admin, options: Values) -> Result:
    """Find messages by one of their keys."""
    topic, key, count = options.text("topic"), options.text("msgKey"), options.number("maxNum")
    answers = await admin.query(
        topic, key, count=count, begin_ms=options.value("beginTimestamp"), end_ms=options.value("endTimestamp")
    )
    found = [(message, broker) for broker, stored in answers.some().items() for message in stored]
    found.sort(key=lambda pair: pair[0].store_timestamp, reverse=True)
    if not found and not answers.failures:
        raise MessageNotFound(f"key {key!r}", topic)
    documents = [message_document(message, broker) for message, broker in found[:count]]
    rows = [
        [document["msgId"], document["brokerName"], str(document["queueId"]), str(document["queueOffset"])]
        for document in documents
    ]
    columns = (Column("Message ID"), Column("Broker Name"), Column("QID", right=True), Column("Offset", right=True))
    return Result(
        document={"messages": documents, "failures": answers.reasons()},
        blocks=[Table(columns, rows)],
        failures=answers.reasons(),
        asked=answers.asked,
    )


async def query_by_id(admin: Admin, options: Values) -> Result:
    """Find messages by offset id, or by the id that their producer gave them."""
    _check_client(options)
    topic = options.text("topic")
    names = {address: name for name, address in (await admin.topic_brokers(topic)).items()}
    found: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for message_id in filter(None, (part.strip() for part in options.text("msgId").split(","))):
        place = parse_offset_id(message_id)
        # A producer's id has the length of an offset id; only an address that this topic really has makes it one.
        if place is not None and place[0] in names:
            message = await admin.message_at(place[0], place[1], topic)
            documents = [message_document(message, names[place[0]])] if message is not None else []
        else:
            documents, reasons, _ = await _by_unique_key(admin, topic, message_id, 1)
            failures |= reasons
        if not documents and not failures:
            raise MessageNotFound(f"id {message_id}", topic)
        found += documents
    if "bodyFormat" in options:
        found = [_with_charset(document, options.text("bodyFormat")) for document in found]
    return _details(await _given_to_client(admin, options, found, failures), failures, len(names))


async def query_by_unique_key(admin: Admin, options: Values) -> Result:
    """Find messages by the id that their producer gave them."""
    _check_client(options)
    topic, message_id = options.text("topic"), options.text("msgId")
    found, reasons, asked = await _by_unique_key(
        admin, topic, message_id, UNIQUE_COUNT_MAX if options.flag("showAll") else 1
    )
    failures = dict(reasons)
    if not found and not failures:
        raise MessageNotFound(f"id {message_id}", topic)
    return _details(await _given_to_client(admin, options, found, failures), failures, asked)


TO_CLIENT = (
    Option("g", "consumerGroup", "with -d: have a client of this group consume the message now", filled, placeholder="GROUP"),
    Option("d", "clientId", "that client", filled, placeholder="ID"),
)
_CONSUMED = '{"messages": [as consumeMessage; with -g and -d also "consumed": {"clientId", "consumeResult", "spentTimeMills", "remark"}], "failures": {broker: reason}}'
_DOCUMENT = '{"messages": [as consumeMessage], "failures": {broker: reason}}'

COMMANDS = (
    Command(
        name="queryMsgByKey",
        group="message",
        summary="find messages by a key",
        run=query_by_key,
        options=(
            TOPIC,
            Option("k", "msgKey", "the key", filled, required=True, placeholder="KEY"),
            Option(
                "b", "beginTimestamp", "only messages stored then or later", instant_ms, default=0, placeholder="TIME"
            ),
            Option(
                "e",
                "endTimestamp",
                "only messages stored then or earlier",
                instant_ms,
                default=messages.FAR_FUTURE_MS,
                placeholder="TIME",
            ),
            Option("m", "maxNum", "how many messages at most", whole(1), default=64, placeholder="N"),
            ROUTE_CLUSTER,
        ),
        examples=("queryMsgByKey -t orders -k order-1",),
        document=_DOCUMENT,
        remarks=("Messages whose key only has the same hash are left out.",),
    ),
    Command(
        name="queryMsgById",
        group="message",
        summary="find messages by id",
        run=query_by_id,
        options=(
            TOPIC,
            Option("i", "msgId", "ids, separated by commas", filled, required=True, placeholder="IDS"),
            Option(
                "f",
                "bodyFormat",
                "character set of the body (without it: UTF-8, or base64)",
                charset,
                placeholder="CHARSET",
            ),
            *TO_CLIENT,
            ROUTE_CLUSTER,
        ),
        examples=("queryMsgById -t orders -i 7F00000100002A9F0000000000000000",),
        document=_CONSUMED,
        remarks=("The body is printed, not written to a file. The options `-s` and `-u` (send it again) are not offered: use consumeMessage and sendMessage.",),
    ),
    Command(
        name="queryMsgByUniqueKey",
        group="message",
        summary="find messages by the id that their producer gave them",
        run=query_by_unique_key,
        options=(
            Option("i", "msgId", "the id", filled, required=True, placeholder="ID"),
            TOPIC,
            Option("a", "showAll", "all messages with this id (up to 32), not only the newest", None),
            *TO_CLIENT,
            ROUTE_CLUSTER,
        ),
        examples=("queryMsgByUniqueKey -t orders -i 7F0000010AC018B4AAC2514F3A9B0000",),
        document=_CONSUMED,
    ),
)
