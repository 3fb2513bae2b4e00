"""Commands that find messages, and what happened to them.

queryMsgByKey, queryMsgById, queryMsgByUniqueKey, queryMsgTraceById.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, UsageError, Values, one_of_words, whole
from triomq.client.admin.documents import broker_message_document, members_of
from triomq.client.admin.errors import MessageNotFound, TraceNotFound
from triomq.client.admin.messages import FAR_FUTURE_MS, UNIQUE_COUNT_MAX, parse_offset_id
from triomq.client.admin.times import seconds_text
from triomq.client.core.errors import BrokerError, TrioMQError
from triomq.client.mqadmin.core.command import ROUTE_CLUSTER, TOPIC, AdminCommand, period
from triomq.client.mqadmin.core.message_text import (
    charset,
    in_charset,
    message_lines,
    status,
    trace_document,
)
from triomq.client.mqadmin.core.result import Document, Result, Table, answered, table_of
from triomq.remoting.protocol.bodies.running import ConsumeDirectlyResult
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.client import ConsumeDirectlyHeader
from triomq.remoting.protocol.headers.query import INDEX_OF_TAGS
from triomq.remoting.protocol.names import TRACE_TOPIC

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.client.admin.answers import Answers
    from triomq.client.trace.trace_events import TraceEvent
    from triomq.remoting.protocol.record import StoredMessage


def _check_client(options: Values) -> None:
    if ("consumerGroup" in options) != ("clientId" in options):
        raise UsageError("-g/--consumerGroup and -d/--clientId belong together: give both, or none")


async def _consumed_by_client(
    admin: Admin, options: Values, found: list[Document], failures: dict[str, str]
) -> None:
    """With -g and -d, make one client consume each message now, and add the result to it.

    The broker sends the message, and no offset is committed. A broker that does not answer, or has
    left the topic's route since it returned the message, is added to ``failures``.
    """
    if "consumerGroup" not in options:
        return
    group, client_id = options.text("consumerGroup"), options.text("clientId")
    addresses = await admin.topic_brokers(options.text("topic"))
    for document in found:
        broker = document["brokerName"]
        if (address := addresses.get(broker)) is None:
            failures[broker] = (
                f"it is not in the route of topic {options.text('topic')} any more, so its messages"
                f" were not sent to {client_id}"
            )
            continue
        header = ConsumeDirectlyHeader(
            group, client_id, document["offsetMsgId"], broker, document["topic"]
        )
        try:
            answer = await admin.ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
            result = read_body(ConsumeDirectlyResult, answer)
        except BrokerError:
            raise
        except TrioMQError as error:
            failures[broker] = str(error)
            continue
        document["consumed"] = {
            "clientId": client_id,
            **members_of(result, "consumeResult", "spentTimeMills", "remark"),
        }


def _details(found: list[dict[str, object]], failures: Mapping[str, str], asked: int) -> Result:
    blocks: list[str] = []
    for position, document in enumerate(found):
        blocks += [*([""] if position else []), *message_lines(document)]
    return Result(document={"messages": found}, blocks=blocks, failures=failures, asked=asked)


def _newest(answers: Answers[list[StoredMessage]], count: int) -> list[dict[str, object]]:
    found = [(message, broker) for broker, stored in answers.some().items() for message in stored]
    found.sort(key=lambda pair: pair[0].store_timestamp, reverse=True)
    return [broker_message_document(message, broker) for message, broker in found[:count]]


async def query_by_key(admin: Admin, options: Values) -> Result:
    topic, key, count = options.text("topic"), options.text("msgKey"), options.number("maxNum")
    answers = await admin.query(
        topic,
        key,
        count=count,
        begin_ms=options.value("beginTimestamp"),
        end_ms=options.value("endTimestamp"),
        tagged=options.value("keyType") == INDEX_OF_TAGS,
        last_key=options.maybe_text("lastKey"),
    )
    documents = _newest(answers, count)
    if not documents and not answers.failures:
        what = "tag" if options.value("keyType") == INDEX_OF_TAGS else "key"
        raise MessageNotFound(f"{what} {key!r}", topic)
    table = table_of(
        documents,
        {
            "Message ID": "msgId",
            "Broker Name": "brokerName",
            ">QID": "queueId",
            ">Offset": "queueOffset",
        },
    )
    return answered(answers, {"messages": documents}, [table])


async def query_by_id(admin: Admin, options: Values) -> Result:
    _check_client(options)
    topic = options.text("topic")
    names = {address: name for name, address in (await admin.topic_brokers(topic)).items()}
    found: list[dict[str, object]] = []
    failures: dict[str, str] = {}
    for message_id in filter(None, (part.strip() for part in options.text("msgId").split(","))):
        place = parse_offset_id(message_id)
        # A producer's id has the length of an offset id; only the address of a broker of this topic
        # tells the difference.
        if place is not None and place[0] in names:
            try:
                message = await admin.message_at(place[0], place[1], topic)
            except TrioMQError as error:
                failures[names[place[0]]] = str(error)
                continue
            documents = (
                [broker_message_document(message, names[place[0]])] if message is not None else []
            )
        else:
            answers = await admin.query(topic, message_id, count=UNIQUE_COUNT_MAX, unique=True)
            documents = _newest(answers, 1)
            failures |= answers.reasons()
        if not documents and not failures:
            raise MessageNotFound(f"id {message_id}", topic)
        found += documents
    if "bodyFormat" in options:
        found = [in_charset(document, options.text("bodyFormat")) for document in found]
    await _consumed_by_client(admin, options, found, failures)
    return _details(found, failures, len(names))


async def query_by_unique_key(admin: Admin, options: Values) -> Result:
    _check_client(options)
    topic, message_id = options.text("topic"), options.text("msgId")
    answers = await admin.query(
        topic,
        message_id,
        count=UNIQUE_COUNT_MAX,
        begin_ms=options.value("startTime"),
        end_ms=options.value("endTime"),
        unique=True,
    )
    found = _newest(answers, UNIQUE_COUNT_MAX if options.flag("showAll") else 1)
    failures = answers.reasons()
    if not found and not failures:
        raise MessageNotFound(f"id {message_id}", topic)
    await _consumed_by_client(admin, options, found, failures)
    return _details(found, failures, answers.asked)


TO_CLIENT = (
    Option(
        "-g, --consumerGroup GROUP", "with -d: make a client of this group consume the message now"
    ),
    Option("-d, --clientId ID", "the client for -g"),
)


def trace_tables(events: list[TraceEvent]) -> list[Table | str]:
    """Return a table of what the producers did, and one for each consumer group."""
    blocks: list[Table | str] = []
    several = len({event.message_id for event in events}) > 1
    for title, some in trace_sections(events):
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


def trace_sections(events: list[TraceEvent]) -> list[tuple[str, list[TraceEvent]]]:
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
    return answered(answers, document, trace_tables(events))


COMMANDS = (
    AdminCommand("queryMsgByKey", query_by_key).with_options(
        TOPIC,
        Option("-k, --msgKey KEY", "the key", required=True),
        *period("-b, --beginTimestamp", "-e, --endTimestamp", latest=FAR_FUTURE_MS),
        Option("-m, --maxNum N", "maximum number of messages", whole(1), default=64),
        Option(
            "-p, --keyType TYPE",
            "what -k is: K a key, T the tag (brokers of 5.5.0 or later, and ours)",
            one_of_words("K", INDEX_OF_TAGS),
            default="K",
        ),
        Option("-l, --lastKey KEY", "where to go on; only Java's index in RocksDB reads it"),
        ROUTE_CLUSTER,
    ),
    AdminCommand("queryMsgById", query_by_id).with_options(
        TOPIC,
        Option("-i, --msgId IDS", "ids, separated by commas", required=True),
        Option(
            "-f, --bodyFormat CHARSET",
            "character set of the body (without it: UTF-8, or base64)",
            charset,
        ),
        *TO_CLIENT,
        ROUTE_CLUSTER,
    ),
    AdminCommand("queryMsgByUniqueKey", query_by_unique_key).with_options(
        Option("-i, --msgId ID", "the id", required=True),
        TOPIC,
        Option("-a, --showAll", "all messages with this id (up to 32), not only the newest"),
        *period("-s, --startTime", "-e, --endTime", latest=FAR_FUTURE_MS),
        *TO_CLIENT,
        ROUTE_CLUSTER,
    ),
    AdminCommand("queryMsgTraceById", query_trace).with_options(
        Option("-i, --msgId ID", "the message's id, or a business key", required=True),
        Option("-t, --traceTopic TOPIC", "the topic of the traces", default=TRACE_TOPIC),
        *period("-b, --beginTimestamp", "-e, --endTimestamp", "traces", latest=FAR_FUTURE_MS),
        Option(
            "-c, --maxNum N",
            "maximum number of trace messages of each broker",
            whole(1),
            default=64,
        ),
    ),
)
