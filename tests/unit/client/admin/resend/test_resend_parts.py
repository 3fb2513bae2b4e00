"""Which messages are wanted, what a copy of one carries, and at which pace copies are sent."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest
import trio
from store_times import first_from

from triomq.client.admin.admin import Admin
from triomq.client.admin.message_preview import preview
from triomq.client.admin.resend.copy_sender import CopySender, SentCopy
from triomq.client.admin.resend.message_copy import (
    MessageCopy,
    copy_to,
    home_topic,
    origin_id,
    origin_topic,
)
from triomq.client.admin.resend.resending import FAILURES_MAX, Resending, ResendOutcome, SendRate
from triomq.client.admin.resend.searching import search_queue
from triomq.client.admin.resend.selection import (
    MessageSelection,
    QueueSearch,
    SelectedMessages,
    tags_of,
    together,
)
from triomq.client.core.errors import BrokerError, ConnectionFailed, RequestTimeout, TrioMQError
from triomq.client.mqadmin.commands.reading import Reading, read_queue
from triomq.client.mqadmin.core.resend_command import search_notes, sent_result
from triomq.remoting.protocol.bodies.route import BrokerData, MessageQueue, QueueData, TopicRoute
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command
from triomq.remoting.protocol.message_properties import encode_properties, parse_properties
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import COMPRESSED

NOW = 1_795_779_000_000


def stored(offset: int = 0, **changes: Any) -> StoredMessage:
    """Return a message; ``properties`` and ``at`` (ms after ``NOW``) are short forms."""
    properties = changes.pop("properties", {})
    fields: dict[str, Any] = {
        "topic": "%DLQ%billing",
        "queue_id": 0,
        "queue_offset": offset,
        "log_offset": 4096 + offset,
        "size": 200,
        "flag": 7,
        "sys_flag": 0,
        "born_timestamp": NOW,
        "born_host_bytes": bytes((127, 0, 0, 1, 0, 0, 0, 9)),
        "store_timestamp": NOW + changes.pop("at", offset),
        "store_host_bytes": bytes((127, 0, 0, 1, 0, 0, 42, 159)),
        "reconsume_times": 16,
        "prepared_transaction_offset": 0,
        "body": b"body",
        "body_crc": 0,
        "properties_bytes": encode_properties({"UNIQ_KEY": f"ID{offset}", **properties}),
        **changes,
    }
    return StoredMessage(**fields)


def selection(**facts: Any) -> MessageSelection:
    return MessageSelection(**{"limit": 100, **facts})


DEAD = {
    "KEYS": "k1 k2",
    "TAGS": "paid",
    "__SHARDINGKEY": "customer",
    "price": "3",
    "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "FIRST",
    "DELAY": "3",
    "WAIT": "false",
    "REAL_TOPIC": "%RETRY%billing",
    "REAL_QID": "0",
    "MAX_RECONSUME_TIMES": "16",
    "CONSUME_START_TIME": "1",
    "__transactionId__": "T",
    "TRAN_MSG": "true",
    "PGROUP": "shop",
}


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({}, True),
        ({"begin_ms": NOW}, True),
        ({"begin_ms": NOW + 1}, False),
        ({"end_ms": NOW}, True),
        ({"end_ms": NOW - 1}, False),
        ({"key": "k2"}, True),
        ({"key": "k"}, False),
        ({"tags": tags_of("sent || paid")}, True),
        ({"tags": tags_of("sent")}, False),
        ({"message_id": "ID0"}, True),
        ({"message_id": "FIRST"}, True),
        ({"message_id": stored().offset_message_id}, True),
        ({"message_id": "ID"}, False),
        ({"key": "k1", "tags": tags_of("paid"), "message_id": "other"}, False),
    ],
)
def test_each_filter_selects(facts: dict[str, Any], wanted: bool) -> None:
    assert selection(**facts).wants(stored(properties=DEAD)) is wanted


def searched(messages: list[StoredMessage], examined_max: int = 1000, **facts: Any) -> QueueSearch:
    found = QueueSearch(selection(**facts), examined_max, 1 << 20)
    found.take(messages)
    return found


QUEUES = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)]


def test_the_oldest_of_all_queues_come_in_order() -> None:
    searches = {
        QUEUES[0]: searched([stored(0, at=10), stored(1, at=30)], limit=3),
        QUEUES[1]: searched([stored(2, at=20), stored(3, at=40)], limit=3),
    }
    found = together(searches, selection(limit=3), {})
    assert [message.message_id for _, message in found.messages] == ["ID0", "ID2", "ID1"]
    assert (found.go_on_ms, found.cut_ms, found.examined) == (NOW + 40, None, 4)
    found = together(searches, selection(limit=4), {})
    assert (len(found.messages), found.go_on_ms) == (4, None)


def test_a_queue_with_one_message_more_than_wanted_is_searched_no_further() -> None:
    found = searched([stored(number) for number in range(5)], limit=2)
    assert (found.examined, len(found.found), found.over, found.cut_ms) == (3, 3, True, None)


@attrs.define
class OneQueue:
    """In the place of an ``Admin``: what a broker answers about one queue."""

    messages: list[StoredMessage]

    async def min_offset(self, _: MessageQueue) -> int:
        return 0

    async def max_offset(self, _: MessageQueue) -> int:
        return len(self.messages)

    async def offset_by_time(self, _: MessageQueue, time_ms: int) -> int:
        times = [message.store_timestamp for message in self.messages]
        return first_from(times, time_ms, times[-1])

    async def read(
        self, _: MessageQueue, offset: int, *, count: int, end_offset: int
    ) -> list[StoredMessage]:
        return self.messages[offset : min(offset + count, end_offset)]


async def test_a_period_is_read_past_a_message_of_the_future() -> None:
    """It was stored while the clock was ahead; what came after it may be wanted."""
    times = [*range(80), *[10**9] * 70, *range(80, 300)]
    admin: Any = OneQueue([stored(number, at=time) for number, time in enumerate(times)])
    begin, end = NOW + 50, NOW + 250
    found = QueueSearch(selection(begin_ms=begin, end_ms=end, limit=1000), 1000, 1 << 20)
    await search_queue(admin, QUEUES[0], found)
    reading = Reading(begin, end, frozenset())
    await read_queue(admin, QUEUES[0], reading)
    for messages in (found.found, [message for _, message in reading.found]):
        assert [message.store_timestamp - NOW for message in messages] == list(range(50, 251))
    assert found.examined < len(times) - 49 - 40  # nothing far behind the period was read


def test_a_search_that_is_cut_shows_no_message_behind_the_cut() -> None:
    """In the queue that was cut there may be older ones that were not seen."""
    searches = {
        QUEUES[0]: searched([stored(0, at=10), stored(1, at=50)]),
        QUEUES[1]: searched([stored(2, at=20), stored(3, at=30), stored(4, at=60)], examined_max=2),
    }
    found = together(searches, selection(), {})
    assert [message.message_id for _, message in found.messages] == ["ID0", "ID2", "ID3"]
    assert (found.cut_ms, found.go_on_ms) == (NOW + 30, NOW + 30)
    large = QueueSearch(selection(), 1000, 300)
    large.take([stored(number) for number in range(5)])
    assert (large.examined, large.cut_ms) == (2, NOW + 1)


def test_a_broker_that_failed_in_one_queue_is_left_out() -> None:
    searches = {QUEUES[0]: searched([stored(0)]), QUEUES[2]: searched([stored(1)])}
    found = together(searches, selection(), {"a": "silent"})
    assert [broker for broker, _ in found.messages] == ["b"]
    assert (found.asked, found.failures) == (2, {"a": "silent"})


def test_a_copy_carries_what_the_sender_gave_and_where_it_comes_from() -> None:
    letter = stored(properties=DEAD, sys_flag=COMPRESSED | 4)
    copy = copy_to(letter, "orders")
    assert copy.properties == {
        "UNIQ_KEY": "ID0",
        "KEYS": "k1 k2",
        "TAGS": "paid",
        "__SHARDINGKEY": "customer",
        "price": "3",
        "RESENT_FROM_MESSAGE_ID": "FIRST",
        "WAIT": "true",
    }
    assert (copy.topic, copy.body, copy.flag, copy.sys_flag) == ("orders", b"body", 7, COMPRESSED)
    header = copy.header("broker-a", 3, NOW)
    assert (header.topic, header.queue_id, header.reconsume_times) == ("orders", 3, 0)
    assert parse_properties(header.properties or "") == copy.properties
    for_group = copy_to(letter, "orders", "billing")
    assert for_group.topic == "%RETRY%billing"
    assert for_group.properties == copy.properties | {
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "ID0",
    }


@pytest.mark.parametrize(
    ("topic", "properties", "origin", "home"),
    [
        ("%DLQ%billing", DEAD, "orders", "orders"),
        ("%DLQ%billing", {"DLQ_ORIGIN_TOPIC": "paid"}, "paid", "paid"),
        ("%DLQ%billing", {}, None, None),
        ("%DLQ%billing", {"RETRY_TOPIC": "%RETRY%billing"}, None, None),
        ("orders", {}, None, "orders"),
    ],
)
def test_where_a_message_came_from(
    topic: str, properties: dict[str, str], origin: str | None, home: str | None
) -> None:
    letter = stored(topic=topic, properties=properties)
    assert (origin_topic(letter), home_topic(letter)) == (origin, home)


def test_the_id_of_a_message_that_was_never_sent_back_is_its_own() -> None:
    assert origin_id(stored()) == stored().offset_message_id
    assert origin_id(stored(properties=DEAD)) == "FIRST"


def test_a_pace_spreads_messages_evenly_and_makes_up_for_nothing() -> None:
    rate = SendRate(4)
    assert [rate.delay(10.0) for _ in range(3)] == [0.0, 0.25, 0.5]
    assert rate.delay(20.0) == 0.0
    assert rate.delay(20.1) == pytest.approx(0.15)
    assert (rate.seconds(5), rate.seconds(0)) == (1.0, 0.0)
    free = SendRate(None)
    assert (free.delay(1.0), free.seconds(1000)) == (0.0, 0.0)


def test_a_preview_is_one_short_line() -> None:
    assert preview(stored(body=b"a\n b\x1b[2J")) == "a b\\x1b[2J"
    assert preview(stored(body=b"x" * 100)) == "x" * 80 + "\N{HORIZONTAL ELLIPSIS}"


@attrs.define
class ScriptedSender:
    """Sends nothing; raises the errors that it is given, by message id."""

    errors: dict[str, TrioMQError]
    tried: list[str] = attrs.field(factory=list)

    async def send(self, copy: MessageCopy) -> SentCopy:
        await trio.lowlevel.checkpoint()
        self.tried.append(copy.properties["UNIQ_KEY"])
        if (error := self.errors.get(self.tried[-1])) is not None:
            raise error
        return SentCopy(broker_name="a", queue_id=0, offset_message_id="P")


@attrs.define
class SleepingClock:
    now: float = 0.0

    async def sleep(self, seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        self.now += seconds


def resending(sender: ScriptedSender, clock: SleepingClock, **changes: Any) -> Resending:
    facts: dict[str, Any] = {
        "sender": cast("CopySender", sender),
        "topic_of": home_topic,
        "rate": SendRate(2),
        "clock": lambda: clock.now,
        "sleep": clock.sleep,
        "ends_at": 60.0,
        **changes,
    }
    return Resending(**facts)


LETTERS = [stored(number, properties=DEAD) for number in range(8)]


async def test_copies_are_sent_in_order_at_the_pace() -> None:
    sender, clock = ScriptedSender({}), SleepingClock()
    outcome = await resending(sender, clock).send(LETTERS)
    assert sender.tried == [f"ID{number}" for number in range(8)]
    assert (len(outcome.sent), outcome.left, outcome.go_on_ms, clock.now) == (8, (), None, 3.5)


async def test_the_time_limit_leaves_the_rest() -> None:
    sender, clock = ScriptedSender({}), SleepingClock()
    outcome = await resending(sender, clock, ends_at=1.2).send(LETTERS)
    assert len(outcome.sent) == 3
    assert (outcome.go_on_ms, outcome.stopped) == (NOW + 3, "the time limit was over")


async def test_failures_in_a_row_end_it_and_single_ones_do_not() -> None:
    failure = ConnectionFailed("a:1", "refused")
    sender = ScriptedSender(dict.fromkeys(("ID1", "ID3", "ID4", "ID5"), failure))
    outcome = await resending(sender, SleepingClock()).send(LETTERS)
    assert [message.message_id for message, _ in outcome.failed] == ["ID1", "ID3", "ID4", "ID5"]
    assert (len(outcome.sent), [message.message_id for message in outcome.left]) == (
        2,
        ["ID6", "ID7"],
    )
    assert f"{FAILURES_MAX} in a row failed" in outcome.stopped


async def test_a_letter_without_origin_needs_a_topic() -> None:
    sender, lost = ScriptedSender({}), [stored(number) for number in range(4)]
    outcome = await resending(sender, SleepingClock()).send(lost)
    assert (len(outcome.failed), outcome.left, sender.tried) == (4, (), [])
    named = resending(sender, SleepingClock(), topic_of=lambda _: "orders")
    assert len((await named.send(lost)).sent) == 4


@attrs.define
class ScriptedAdmin:
    """Answers routes of two brokers, and sends as told."""

    answers: dict[str, TrioMQError | None]
    """address → error, None: stored"""
    asked: list[tuple[str, int]] = attrs.field(factory=list)
    """address and queue"""

    async def route(self, topic: str) -> TopicRoute:
        await trio.lowlevel.checkpoint()
        brokers = [
            BrokerData(cluster="c", broker_name=name, broker_addrs={0: f"{name}:1"})
            for name in ("a", "b")
        ]
        queues = [
            QueueData(broker_name=name, read_queue_count=2, write_queue_count=2, perm=6)
            for name in ("a", "b")
        ]
        return TopicRoute(queue_datas=queues, broker_datas=brokers)

    async def ask(
        self, address: str, code: RequestCode, header: Any, body: bytes, *accept: int
    ) -> Command:
        await trio.lowlevel.checkpoint()
        self.asked.append((address, header.queue_id))
        if (error := self.answers[address]) is not None:
            raise error
        return Command(code=0, ext={"msgId": "P", "queueId": "0", "queueOffset": "0"})


async def test_a_silent_broker_is_tried_once_and_a_refusal_only_passes_a_copy_on() -> None:
    silent = RequestTimeout("a:1", "SEND_MESSAGE_V2", 1.0)
    admin = ScriptedAdmin({"a:1": silent, "b:1": None})
    sender = CopySender(cast("Admin", admin))
    places = [await sender.send(copy_to(letter, "orders")) for letter in LETTERS]
    assert {place.broker_name for place in places} == {"b"}
    assert [address for address, _ in admin.asked].count("a:1") <= 1
    admin = ScriptedAdmin({"a:1": BrokerError(2, "busy", "a:1"), "b:1": silent})
    sender = CopySender(cast("Admin", admin))
    for _ in range(2):
        with pytest.raises(TrioMQError):
            await sender.send(copy_to(stored(), "orders"))
    addresses = [address for address, _ in admin.asked]
    assert (addresses.count("a:1"), addresses.count("b:1")) == (2, 1)
    assert list(sender.silent) == ["b"]


async def test_a_sharding_key_keeps_its_queue_and_others_take_turns() -> None:
    admin = ScriptedAdmin({"a:1": None, "b:1": None})
    sender = CopySender(cast("Admin", admin))
    for _ in range(4):
        await sender.send(copy_to(stored(), "orders"))
    assert len(set(admin.asked)) == 4
    admin.asked.clear()
    for letter in LETTERS:
        await sender.send(copy_to(letter, "orders"))
    assert len(set(admin.asked)) == 1


def test_what_a_search_that_was_cut_says() -> None:
    cut = SelectedMessages(
        messages=[], examined=9, cut_ms=5, go_on_ms=5, failures={"b x": "silent"}
    )
    assert search_notes(cut) == [
        (
            "the search ended after 9 messages, the limit of one call; go on with --from 5, or"
            " choose fewer with --from, --to or -b"
        ),
        "messages of broker b x are left out; go on with -b 'b x'",
    ]


OUTCOMES = [
    # (sent, failed, left, go_on_ms, cut_ms) -> (partial, bad news), words of the warnings
    ((2, 0, 0, None, None), (False, False), []),
    ((2, 0, 0, 9, None), (False, False), ["more than the 2 messages of --limit"]),
    ((2, 0, 0, 9, 9), (True, False), ["limit of one call; go on with --from 9"]),
    ((1, 1, 0, None, None), (True, False), ["1 message cannot be sent, ID1 because: refused"]),
    ((0, 2, 0, None, None), (False, True), ["2 messages cannot be sent"]),
    (
        (1, 0, 1, 9, 9),
        (True, False),
        [f"not tried: 1 message, because late; go on with --from {NOW}"],
    ),
]


@pytest.mark.parametrize(("counts", "ends", "warnings"), OUTCOMES)
def test_what_was_not_sent_decides_the_exit_code_and_one_warning_says_where_to_go_on(
    counts: tuple[int, int, int, int | None, int | None],
    ends: tuple[bool, bool],
    warnings: list[str],
) -> None:
    sent, failures, left, go_on_ms, cut_ms = counts
    place = SentCopy(broker_name="a", queue_id=0, offset_message_id="P")
    outcome = ResendOutcome(
        sent=[(stored(), "orders", place)] * sent,
        failed=[(stored(1), "refused")] * failures,
        left=[stored()] * left,
        stopped="late",
    )
    found = SelectedMessages(
        messages=[("a", stored())] * (sent + failures + left),
        examined=9,
        cut_ms=cut_ms,
        go_on_ms=go_on_ms,
        asked=1,
    )
    result = sent_result(found, outcome, {}, {})
    assert (result.partial, result.bad_news) == ends
    assert len(result.notes) == len(warnings)
    for note, words in zip(result.notes, warnings, strict=True):
        assert words in note
    assert (result.document["found"], result.document["left"]) == (2, left)
