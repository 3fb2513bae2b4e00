"""Judge what a consumer group did with a stored message. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from triomq.client.admin.documents import count_of
from triomq.client.admin.resend.message_copy import RESENT_FROM
from triomq.client.admin.times import seconds_text
from triomq.client.trace.trace_events import TraceEvent
from triomq.remoting.protocol.bodies.groups import RETRY_DELAYS_MS
from triomq.remoting.protocol.bodies.heartbeat import (
    BROADCASTING,
    CONSUME_POP,
    TAG,
    SubscriptionData,
)
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message_properties import (
    DELAY,
    FAILURE,
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from triomq.remoting.protocol.names import DLQ_PREFIX, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage

DELAYING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)
"""where brokers keep messages until their time has come"""


@attrs.frozen
class StoredCopy:
    """A record in a broker's log."""

    broker: str
    """name of the broker"""
    message: StoredMessage

    @property
    def topic(self) -> str:
        """Return the topic for which it is meant: that of a message that waits is a property."""
        message = self.message
        waits = self.delayed or message.topic == HALF_TOPIC
        return message.properties.get(REAL_TOPIC, message.topic) if waits else message.topic

    @property
    def delayed(self) -> bool:
        """Return whether it is in a queue of delayed messages, where no group reads it."""
        return self.message.topic in DELAYING_TOPICS

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.message.topic, self.broker, self.message.queue_id)

    @property
    def place(self) -> str:
        """Return broker, queue and offset as a text."""
        message = self.message
        return f"{self.broker}, queue {message.queue_id}, offset {message.queue_offset}"


def due_ms(copy: StoredCopy) -> int | None:
    """Return when a delayed record is delivered: ms since 1970, None if it does not say it.

    The times of delay levels are the defaults; a broker's ``messageDelayLevel`` may differ.
    """
    properties = copy.message.properties
    for name in (TIMER_OUT_MS, TIMER_DELIVER_MS):
        if (text := properties.get(name, "")).isdecimal():
            return int(text)
    level = properties.get(DELAY, "")
    if level.isdecimal() and 0 < int(level) <= len(RETRY_DELAYS_MS):
        return copy.message.store_timestamp + RETRY_DELAYS_MS[int(level) - 1]
    return None


class ConsumptionState(enum.Enum):
    """What a group did with a message."""

    CONSUMED = "consumed"
    PASSED = "passed"
    """its offset is behind the message; whether its filter selected the message is unknown"""
    WAITING = "waiting"
    FILTERED = "filtered"
    NOT_SUBSCRIBED = "notSubscribed"
    BROADCAST = "broadcast"
    RETRYING = "retrying"
    DEAD = "dead"
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class GroupReading:
    """What was read about a group and a message."""

    group: str
    offsets: Mapping[MessageQueue, ConsumeOffset]
    """the group's offsets at the brokers that answered"""
    failures: Mapping[str, str] = attrs.field(factory=dict)
    """brokers whose offsets are unknown → reason"""
    known: bool = True
    """whether any broker has settings, offsets or members of the group"""
    members: int = 0
    consume_type: str | None = None
    message_model: str | None = None
    subscriptions: Mapping[str, SubscriptionData] = attrs.field(factory=dict)
    """topic → subscription of the members"""
    matches: bool | None = None
    """whether the subscription selects the message, None if that is unknown"""
    disabled_at: Sequence[str] = ()
    """brokers at which the group may not consume"""
    owners: Sequence[str] | None = None
    """members that have the message's queue, None if they were not asked"""
    copies: Sequence[StoredCopy] = ()
    """copies for the group's retry topics and its dead-letter topic"""
    events: Sequence[TraceEvent] = ()
    """traces of the group's handlers for this message, in order of time"""


@attrs.frozen(kw_only=True)
class GroupOutcome:
    """The judgement about a group and a message."""

    group: str
    state: ConsumptionState
    sentence: str
    """what happened, and why"""
    fix: str = ""
    lag: int | None = None
    """number of messages that the group consumes before this one"""
    consumed_ms: int | None = None
    """end of the handler that succeeded; only traces tell it"""
    retries: int = 0
    """number of times that the message came back to the group"""
    due_ms: int | None = None
    """when the next retry is delivered"""
    dead_letter: StoredCopy | None = None


def selects(subscription: SubscriptionData, tag: str | None) -> bool | None:
    """Return whether a subscription selects a tag, None if only a broker can tell."""
    if subscription.class_filter_mode or subscription.expression_type not in (TAG, ""):
        return None
    if subscription.sub_string in ("*", ""):
        return True
    tags = subscription.tags or {part.strip() for part in subscription.sub_string.split("||")}
    return tag in tags


