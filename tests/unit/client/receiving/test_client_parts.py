"""Small parts with tests of their own: inbox, assignment, redelivery, background tasks."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from triomq.client.core.background import open_background
from triomq.client.core.errors import AlreadySettled, MessageInvalid
from triomq.client.core.failure_log import FailureLog
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.delivery import Delivery
from triomq.client.receiving.inbox import MESSAGES_BETWEEN_CHECKPOINTS, Inbox, InboxClosed
from triomq.client.receiving.ordered_inbox import OrderedInbox
from triomq.client.receiving.process_queue import ProcessQueue, PullLimits
from triomq.client.receiving.received import DEAD_LETTER, ReceivedMessage, next_delivery
from triomq.client.receiving.settlement import BrokerRetry, QueueSuspension
from triomq.client.receiving.timetable import Timetable
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.record import StoredMessage, encode_record
from triomq.remoting.protocol.record_reader import decode_records

QUEUE = MessageQueue("T", "a", 0)
HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])


def stored(offset: int, **more: object) -> StoredMessage:
    fields: dict[str, object] = {
        "body": b"%d" % offset,
        "properties": b"TAGS\x01t\x02KEYS\x01k1 k2\x02",
        **more,
    }
    data = encode_record(
        topic="T",
        queue_id=0,
        queue_offset=offset,
        log_offset=offset * 100,
        born_timestamp=1_000,
        born_host=HOST,
        store_timestamp=2_000,
        store_host=HOST,
        **fields,  # type: ignore[arg-type]
    )
    return decode_records(data)[0]


class NoSendBack:
    async def send_back(
        self, assignment: Assignment, message: ReceivedMessage, delay_level: int
    ) -> bool:
        await trio.lowlevel.checkpoint()
        return assignment.settle(message)


def assignment(limit: int = 10) -> Assignment:
    return Assignment(QUEUE, ProcessQueue(0), PullLimits(limit, 10**9, 10**9), NoSendBack())


def messages(owner: Assignment, count: int, start: int = 0) -> list[ReceivedMessage]:
    return owner.held.put(
        [ReceivedMessage(stored(offset), owner) for offset in range(start, start + count)], 0
    )


# -- messages
# ------------------------------------------------------------------------------------------------


async def test_settled_messages_move_the_offset() -> None:
    owner = assignment()
    first, second, third = messages(owner, 3)
    assert owner.to_store == 0
    assert await second.ack()
    assert owner.to_store == 0
    assert await first.retry()
    assert owner.to_store == 2
    assert third.ack_nowait()
    assert owner.to_store == 3
    for message in (first, second, third):
        with pytest.raises(AlreadySettled):
            await message.retry()


async def test_settling_a_message_of_a_lost_queue_returns_false() -> None:
    owner = assignment()
    first, second = messages(owner, 2)
    owner.lose()
    assert first.lost
    assert await first.ack() is False
    assert await second.retry() is False
    assert owner.to_store == 0


async def test_the_message_as_a_context() -> None:
    owner = assignment()
    good, bad, cancelled, done = messages(owner, 4)
    async with good:
        pass
    with pytest.raises(ZeroDivisionError):
        async with bad:
            _ = 1 / 0
    with trio.CancelScope() as scope:
        async with cancelled:
            scope.cancel()
            await trio.lowlevel.checkpoint()
    async with done:
        await done.ack()
    assert (good.settled, bad.settled, cancelled.settled, done.settled) == (True, True, False, True)
    assert owner.to_store == 2


def test_the_fields_of_a_message() -> None:
    message = ReceivedMessage(stored(7, reconsume_times=2, flag=5), assignment())
    assert (message.topic, message.tag, message.keys, message.flag) == ("T", "t", ("k1", "k2"), 5)
    assert (message.queue, message.queue_offset, message.log_offset) == (QUEUE, 7, 700)
    assert message.message_id == message.offset_message_id == "0A00000100002A9F00000000000002BC"
    assert (message.born_timestamp, message.store_timestamp) == (1_000, 2_000)
    assert message.born_host == ("10.0.0.1", 10911)
    assert message.reconsume_times == 2
    assert next_delivery(next_delivery(message)).reconsume_times == 4
    with pytest.raises(TypeError):
        message.properties["TAGS"] = "x"  # type: ignore[index]


def test_the_topic_of_a_retried_message_is_the_first_one() -> None:
    message = ReceivedMessage(
        stored(0, properties=b"RETRY_TOPIC\x01Orders\x02UNIQ_KEY\x01U\x02"), assignment()
    )
    assert (message.topic, message.message_id) == ("Orders", "U")


def test_a_body_that_cannot_be_decompressed_fails_only_its_message() -> None:
    broken = ReceivedMessage(stored(0, body=b"no zlib", sys_flag=0x301), assignment())
    foreign = ReceivedMessage(stored(0, body=b"zstd", sys_flag=0x201), assignment())
    for message in (broken, foreign):
        with pytest.raises(MessageInvalid, match="compressed"):
            _ = message.body


async def test_a_full_queue_waits_until_something_is_settled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    owner = assignment(limit=2)
    held = messages(owner, 3)
    with trio.move_on_after(1) as scope:
        await owner.wait_room()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.wait_room)
        await trio.testing.wait_all_tasks_blocked()
        held[0].ack_nowait()
    assert await owner.wait_room() is False
    owner.paused = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.wait_room)
        await trio.testing.wait_all_tasks_blocked()
        owner.paused = False
        owner.recheck()


# -- the inbox
# ------------------------------------------------------------------------------------------------


async def test_tasks_that_take_messages_share_them_and_lose_none() -> None:
    inbox, owner = Inbox(), assignment()
    taken: Counter[int] = Counter()

    async def take() -> None:
        while True:
            try:
                message = await inbox.get()
            except InboxClosed:
                return
            taken[message.queue_offset] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        for start in range(0, 300, 30):
            inbox.put(messages(owner, 30, start))
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        inbox.close()
    assert taken == Counter(range(300))
    with pytest.raises(InboxClosed):
        await inbox.get()


async def test_slow_tasks_that_take_messages_work_side_by_side() -> None:
    """A woken task wakes the next one, so that twenty messages have twenty tasks at work, though
    each of them keeps its own for a while.
    """
    inbox, owner = Inbox(), assignment()
    busy = 0
    everyone = trio.Event()

    async def take() -> None:
        nonlocal busy
        await inbox.get()
        busy += 1
        if busy == 20:
            everyone.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        inbox.put(messages(owner, 10))
        inbox.put(messages(owner, 10, 10))
        with trio.fail_after(30):
            await everyone.wait()
        nursery.cancel_scope.cancel()


async def test_a_task_that_is_cancelled_while_it_is_woken_leaves_its_message_to_others() -> None:
    inbox, owner = Inbox(), assignment()
    taken: list[int] = []
    first = trio.CancelScope()

    async def take(scope: trio.CancelScope) -> None:
        with scope:
            while True:
                taken.append((await inbox.get()).queue_offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take, trio.CancelScope())
        await trio.testing.wait_all_tasks_blocked()
        for start in range(0, 40, 2):
            inbox.put(messages(owner, 2, start))
            first.cancel()
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(taken) == list(range(40))


@pytest.mark.parametrize("kind", [Inbox, OrderedInbox])
async def test_a_closed_inbox_accepts_and_hands_out_nothing(
    kind: type[Inbox | OrderedInbox],
) -> None:
    inbox, owner = kind(), assignment()
    inbox.put(messages(owner, 2))
    inbox.close()
    inbox.put(messages(owner, 2, 2))
    assert len(inbox) == 0
    with pytest.raises(InboxClosed):
        await inbox.get()


@pytest.mark.parametrize(
    ("failed", "comes_again"),
    [((2, 0, 1), [0, 1, 2, 3]), ((2, 1), [1, 2, 3]), ((0, 2), [0, 2, 3]), ((1,), [1, 3])],
)
async def test_failed_messages_of_an_ordered_batch_come_again_first_and_in_order(
    failed: tuple[int, ...], comes_again: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    """The order in which they were settled does not matter; acked messages do not come again. The
    queue rests for the longest pause of any.
    """
    inbox, owner = OrderedInbox(), assignment()
    inbox.put(messages(owner, 4))
    batch = await inbox.get_some(3)
    assert [message.queue_offset for message in batch] == [0, 1, 2]
    for offset in failed:
        pause = 0.5 if offset == failed[0] else 0.1
        inbox.requeue(batch[offset], next_delivery(batch[offset]), pause)
    for message in batch:
        if message.queue_offset not in failed:
            inbox.settled(message)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.end_rests)
        second = await inbox.get_some(10)
        assert [message.queue_offset for message in second] == comes_again
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == 0.5
    inbox.requeue(second[0], next_delivery(second[0]), 0.5)
    for message in second[1:]:
        inbox.settled(message)
    assert len(inbox) == 1, "what failed the first time is done"


@pytest.mark.parametrize("settled", ["ack", "retry", "block", "before its own turn"])
async def test_a_queue_that_is_lost_and_gained_again_goes_on_after_the_message_that_is_out(
    settled: str,
) -> None:
    """Its settlement has no effect on offsets, but ends the turn of its queue."""
    inbox, lost, gained = OrderedInbox(), assignment(), assignment()
    lost.turns = gained.turns = inbox
    inbox.put(messages(lost, 1))
    out = await inbox.get()
    lost.lose()
    inbox.put(messages(gained, 2))
    if settled == "before its own turn":
        assert lost.held.settle(out.queue_offset)  # the broker has taken it back meanwhile
    with trio.move_on_after(0):
        await inbox.get()
        raise AssertionError("two messages of a queue are out")
    if settled == "ack":
        assert await out.ack() is False
    elif settled == "block":
        async with out:
            pass
    else:
        assert await out.retry() is False
    with trio.fail_after(1):
        assert [message.owner for message in await inbox.get_some(2)] == [gained, gained]


class SilentBroker(BrokerRetry):
    """Takes nothing back, and the queue is lost before it is known."""

    async def give_back(
        self, message: ReceivedMessage, delay_level: int, failure: str | None = None
    ) -> bool:
        await trio.lowlevel.checkpoint()
        message.owner.lose()  # type: ignore[attr-defined]
        return False


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_message_whose_queue_is_lost_while_it_is_given_back_is_over(ordered: bool) -> None:
    """The next owner has it; an ordered queue that is gained again goes on."""
    settings: Any = SimpleNamespace(max_reconsume_times=16, retry_delay=1.0)
    broker = SilentBroker("G", SimpleNamespace(), settings)  # type: ignore[arg-type]
    inbox, owner, gained = OrderedInbox(), assignment(), assignment()
    inbox.put(messages(owner, 1))
    message = await inbox.get()
    if ordered:
        suspension = QueueSuspension(settings, inbox, broker)
        assert await suspension.send_back(owner, message, DEAD_LETTER) is False
        inbox.put(messages(gained, 1))
        with trio.fail_after(1):
            assert (await inbox.get()).owner is gained
    else:
        assert await broker.send_back(owner, message, 0) is False
    assert len(broker.redelivery) == 0


async def test_each_rest_of_an_ordered_queue_has_its_own_length(
    autojump_clock: trio.testing.MockClock,
) -> None:
    inbox, owner = OrderedInbox(), assignment()
    inbox.put(messages(owner, 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.end_rests)
        for pause in (30.0, 0.5, 2.0):
            began = trio.current_time()
            out = await inbox.get()
            inbox.requeue(out, next_delivery(out), pause)
            again = await inbox.get()
            assert trio.current_time() - began == pause
            inbox.requeue(again, again, 0.0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Inbox, OrderedInbox])
async def test_what_a_cancelled_batch_handler_has_settled_does_not_come_again(
    kind: type[Inbox | OrderedInbox],
) -> None:
    inbox, owner = kind(), assignment()
    owner.turns = inbox if isinstance(inbox, OrderedInbox) else None
    seen: list[int] = []

    async def handle(batch: list[ReceivedMessage]) -> None:
        for message in batch:
            seen.append(message.queue_offset)
            if message.queue_offset != 1:
                await message.ack()
        await trio.sleep_forever()

    delivery = Delivery(inbox, owner.sends_back, None, 0.0)
    inbox.put(messages(owner, 3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(delivery.run, handle, 1, 3)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert seen == [0, 1, 2]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            inbox.end_rests if isinstance(inbox, OrderedInbox) else trio.sleep_forever
        )
        with trio.fail_after(1):
            assert [message.queue_offset for message in await inbox.get_some(3)] == [1]
        nursery.cancel_scope.cancel()


async def test_a_cancelled_task_takes_no_message() -> None:
    inbox, owner = Inbox(), assignment()
    inbox.put(messages(owner, 1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.get()
    assert scope.cancelled_caught
    assert len(inbox) == 1


async def test_messages_of_lost_queues_are_skipped() -> None:
    inbox, gone, ours = Inbox(), assignment(), assignment()
    inbox.put(messages(gone, 3))
    inbox.put(messages(ours, 2))
    gone.lose()
    assert [message.queue_offset for message in await inbox.get_some(10)] == [0, 1]
    assert len(inbox) == 0


async def test_a_task_that_takes_many_messages_lets_others_run() -> None:
    inbox, owner = Inbox(), assignment()
    inbox.put(messages(owner, 5 * MESSAGES_BETWEEN_CHECKPOINTS))
    order: list[str] = []

    async def take() -> None:
        while len(inbox):
            await inbox.get()
            order.append("taken")

    async def other() -> None:
        while len(inbox):
            order.append("other")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(other)
    places = [place for place, what in enumerate(order) if what == "other"]
    assert len(places) >= 4
    assert (
        max(after - before for before, after in pairwise(places))
        <= 3 * MESSAGES_BETWEEN_CHECKPOINTS
    )


async def test_second_deliveries_come_when_they_are_due(
    autojump_clock: trio.testing.MockClock,
) -> None:
    inbox, owner, redelivery = Inbox(), assignment(), Timetable[ReceivedMessage]()
    late, soon = messages(owner, 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(redelivery.deliver_due, lambda message: inbox.put([message]))
        await trio.testing.wait_all_tasks_blocked()
        redelivery.put(trio.current_time() + 9, late)
        redelivery.put(trio.current_time() + 5, soon)
        began = trio.current_time()
        assert len(redelivery) == 2
        assert await inbox.get() is soon
        assert trio.current_time() - began == pytest.approx(5)
        assert await inbox.get() is late
        assert trio.current_time() - began == pytest.approx(9)
        assert late.handed_out == pytest.approx(began + 9)
        nursery.cancel_scope.cancel()


# -- background tasks
# ------------------------------------------------------------------------------------------------


async def test_background_tasks_end_with_the_body() -> None:
    async with open_background() as nursery:
        nursery.start_soon(trio.sleep_forever)


async def test_one_error_is_raised_without_a_group_and_two_stay_a_group() -> None:
    async def crash() -> None:
        raise LookupError("inside")

    with pytest.raises(LookupError, match="inside"):  # noqa: PT012  (the block is what is tested)
        async with open_background() as nursery:
            nursery.start_soon(crash)
            await trio.sleep_forever()
    with pytest.raises(ZeroDivisionError):
        async with open_background(), open_background():
            _ = 1 / 0
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with open_background() as nursery:
            nursery.start_soon(crash)
            nursery.start_soon(crash)
            await trio.sleep_forever()
    assert len(caught.value.exceptions) == 2


async def test_a_cancelled_body_is_cancelled() -> None:
    with trio.CancelScope() as scope:
        async with open_background(), open_background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


# -- failure log
# ------------------------------------------------------------------------------------------------


def test_one_log_line_when_a_failure_begins_and_one_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailureLog(logging.getLogger("triomq.test"))
    with caplog.at_level(logging.INFO, logger="triomq.test"):
        for _ in range(3):
            failures.failed("route", OSError("refused"))
        failures.failed("route", ValueError("nonsense"))
        for _ in range(3):
            failures.worked("route")
        failures.failed("broker", OSError("refused"))
        failures.forget("broker")
        failures.worked("broker")
    assert [record.levelname for record in caplog.records] == [
        "WARNING",
        "WARNING",
        "INFO",
        "WARNING",
    ]
    assert "works again" in caplog.text
