"""Commands about dead letters: dlqList, dlqShow, dlqResend, dlqPurge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triomq.client.admin.answers import Answers
from triomq.client.admin.arguments import Option, Values, filled, whole
from triomq.client.admin.documents import broker_message_document
from triomq.client.admin.errors import MessageNotFound
from triomq.client.admin.known_groups import check_group
from triomq.client.admin.message_preview import preview
from triomq.client.admin.resend.message_copy import origin_id, origin_topic
from triomq.client.admin.resend.searching import search
from triomq.client.admin.resend.selection import EXAMINED_MAX, SelectedMessages
from triomq.client.admin.times import milliseconds_text
from triomq.client.core.errors import RouteNotFound
from triomq.client.mqadmin.core.command import AdminCommand, Effect
from triomq.client.mqadmin.core.resend_command import (
    FILTERS,
    SENDING,
    search_notes,
    selection_of,
    send_found,
    sending_ends_at,
)
from triomq.client.mqadmin.core.result import Result, answered, table_of
from triomq.remoting.protocol.message_properties import FAILURE
from triomq.remoting.protocol.names import DLQ_PREFIX, dead_letter_topic

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin
    from triomq.remoting.protocol.bodies.offsets import TopicStats
    from triomq.remoting.protocol.record import StoredMessage

SHOWN_DEFAULT = 64


def group_name(text: str) -> str:
    """Read the name of a group; that of its topic of dead letters is understood, too."""
    if not (name := filled(text).removeprefix(DLQ_PREFIX)):
        raise ValueError(f"it has no name after {DLQ_PREFIX}")
    return name


DEAD_GROUPS = "`mqadmin dlq list` shows those with dead letters"


# --- dlqList


async def dlq_list(admin: Admin, options: Values) -> Result:
    group = options.value("group")
    topics = [topic for topic in await admin.topics() if topic.startswith(DLQ_PREFIX)]
    if group is not None:
        topics = [topic for topic in topics if topic == dead_letter_topic(group)]
    failures: dict[str, str] = {}
    asked: set[str] = set()
    if not topics and group is not None:
        known = await check_group(admin, group, DEAD_GROUPS)
        failures.update(known.reasons())
        asked.update(known.values)

    async def row(topic: str) -> dict[str, object]:
        stats = await admin.topic_stats(topic)
        failures.update(stats.reasons())
        asked.update(stats.values, stats.failures)
        oldest = await oldest_ms(admin, stats)
        failures.update(oldest.reasons())
        return list_row(topic, stats, [found for found in oldest.values.values() if found])

    answers = await admin.for_each(topics, row)
    failures.update(answers.reasons())
    asked.update(failures)
    rows = [answers.values[topic] for topic in topics if topic in answers.values]
    table = table_of(
        rows,
        {
            "Group": "group",
            "Topic": "topic",
            ">Messages": "messages",
            "Oldest": lambda row: milliseconds_text(row["oldestTimestamp"] or 0),
            "Newest": lambda row: milliseconds_text(row["newestTimestamp"] or 0),
            "Incomplete": lambda row: "yes" if row["incomplete"] else "",
        },
    )
    return Result(document={"groups": rows}, blocks=[table], failures=failures, asked=len(asked))


def list_row(topic: str, stats: Answers[TopicStats], oldest: list[int]) -> dict[str, object]:
    """Return what lies in a topic of dead letters at all brokers that answered."""
    holding = [
        offsets
        for table in stats.values.values()
        for offsets in table.offset_table.values()
        if offsets.max_offset > offsets.min_offset
    ]
    newest = max((offsets.last_update_timestamp for offsets in holding), default=0)
    known = bool(stats.values)
    return {
        "group": topic.removeprefix(DLQ_PREFIX),
        "topic": topic,
        "messages": sum(table.message_count for table in stats.values.values()) if known else None,
        "oldestTimestamp": min(oldest, default=None),
        "newestTimestamp": newest or None,
        "incomplete": bool(stats.failures),
    }


async def oldest_ms(admin: Admin, stats: Answers[TopicStats]) -> Answers[int | None]:
    """Return the store time of the oldest message, by broker name; None: it has none."""

    async def of_broker(name: str) -> int | None:
        times = []
        for queue, offsets in stats.values[name].offset_table.items():
            if offsets.max_offset > offsets.min_offset:
                found = await admin.read(
                    queue, offsets.min_offset, count=1, end_offset=offsets.max_offset
                )
                times += [message.store_timestamp for message in found]
        return min(times, default=None)

    return await admin.for_each(stats.values, of_broker)


# --- dlqShow, dlqResend


async def find_letters(admin: Admin, options: Values) -> tuple[str, SelectedMessages]:
    """Return the group, and those of its dead letters that the options choose.

    Raises: SubjectMissing for an unknown group, MessageNotFound for an unknown id or key.
    """
    group, selection = options.value("group"), selection_of(options)
    topic = dead_letter_topic(group)
    try:
        found = await search(admin, topic, selection, options.maybe_text("brokerName"))
    except RouteNotFound:
        known = await check_group(admin, group, DEAD_GROUPS)
        found = SelectedMessages(
            messages=[],
            examined=0,
            cut_ms=None,
            go_on_ms=None,
            failures=known.reasons(),
            asked=known.asked,
        )
    complete = not found.failures and found.cut_ms is None
    if (named := selection.named) and not found.messages and complete:
        raise MessageNotFound(named, topic)
    return group, found


async def dlq_show(admin: Admin, options: Values) -> Result:
    group, found = await find_letters(admin, options)
    documents = [letter_document(broker, message) for broker, message in found.messages]
    lines = [
        {"document": document, "body": preview(message)}
        for document, (_, message) in zip(documents, found.messages, strict=True)
    ]
    table = table_of(
        lines,
        {
            "Store Time": lambda line: milliseconds_text(line["document"]["storeTimestamp"]),
            "MsgId": lambda line: line["document"]["msgId"],
            "Origin Topic": lambda line: line["document"]["originTopic"],
            "Origin MsgId": lambda line: line["document"]["originMessageId"],
            "Tags": lambda line: line["document"]["tags"],
            "Keys": lambda line: " ".join(line["document"]["keys"]),
            ">Retries": lambda line: line["document"]["reconsumeTimes"],
            "Failure": lambda line: line["document"]["properties"].get(FAILURE, ""),
            "Broker Name": lambda line: line["document"]["brokerName"],
            "Body": "body",
        },
    )
    document = {
        "group": group,
        "topic": dead_letter_topic(group),
        "messages": documents,
        "looked": found.examined,
        "goOnTimestamp": found.go_on_ms,
    }
    return Result(
        document=document,
        blocks=[table],
        failures=found.failures,
        asked=found.asked,
        notes=search_notes(found),
    )


def letter_document(broker: str, message: StoredMessage) -> Mapping[str, object]:
    """Return a dead letter as ``--json`` prints it."""
    return {
        **broker_message_document(message, broker),
        "originTopic": origin_topic(message),
        "originMessageId": origin_id(message),
    }


async def dlq_resend(admin: Admin, options: Values) -> Result:
    ends_at = sending_ends_at(options)
    group, found = await find_letters(admin, options)
    about = {"group": group, "topic": dead_letter_topic(group)}
    only_group = group if options.flag("only-group") else ""
    topic = options.maybe_text("topic")
    return await send_found(
        admin, options, found, about, ends_at=ends_at, topic=topic, group=only_group
    )


# --- dlqPurge


async def dlq_purge(admin: Admin, options: Values) -> Result:
    group = options.value("group")
    topic = dead_letter_topic(group)
    document: dict[str, object] = {"group": group, "topic": topic, "messages": 0, "deletedAt": []}
    try:
        stats = await admin.topic_stats(topic)
    except RouteNotFound:
        known = await check_group(admin, group, DEAD_GROUPS)
        line = f"group {group} has no dead letters: nothing was deleted"
        return answered(known, document, [line])
    count = sum(table.message_count for table in stats.values.values()) if stats.values else None
    answers = await admin.delete_topic(topic)
    document |= {"messages": count, "deletedAt": list(answers.some())}
    number = "an unknown number of" if count is None else count
    line = f"deleted topic {topic} with {number} dead letters"
    return answered(answers, document, [line])


GROUP = Option("GROUP", "the consumer group", group_name, required=True)
COMMANDS = (
    AdminCommand("dlqList", dlq_list).with_options(
        Option("GROUP", "only this group (without it: all with a dead-letter topic)", group_name)
    ),
    AdminCommand("dlqShow", dlq_show).with_options(
        GROUP,
        *FILTERS,
        Option(
            "--limit N",
            "maximum number of messages, oldest first",
            whole(1, EXAMINED_MAX),
            default=SHOWN_DEFAULT,
        ),
    ),
    AdminCommand(
        "dlqResend", dlq_resend, effect=Effect.SENDS, copies="a copy of each of these dead letters"
    ).with_options(
        GROUP,
        *FILTERS,
        Option("-t, --topic TOPIC", "where the copies go (default: where each came from)"),
        Option(
            "--only-group",
            "to the group's retry topic, so that no other group of the topic gets the copies",
        ),
        *SENDING,
    ),
    AdminCommand(
        "dlqPurge",
        dlq_purge,
        effect=Effect.DESTROYS,
        loss="all dead letters of the group, with the queues of their topic",
    ).with_options(GROUP),
)