def outcome(copy: StoredCopy, reading: GroupReading, now_ms: int) -> GroupOutcome:
    """Return what a group did with a message of its topic, and why not if it did not consume it."""
    group, own = reading.group, _copies_of(copy, reading)
    dead = next((one for one in own if one.topic.startswith(DLQ_PREFIX)), None)
    retries = max((one.message.reconsume_times for one in own), default=0)
    if dead is not None:
        return _given_up(dead, own, group)
    if reading.message_model == BROADCASTING:
        return GroupOutcome(
            group=group,
            state=ConsumptionState.BROADCAST,
            sentence=(
                f"is broadcasting to {count_of(reading.members, 'member')}: each keeps its own"
                " offsets, and brokers do not know them"
            ),
            fix="look at traces, or at the members themselves",
            consumed_ms=_success_ms(reading.events),
        )
    if own:
        return _retried(own[0], reading, retries, now_ms)
    return _first_delivery(copy, reading)


def _copies_of(copy: StoredCopy, reading: GroupReading) -> list[StoredCopy]:
    """Return the group's copies of a record, newest first.

    A producer that repeats a send stores two records with one id: the origin tells them apart.
    """
    message = copy.message
    ids = (None, message.offset_message_id, message.message_id)
    return sorted(
        (
            one
            for one in reading.copies
            if one.message.properties.get(ORIGIN_MESSAGE_ID) in ids and one.message is not message
        ),
        key=lambda one: (one.message.reconsume_times, one.message.store_timestamp, not one.delayed),
        reverse=True,
    )


def _given_up(dead: StoredCopy, own: Sequence[StoredCopy], group: str) -> GroupOutcome:
    """Judge by a dead letter, and by what was sent again to the group since."""
    failed = dead.message.reconsume_times
    sentence = (
        f"gave it up after {count_of(failed, 'failed delivery')}, at"
        f" {seconds_text(dead.message.store_timestamp)}: it is in {dead.message.topic}"
        f" ({dead.place})"
    )
    if reason := dead.message.properties.get(FAILURE):
        sentence += f", because of {reason}"
    again = [
        one.message.store_timestamp
        for one in own
        if RESENT_FROM in one.message.properties
        and one.message.store_timestamp >= dead.message.store_timestamp
    ]
    if again:
        sentence += f"; sent again to the group at {seconds_text(max(again))}"
    resend = (
        f"mend the handler, then `mqadmin dlq resend {group} --id"
        f" {dead.message.offset_message_id} --only-group`"
    )
    return GroupOutcome(
        group=group,
        state=ConsumptionState.DEAD,
        sentence=sentence,
        fix="" if again else resend,
        retries=max(0, failed - 1),
        dead_letter=dead,
    )


def _retried(newest: StoredCopy, reading: GroupReading, retries: int, now_ms: int) -> GroupOutcome:
    """Judge by the newest copy in the group's retry topics."""
    group, since = reading.group, seconds_text(newest.message.store_timestamp)
    reason = newest.message.properties.get(FAILURE)
    because = f", because of {reason}" if reason else ""
    if newest.delayed:
        due = due_ms(newest)
        late = due is not None and due < now_ms
        when = "" if due is None else f", {'was due' if late else 'due'} at {seconds_text(due)}"
        return GroupOutcome(
            group=group,
            state=ConsumptionState.RETRYING,
            sentence=f"gave it back at {since}{because}: retry {retries} waits for its time{when}",
            retries=retries,
            due_ms=due,
        )
    offset, failure = _offset(newest, reading)
    if failure:
        return _unknown(reading, newest.broker, failure, retries)
    position = newest.message.queue_offset
    if offset is not None and offset > position:
        return GroupOutcome(
            group=group,
            state=ConsumptionState.CONSUMED,
            sentence=f"consumed it at retry {retries}{_when(reading.events)}",
            retries=retries,
            consumed_ms=_success_ms(reading.events),
        )
    lag = position - (offset or 0)
    why, fix = _obstacle(reading, newest.broker)
    return GroupOutcome(
        group=group,
        state=ConsumptionState.RETRYING,
        sentence=(
            f"gave it back{because}: retry {retries} is in {newest.message.topic} since {since},"
            f" {_ahead(lag)}{why}"
        ),
        fix=fix,
        lag=lag,
        retries=retries,
    )


