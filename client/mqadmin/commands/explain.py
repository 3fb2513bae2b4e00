"""The command messageExplain: where a message is, and what each group did with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triomq.client.admin.answers import read_body
from triomq.client.admin.arguments import Option, Values, whole
from triomq.client.admin.errors import MessageNowhere
from triomq.client.admin.explain.group_readings import group_readings, groups_of
from triomq.client.admin.explain.key_search import TOPICS_MAX
from triomq.client.admin.explain.message_places import MessagePlaces, find_places
from triomq.client.admin.explain.message_states import (
    MessageFacts,
    message_state,
    none_wants_it,
    sentences,
)
from triomq.client.admin.explain.outcomes import GroupOutcome, StoredCopy, due_ms, outcome
from triomq.client.admin.known_groups import unknown_group
from triomq.client.admin.times import now_ms, seconds_text
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.core.command import AdminCommand
from triomq.client.mqadmin.core.message_text import trace_document
from triomq.client.mqadmin.core.output import tell_progress
from triomq.client.mqadmin.core.result import Result, Table, table_of
from triomq.client.trace.trace_events import TraceEvent
from triomq.remoting.protocol.bodies.offsets import ConsumeStats
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.headers.admin import ConsumeStatsHeader
from triomq.remoting.protocol.message_properties import UNIQ_KEY
from triomq.remoting.protocol.names import HALF_TOPIC, TRACE_TOPIC, TRANSACTION_GROUP

if TYPE_CHECKING:
    from triomq.client.admin.admin import Admin


SEARCH_SHARE = 0.5
"""of ``--timeout`` for the search in topics; the rest is for what groups did with the message"""


async def explain(admin: Admin, options: Values) -> Result:
    word, topic = options.text("id").strip(), options.maybe_text("topic")
    seconds = options.number("timeout") * SEARCH_SHARE
    places = await find_places(admin, word, topic, seconds=seconds, tell=tell_progress)
    failures = dict(places.failures)
    chosen = _chosen(places)[: options.number("maxNum")]
    if not chosen and not failures and not places.unsearched:
        raise MessageNowhere(word, places.searched, topic)
    documents: list[dict[str, object]] = []
    blocks: list[Table | str] = []
    for copy in chosen:
        document, lines = await _explained(
            admin, copy, places, options.maybe_text("consumerGroup"), failures
        )
        documents.append(document)
        blocks += [*([""] if blocks else []), *lines]
    return Result(
        document={"query": word, "messages": documents},
        blocks=blocks or [f"No broker that answered has a message {word!r}."],
        failures=failures | places.failures,
        asked=len(places.brokers.keys() | failures.keys()) + places.silent_masters,
        partial=places.unsearched > 0,
        notes=[_unsearched_note(places.unsearched)] if places.unsearched else [],
    )


def _unsearched_note(count: int) -> str:
    return (
        f"{count} topics were not searched: at most {TOPICS_MAX} are, within half of --timeout;"
        " name the topic with -t"
    )


def _chosen(places: MessagePlaces) -> list[StoredCopy]:
    """Return the records to explain: those in topics, and those that only wait to get there."""
    arrived = {copy.message.message_id for copy in places.stored}
    chosen = list(places.stored)
    for copy in places.waiting:
        if copy.message.message_id not in arrived:
            arrived.add(copy.message.message_id)
            chosen.append(copy)
    return chosen


async def _explained(
    admin: Admin,
    copy: StoredCopy,
    places: MessagePlaces,
    group: str | None,
    failures: dict[str, str],
) -> tuple[dict[str, object], list[Table | str]]:
    """Return the document and the text of one record; add the brokers that did not answer."""
    message, now = copy.message, now_ms()
    facts = await _message_facts(admin, copy, places, failures)
    waits = copy.delayed or message.topic == HALF_TOPIC
    groups: list[str] = []
    events: list[TraceEvent] = []
    outcomes: list[GroupOutcome] = []
    unique_id = message.properties.get(UNIQ_KEY)
    if TRACE_TOPIC in await admin.topics() and unique_id is not None:
        history = await admin.message_trace(unique_id)
        failures |= history.answers.reasons()
        events = history.events
    if not waits:
        groups, silent = await groups_of(admin, message.topic)
        failures |= silent
        if group is not None:
            groups = [group]
        readings, silent = await group_readings(admin, copy, groups, places.brokers, events)
        failures |= silent
        if group is not None and not failures and not readings[0].known:
            raise unknown_group(group)
        outcomes = [outcome(copy, reading, now) for reading in readings]
    lines = sentences(facts, now)
    if not waits:
        lines += none_wants_it(groups, message.topic)
    rows = [_outcome_document(one) for one in outcomes]
    document = {
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "topic": copy.topic,
        "storedIn": message.topic,
        "brokerName": copy.broker,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "tags": message.tag,
        "keys": list(message.keys),
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "state": message_state(facts, now).value,
        "dueTimestamp": due_ms(copy) if copy.delayed else None,
        "sentences": lines,
        "groups": rows,
        "trace": [trace_document(event) for event in events],
    }
    blocks: list[Table | str] = [f"Message {message.message_id}", *lines]
    if outcomes:
        blocks.append(
            table_of(
                rows,
                {
                    "Group": "group",
                    "State": "state",
                    ">Lag": "lag",
                    ">Retries": "retries",
                    "Consumed": lambda row: (
                        seconds_text(row["consumedTimestamp"]) if row["consumedTimestamp"] else None
                    ),
                    "What the group did, and what to do": lambda row: "; ".join(
                        filter(None, (row["sentence"], row["fix"]))
                    ),
                },
            )
        )
    if events:
        blocks += ["", *map(_trace_line, events)]
    elif not waits:
        blocks += ["", "No traces: they would tell when and by which member it was consumed."]
    return document, blocks


async def _message_facts(
    admin: Admin, copy: StoredCopy, places: MessagePlaces, failures: dict[str, str]
) -> MessageFacts:
    message = copy.message
    queue_min = permission = transaction_offset = None
    try:
        if message.topic == HALF_TOPIC:
            header = ConsumeStatsHeader(TRANSACTION_GROUP, HALF_TOPIC)
            answer = await admin.ask(
                places.brokers[copy.broker], RequestCode.GET_CONSUME_STATS, header
            )
            table = read_body(ConsumeStats, answer).offset_table
            if copy.queue in table:
                transaction_offset = table[copy.queue].consumer_offset
        elif not copy.delayed:
            route = await admin.route(message.topic)
            permission = next(
                (data.perm for data in route.queue_datas if data.broker_name == copy.broker), None
            )
            queue_min = await admin.min_offset(copy.queue)
    except TrioMQError as error:
        failures.setdefault(copy.broker, str(error))
    same = [one for one in places.stored if one.message.message_id == message.message_id]
    waited = [one for one in places.waiting if one.message.message_id == message.message_id]
    return MessageFacts(
        copy=copy,
        queue_min=queue_min,
        transaction_offset=transaction_offset,
        permission=permission,
        waited=waited[0] if waited and waited[0] is not copy else None,
        same_id=max(1, sum(one.message.topic == message.topic for one in same)),
    )


def _outcome_document(one: GroupOutcome) -> dict[str, object]:
    dead = one.dead_letter
    return {
        "group": one.group,
        "state": one.state.value,
        "lag": one.lag,
        "retries": one.retries,
        "consumedTimestamp": one.consumed_ms,
        "retryTimestamp": one.due_ms,
        "deadLetterId": None if dead is None else dead.message.offset_message_id,
        "sentence": one.sentence,
        "fix": one.fix or None,
    }


def _trace_line(event: TraceEvent) -> str:
    result = {None: "no end known", True: "success", False: "failed"}[event.success]
    cost = "" if event.cost_ms is None else f" in {event.cost_ms} ms"
    verb = {"Pub": "sent", "Sub": "handled", "EndTransaction": "ended", "Recall": "recalled"}
    state = event.state if event.kind == "EndTransaction" else result
    return (
        f"Trace: {seconds_text(event.timestamp)} {verb.get(event.kind, event.kind)} by group"
        f" {event.group}, client {event.client_host}: {state}{cost}"
    )


COMMANDS = (
    AdminCommand("messageExplain", explain).with_options(
        Option(
            "ID",
            "the message's id (of its producer, or of its place in a log), or a key",
            required=True,
        ),
        Option("-t, --topic TOPIC", "name of the topic (without it: all topics)"),
        Option(
            "-g, --consumerGroup GROUP", "only this group (without it: all groups of the topic)"
        ),
        Option("-m, --maxNum N", "maximum number of messages, newest first", whole(1), default=8),
    ),
)
