"""What a group did with a message, judged from records and offsets: each cause, and the same facts
without it.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from triomq.client.admin.explain.message_states import (
    MessageFacts,
    MessageState,
    message_state,
    sentences,
)
from triomq.client.admin.explain.outcomes import (
    ConsumptionState,
    GroupReading,
    StoredCopy,
    due_ms,
    outcome,
    selects,
)
from triomq.client.trace.trace_events import TraceEvent
from triomq.remoting.protocol.bodies.heartbeat import SubscriptionData
from triomq.remoting.protocol.bodies.offsets import ConsumeOffset
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message_properties import FAILURE, encode_properties
from triomq.remoting.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from triomq.remoting.protocol.record import StoredMessage

NOW = 1_795_779_000_000
ALL = {"orders": SubscriptionData(topic="orders")}


def copy(
    topic: str = "orders", offset: int = 5, *, retries: int = 0, at: int = NOW, **properties: str
) -> StoredCopy:
    """Return a record in queue 0 of broker-a."""
    message = StoredMessage(
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        log_offset=4096,
        size=200,
        flag=0,
        sys_flag=0,
        born_timestamp=at,
        born_host_bytes=bytes((127, 0, 0, 1, 0, 0, 0, 9)),
        store_timestamp=at,
        store_host_bytes=bytes((127, 0, 0, 1, 0, 0, 42, 159)),
        reconsume_times=retries,
        prepared_transaction_offset=0,
        body=b"x",
        body_crc=0,
        properties_bytes=encode_properties({"UNIQ_KEY": "ID", **properties}),
    )
    return StoredCopy("broker-a", message)


def reading(offset: int | None, topic: str = "orders", **facts: Any) -> GroupReading:
    """Return a group with one member that subscribes to everything."""
    known = {"group": "billing", "members": 1, "subscriptions": ALL, "matches": True, **facts}
    queue = MessageQueue(topic, "broker-a", 0)
    offsets = {} if offset is None else {queue: ConsumeOffset(100, offset)}
    return GroupReading(offsets=offsets, **known)


def state(of: GroupReading, message: StoredCopy | None = None) -> ConsumptionState:
    return outcome(message or copy(), of, NOW).state


def test_the_offset_says_whether_a_message_was_consumed() -> None:
    assert state(reading(6)) is ConsumptionState.CONSUMED
    waiting = outcome(copy(), reading(2), NOW)
    assert (waiting.state, waiting.lag) == (ConsumptionState.WAITING, 3)
    assert "3 messages are in front of it" in waiting.sentence
    assert outcome(copy(), reading(5), NOW).lag == 0
    assert state(reading(None)) is ConsumptionState.WAITING


def test_only_a_trace_tells_when_it_was_consumed() -> None:
    event = TraceEvent(
        kind="Sub",
        message_id="ID",
        group="billing",
        client_host="host",
        timestamp=NOW,
        cost_ms=20,
        success=True,
    )
    assert outcome(copy(), reading(6), NOW).consumed_ms is None
    assert outcome(copy(), reading(6, events=[event]), NOW).consumed_ms == NOW + 20
    failed = attrs.evolve(event, success=False)
    assert outcome(copy(), reading(6, events=[failed]), NOW).consumed_ms is None
    # A member commits its offset some seconds after the handler.
    assert state(reading(5, events=[event])) is ConsumptionState.CONSUMED


@pytest.mark.parametrize("offset", [2, 6])
def test_a_filter_leaves_a_message_out(offset: int) -> None:
    wanted = {"orders": SubscriptionData(topic="orders", sub_string="b", tags=frozenset("b"))}
    left_out = outcome(copy(TAGS="a"), reading(offset, subscriptions=wanted, matches=False), NOW)
    assert left_out.state is ConsumptionState.FILTERED
    assert "'b' (TAG) does not select tag 'a'" in left_out.sentence
    assert state(reading(offset, subscriptions=wanted)) is not ConsumptionState.FILTERED


def test_tags_are_compared_here_and_sql_by_the_broker() -> None:
    tags = SubscriptionData(topic="orders", sub_string="a || b", tags=frozenset("ab"))
    assert [selects(tags, tag) for tag in ("a", "b", "c", None)] == [True, True, False, False]
    assert selects(attrs.evolve(tags, tags=frozenset()), "b") is True
    assert selects(SubscriptionData(topic="orders"), None) is True
    sql = SubscriptionData(topic="orders", sub_string="n > 1", expression_type="SQL92")
    assert selects(sql, "a") is None


def test_an_offline_group_may_have_filtered_the_message() -> None:
    offline = reading(6, members=0, subscriptions={}, matches=None)
    assert state(offline) is ConsumptionState.PASSED
    assert state(attrs.evolve(offline, matches=True)) is ConsumptionState.CONSUMED


def test_why_a_message_waits() -> None:
    def why(**facts: Any) -> str:
        return outcome(copy(), reading(2, **facts), NOW).sentence

    assert "no member is online" in why(members=0, subscriptions={}, matches=None)
    assert "no member has this queue" in why(owners=[])
    assert "m1 has this queue" in why(owners=["m1"])
    assert "consumeEnable=false" in why(disabled_at=["broker-a"])
    assert "consumeEnable" not in why(disabled_at=["broker-b"])
    assert why().endswith("3 messages are in front of it")


def test_members_that_do_not_subscribe_the_topic() -> None:
    other = {"stock": SubscriptionData(topic="stock")}
    assert state(reading(2, subscriptions=other, matches=None)) is ConsumptionState.NOT_SUBSCRIBED
    assert state(reading(2)) is ConsumptionState.WAITING


def test_offsets_of_broadcasting_groups_are_unknown() -> None:
    assert state(reading(None, message_model="BROADCASTING")) is ConsumptionState.BROADCAST
    assert state(reading(6, message_model="CLUSTERING")) is ConsumptionState.CONSUMED


def test_a_silent_broker_makes_the_answer_unknown() -> None:
    silent = reading(None, failures={"broker-a": "did not answer"})
    assert state(silent) is ConsumptionState.UNKNOWN
    elsewhere = reading(None, failures={"broker-b": "did not answer"})
    assert state(elsewhere) is ConsumptionState.WAITING


def test_a_retry_waits_for_its_time() -> None:
    original = copy()
    delayed = copy(
        SCHEDULE_TOPIC,
        0,
        retries=1,
        ORIGIN_MESSAGE_ID=original.message.offset_message_id,
        REAL_TOPIC="%RETRY%billing",
        DELAY="3",
    )
    assert delayed.topic == "%RETRY%billing"
    found = outcome(original, reading(6, copies=[delayed]), NOW)
    assert (found.state, found.retries, found.due_ms) == (
        ConsumptionState.RETRYING,
        1,
        NOW + 10_000,
    )
    assert state(reading(6, copies=[])) is ConsumptionState.CONSUMED


def test_a_retry_says_why_it_was_given_back() -> None:
    original = copy()
    origin = original.message.offset_message_id
    why = {FAILURE: "ValueError: no amount", "ORIGIN_MESSAGE_ID": origin}
    delayed = copy(SCHEDULE_TOPIC, 0, retries=1, REAL_TOPIC="%RETRY%billing", DELAY="3", **why)
    came = copy("%RETRY%billing", 7, retries=2, **why)
    for again in (delayed, came):
        found = outcome(original, reading(6, copies=[again]), NOW)
        assert ", because of ValueError: no amount: retry" in found.sentence


def test_a_retry_that_came_is_consumed_when_its_own_queue_says_so() -> None:
    original = copy()
    origin = original.message.offset_message_id
    delayed = copy(SCHEDULE_TOPIC, 0, retries=1, ORIGIN_MESSAGE_ID=origin, DELAY="3")
    came = copy("%RETRY%billing", 7, retries=1, at=NOW + 1, ORIGIN_MESSAGE_ID=origin)
    queue = came.queue
    waiting = reading(6, copies=[delayed, came])
    waiting = attrs.evolve(waiting, offsets={**waiting.offsets, queue: ConsumeOffset(9, 4)})
    found = outcome(original, waiting, NOW)
    assert (found.state, found.lag) == (ConsumptionState.RETRYING, 3)
    done = attrs.evolve(waiting, offsets={queue: ConsumeOffset(9, 8)})
    found = outcome(original, done, NOW)
    assert (found.state, found.retries) == (ConsumptionState.CONSUMED, 1)


def test_a_dead_letter_ends_it_and_copies_of_another_send_do_not() -> None:
    original = copy()
    origin = original.message.offset_message_id
    dead = copy("%DLQ%billing", 0, retries=16, ORIGIN_MESSAGE_ID=origin)
    found = outcome(original, reading(6, copies=[dead]), NOW)
    assert (found.state, found.dead_letter) == (ConsumptionState.DEAD, dead)
    other = copy("%DLQ%billing", 0, retries=16, ORIGIN_MESSAGE_ID="0" * 32)
    assert state(reading(6, copies=[other])) is ConsumptionState.CONSUMED


def test_where_a_message_is() -> None:
    def where(message: StoredCopy, **facts: Any) -> MessageState:
        return message_state(MessageFacts(copy=message, **facts), NOW)

    assert where(copy(), queue_min=5) is MessageState.STORED
    assert where(copy(), queue_min=6) is MessageState.EXPIRED
    assert where(copy(), queue_min=None) is MessageState.STORED
    timed = copy(TIMER_TOPIC, TIMER_OUT_MS=str(NOW + 1), REAL_TOPIC="orders")
    assert where(timed) is MessageState.TIMED
    overdue = copy(TIMER_TOPIC, TIMER_OUT_MS=str(NOW - 60_001), REAL_TOPIC="orders")
    assert where(overdue) is MessageState.OVERDUE
    half = copy(HALF_TOPIC, 5, REAL_TOPIC="orders")
    assert where(half, transaction_offset=5) is MessageState.PREPARED
    assert where(half, transaction_offset=6) is MessageState.ROLLED_BACK
    assert where(half) is MessageState.PREPARED


def test_the_time_of_a_delayed_message() -> None:
    assert due_ms(copy(SCHEDULE_TOPIC, DELAY="1")) == NOW + 1000
    assert due_ms(copy(SCHEDULE_TOPIC, DELAY="18")) == NOW + 7_200_000
    assert due_ms(copy(SCHEDULE_TOPIC, DELAY="19")) is None
    assert due_ms(copy(TIMER_TOPIC, TIMER_DELIVER_MS="77")) == 77
    assert due_ms(copy()) is None


def test_oddities_of_a_message_are_said() -> None:
    def text(message: StoredCopy, **facts: Any) -> str:
        return " ".join(sentences(MessageFacts(copy=message, queue_min=0, **facts), NOW))

    plain = text(copy(), permission=6)
    assert plain.startswith("It is stored in topic orders: broker-a, queue 0, offset 5, since")
    assert plain.count(".") == 1
    assert "cannot be read" in text(copy(), permission=2)
    assert "2 records have its id" in text(copy(), same_id=2)
    assert "It was timed" in text(copy(), waited=copy(TIMER_TOPIC))
    assert "which was committed" in text(copy(), waited=copy(HALF_TOPIC))
    assert "dead letter of group billing" in text(copy("%DLQ%billing", RETRY_TOPIC="orders"))
    assert "It is retry 2 of" in text(copy("%RETRY%billing", retries=2))