def _first_delivery(copy: StoredCopy, reading: GroupReading) -> GroupOutcome:
    """Judge by the group's offset in the message's own queue."""
    group, topic, position = reading.group, copy.message.topic, copy.message.queue_offset
    offset, failure = _offset(copy, reading)
    if failure:
        return _unknown(reading, copy.broker, failure, 0)
    done_ms = _success_ms(reading.events)
    passed = offset is not None and offset > position
    subscription = reading.subscriptions.get(topic)
    if reading.matches is False and subscription is not None and done_ms is None:
        return GroupOutcome(
            group=group,
            state=ConsumptionState.FILTERED,
            sentence=(
                f"does not get it: the subscription {subscription.sub_string!r}"
                f" ({subscription.expression_type}) does not select"
                f" {_tag(copy.message.tag, subscription)}"
            ),
            fix="change the subscription of all members, or the tag at the producer",
        )
    if passed or done_ms is not None:
        return _passed(reading, done_ms)
    if reading.members and subscription is None:
        return GroupOutcome(
            group=group,
            state=ConsumptionState.NOT_SUBSCRIBED,
            sentence=(
                f"{count_of(reading.members, 'member')} online, and none subscribes to {topic}"
            ),
            fix=f"subscribe to {topic}, or delete the group's offsets if it is not wanted any more",
            lag=None if offset is None else position - offset,
        )
    lag = None if offset is None else position - offset
    why, fix = _obstacle(reading, copy.broker)
    return GroupOutcome(
        group=group,
        state=ConsumptionState.WAITING,
        sentence=(
            f"has no offset in this queue yet{why}"
            if lag is None
            else f"has not consumed it yet, {_ahead(lag)}{why}"
        ),
        fix=fix,
        lag=lag,
    )


def _passed(reading: GroupReading, done_ms: int | None) -> GroupOutcome:
    """Return the outcome of a group whose offset is behind the message, or that traced it."""
    if done_ms is None and reading.matches is None:
        state = ConsumptionState.PASSED
        sentence = (
            "its offset is behind it: it was consumed, or the filter of that time left it out (no"
            " member is online to ask for the filter)"
            if not reading.members
            else "its offset is behind it, but no member subscribes to the topic any more"
        )
    elif done_ms is None and reading.consume_type == CONSUME_POP:
        state = ConsumptionState.CONSUMED
        sentence = "popped it, and did not give it back so far"
    else:
        state, sentence = ConsumptionState.CONSUMED, f"consumed it{_when(reading.events)}"
    return GroupOutcome(group=reading.group, state=state, sentence=sentence, consumed_ms=done_ms)


def _offset(copy: StoredCopy, reading: GroupReading) -> tuple[int | None, str]:
    """Return the group's offset in the queue of a record, or why it is unknown."""
    if (known := reading.offsets.get(copy.queue)) is not None:
        return known.consumer_offset, ""
    return None, reading.failures.get(copy.broker, "")


def _unknown(reading: GroupReading, broker: str, failure: str, retries: int) -> GroupOutcome:
    return GroupOutcome(
        group=reading.group,
        state=ConsumptionState.UNKNOWN,
        sentence=f"is unknown: {broker} did not tell its offset: {failure}",
        fix=f"see whether broker {broker} runs, and repeat the command",
        retries=retries,
    )


def _obstacle(reading: GroupReading, broker: str) -> tuple[str, str]:
    """Return why a group has not come to a record, and what to do."""
    group = reading.group
    if broker in reading.disabled_at:
        return (
            f"; the group may not consume at {broker} (consumeEnable=false)",
            f"`mqadmin group update -g {group} -s true` at that broker",
        )
    if not reading.members:
        return "; no member is online", "start a consumer of the group"
    if reading.owners is not None and not reading.owners:
        return (
            "; no member has this queue",
            f"`mqadmin group why {group}` tells the reason; a rebalance takes up to 20 s",
        )
    owner = "" if reading.owners is None else f"; {', '.join(reading.owners)} has this queue"
    return owner, f"`mqadmin group why {group}` tells what holds the group back"


def _success_ms(events: Sequence[TraceEvent]) -> int | None:
    """Return when the last handler that succeeded ended."""
    ends = [event.timestamp + (event.cost_ms or 0) for event in events if event.success]
    return max(ends, default=None)


def _when(events: Sequence[TraceEvent]) -> str:
    done_ms = _success_ms(events)
    return "" if done_ms is None else f" at {seconds_text(done_ms)}"


def _tag(tag: str | None, subscription: SubscriptionData) -> str:
    if subscription.expression_type not in (TAG, ""):
        return "its properties"
    return "a message without tag" if tag is None else f"tag {tag!r}"


def _ahead(lag: int) -> str:
    if lag <= 0:
        return "it is the next message"
    return f"{lag} message{'s are' if lag != 1 else ' is'} in front of it"
