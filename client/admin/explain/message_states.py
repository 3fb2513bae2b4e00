"""Judge where a message is, and say it in sentences. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from triomq.client.admin.explain.outcomes import StoredCopy, due_ms
from triomq.client.admin.times import seconds_text
from triomq.remoting.protocol.bodies.route import PERM_READ
from triomq.remoting.protocol.message_properties import (
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TRANSACTION_CHECK_TIMES,
)
from triomq.remoting.protocol.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX

LATE_MS = 60_000
"""a timed message that is due for so long and not in its topic will not come any more"""


class MessageState(enum.Enum):
    """Where a message is."""

    STORED = "stored"
    EXPIRED = "expired"
    """its record still exists, but its queue begins behind it"""
    TIMED = "timed"
    OVERDUE = "overdue"
    PREPARED = "prepared"
    ROLLED_BACK = "rolledBack"


@attrs.frozen(kw_only=True)
class MessageFacts:
    """What was read about a record, apart from groups."""

    copy: StoredCopy
    queue_min: int | None = None
    """first offset of its queue, None if it is unknown"""
    transaction_offset: int | None = None
    """of a prepared message: how far its broker has settled prepared messages"""
    permission: int | None = None
    """of the topic at the broker, as the route has it"""
    waited: StoredCopy | None = None
    """of a delivered message: its record while it waited for its time, or for its transaction"""
    same_id: int = 1
    """number of records with its id in this topic"""


def message_state(facts: MessageFacts, now_ms: int) -> MessageState:
    """Return where the message is."""
    copy = facts.copy
    position = copy.message.queue_offset
    if copy.message.topic == HALF_TOPIC:
        settled = facts.transaction_offset is not None and facts.transaction_offset > position
        return MessageState.ROLLED_BACK if settled else MessageState.PREPARED
    if copy.delayed:
        due = due_ms(copy)
        late = due is not None and due < now_ms - LATE_MS
        return MessageState.OVERDUE if late else MessageState.TIMED
    if facts.queue_min is not None and facts.queue_min > position:
        return MessageState.EXPIRED
    return MessageState.STORED


def sentences(facts: MessageFacts, now_ms: int) -> list[str]:
    """Return where the message is, and what is odd about it."""
    copy, message = facts.copy, facts.copy.message
    stored = seconds_text(message.store_timestamp)
    real = message.properties.get(REAL_TOPIC, message.topic)
    match message_state(facts, now_ms):
        case MessageState.PREPARED:
            checks = message.properties.get(TRANSACTION_CHECK_TIMES, "0")
            return [
                (
                    f"It is prepared for topic {real} since {stored}, at {copy.place} of prepared"
                    " messages: its transaction is open, or ended a moment ago."
                ),
                f"The broker asked its producer {checks} times how it ended.",
            ]
        case MessageState.ROLLED_BACK:
            return [
                (
                    f"It was prepared for topic {real} at {stored}, and its transaction was rolled"
                    " back, or its broker gave up to ask how it ended: no group gets it."
                )
            ]
        case MessageState.TIMED:
            due = due_ms(copy)
            when = "" if due is None else f", until {seconds_text(due)}"
            return [
                (
                    f"It waits for its time{when}: stored at {stored} for topic {real}, by broker"
                    f" {copy.broker}; no group gets it before."
                )
            ]
        case MessageState.OVERDUE:
            return [
                (
                    f"It waited for {seconds_text(due_ms(copy) or 0)} and did not get to topic"
                    f" {real}: it was recalled, or broker {copy.broker} delivers late or cannot"
                    " deliver it (see its log)."
                )
            ]
        case MessageState.EXPIRED:
            found = [
                (
                    f"It was stored at {stored} in {copy.place} of topic {message.topic}, and has"
                    f" expired: the queue begins at offset {facts.queue_min}, so no group gets it"
                    " any more."
                )
            ]
        case _:
            found = [f"It is stored in topic {message.topic}: {copy.place}, since {stored}."]
    return found + _oddities(facts)


def _oddities(facts: MessageFacts) -> list[str]:
    message, found = facts.copy.message, []
    origin = message.properties.get(ORIGIN_MESSAGE_ID)
    source = message.properties.get(RETRY_TOPIC, "another topic")
    if message.topic.startswith(DLQ_PREFIX):
        found.append(
            f"It is a dead letter of group {message.topic.removeprefix(DLQ_PREFIX)}, given up at"
            f" retry {message.reconsume_times}; the original was {origin} in {source}."
        )
    elif message.topic.startswith(RETRY_PREFIX):
        found.append(
            f"It is retry {message.reconsume_times} of {origin} in {source}, for group"
            f" {message.topic.removeprefix(RETRY_PREFIX)}."
        )
    if facts.waited is not None:
        how = (
            "prepared in a transaction, which was committed"
            if facts.waited.message.topic == HALF_TOPIC
            else "timed"
        )
        found.append(f"It was {how}: sent at {seconds_text(facts.waited.message.store_timestamp)}.")
    if facts.same_id > 1:
        found.append(
            f"{facts.same_id} records have its id: the producer repeated the send, and groups get"
            " it as often."
        )
    if facts.permission is not None and not facts.permission & PERM_READ:
        found.append(
            f"The topic cannot be read at {facts.copy.broker} (permission {facts.permission}):"
            " `mqadmin topic permission` changes it."
        )
    return found


def none_wants_it(groups: Sequence[str], topic: str) -> list[str]:
    """Return a sentence for a topic without groups."""
    return [] if groups else [f"No group consumes topic {topic}, or did so before."]
