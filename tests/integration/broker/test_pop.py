"""POP through a broker's socket: messages are taken, hidden, acknowledged, and come again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio
from brokers import BrokerPeer, crashed_broker, peer_of, running_broker
from pop_peer import INVISIBLE_MS, Popped, acknowledge, pop
from serving import until
from virtual_time import in_virtual_time

from triomq.broker.app import BrokerReady
from triomq.broker.services.pop.held_pops import HeldPop, HeldPops
from triomq.broker.services.statistics import Statistics
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.bodies.pop import BatchAck, BatchAckBody, offset_bits
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.protocol.headers.pop import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationHeader,
    NotificationResponseHeader,
    PeekMessageHeader,
    PollingCountHeader,
    PollingCountResponseHeader,
    PopMessageHeader,
)
from triomq.remoting.protocol.headers.topic import DeleteTopicHeader
from triomq.remoting.protocol.receipt_handle import NORMAL, ReceiptHandle
from triomq.remoting.protocol.record_reader import decode_records


async def send(peer: BrokerPeer, count: int, queues: int = 4) -> None:
    for number in range(count):
        await peer.send("T", b"%d" % number, queue_id=number % queues)


async def drain(peer: BrokerPeer, seconds: float) -> list[Popped]:
    """Pop and acknowledge everything that comes within a time."""
    found: list[Popped] = []
    with trio.move_on_after(seconds):
        while True:
            _, messages = await pop(peer, poll_ms=500)
            found += messages
            for message in messages:
                await acknowledge(peer, message)
    return found


@in_virtual_time
async def test_a_message_is_taken_once_and_never_comes_again_when_acknowledged(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        await send(peer, 20)
        taken: list[Popped] = []
        while found := (await pop(peer, count=7))[1]:
            for each in found:  # at once: a busy machine may take seconds for all of them
                await acknowledge(peer, each)
            taken += found
        assert sorted(int(each.body) for each in taken) == list(range(20))
        await trio.sleep((INVISIBLE_MS + 1500) / 1000)
        assert await pop(peer) == (ResponseCode.POLLING_TIMEOUT, [])


@pytest.mark.feature("143b")
async def test_what_is_not_acknowledged_comes_again_when_its_time_is_over(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        await send(peer, 20)
        begun = time.time()
        _, taken = await pop(peer)
        assert len(taken) == 20
        for each in taken[:15]:
            await acknowledge(peer, each)
        lost = {each.body for each in taken[15:]}
        assert await pop(peer) == (ResponseCode.POLLING_TIMEOUT, [])
        code, again = await pop(peer, poll_ms=10_000)
        assert code == 0
        passed = time.time() - begun
        assert passed >= INVISIBLE_MS / 1000
        again += await drain(peer, 1)
        assert {each.body for each in again} == lost
        assert {each.message.topic for each in again} == {"T"}
        assert {each.message.reconsume_times for each in again} == {1}
        for each in again:
            await acknowledge(peer, each)


async def test_another_invisible_time(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send(peer, 1, 1)
        _, (taken,) = await pop(peer)
        handle = taken.handle
        header = ChangeInvisibleTimeHeader("G", "T", 0, handle.encode(), handle.offset, 4_000)
        answer = await peer.call(Code.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == 0, answer.remark
        changed = answer.header(ChangeInvisibleTimeResponseHeader)
        assert (changed.invisible_ms, changed.revive_queue_id) == (4_000, handle.revive_queue)
        _, (again,) = await pop(peer, poll_ms=10_000)
        assert time.time() * 1000 >= changed.pop_time + 4_000
        late = await peer.call(Code.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert late.code == ResponseCode.NO_MESSAGE
        await acknowledge(peer, again)
        assert await drain(peer, 3) == []


@in_virtual_time
async def test_an_acknowledgement_that_comes_too_late_has_no_effect(tmp_path: Path) -> None:
    """It is answered with success, as by Java: the client could do nothing about a refusal."""
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send(peer, 1, 1)
        _, (taken,) = await pop(peer)
        _, (again,) = await pop(peer, poll_ms=10_000)
        await acknowledge(peer, taken)
        _, (once_more,) = await pop(peer, poll_ms=10_000)
        assert {each.body for each in (again, once_more)} == {taken.body}
        await acknowledge(peer, once_more)
        assert await drain(peer, 2) == []


@in_virtual_time
async def test_a_message_counts_once_as_consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not again with a second acknowledgement, and not with one that comes too late."""
    counted: list[int] = []
    monkeypatch.setattr(
        Statistics, "note_consumed", lambda _, group, topic, messages: counted.append(messages)
    )
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for body in (b"0", b"1"):
            await peer.send("T", body)
        _, (first, late) = await pop(peer)
        await acknowledge(peer, first)
        await acknowledge(peer, first)
        _, (again,) = await pop(peer, poll_ms=20_000)
        assert again.body == late.body
        await acknowledge(peer, late)
    assert sum(counted) == 1, counted


@in_virtual_time
async def test_batches_of_acknowledgements(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 2)
        await send(peer, 10, 2)
        _, taken = await pop(peer)
        acks = []
        for queue_id in range(2):
            mine = [each.handle for each in taken if each.handle.queue_id == queue_id]
            start, revive = mine[0].start_offset, mine[0].revive_queue
            acks.append(
                BatchAck(
                    consumer_group="G",
                    topic="T",
                    start_offset=start,
                    queue_id=queue_id,
                    revive_queue_id=revive,
                    pop_time=mine[0].pop_time,
                    invisible_ms=mine[0].invisible_ms,
                    bits=offset_bits(
                        start, [handle.offset for handle in mine if handle.offset != 2]
                    ),
                )
            )
        body = BatchAckBody(broker_name="broker-a", acks=acks).encode()
        answer = await peer.call(Code.BATCH_ACK_MESSAGE, None, body)
        assert answer.code == 0, answer.remark
        again = await drain(peer, 4)
        assert sorted(int(each.body) for each in again) == [4, 5]


@pytest.mark.feature("143b")
async def test_after_a_kill_nothing_is_lost_and_acknowledged_messages_stay_away(
    tmp_path: Path,
) -> None:
    async def work(ready: BrokerReady) -> tuple[list[Popped], list[Popped]]:
        async with peer_of(ready) as peer:
            await peer.create_topic("T", 4)
            await send(peer, 40)
            taken: list[Popped] = []
            for _ in range(4):
                taken += (await pop(peer, count=8, invisible_ms=3_000))[1]
            for each in taken[::2]:
                await acknowledge(peer, each)
            return taken, taken[::2]

    taken, acknowledged = await crashed_broker(tmp_path, work)
    assert len(taken) == 32
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        again = await drain(peer, 7)
    expected = {b"%d" % number for number in range(40)} - {each.body for each in acknowledged}
    assert sorted(each.body for each in again) == sorted(expected)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"message_count_max": 33}, ResponseCode.INVALID_PARAMETER, "greater than 32"),
        ({"topic": "None"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
        ({"expression": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse"),
        ({"expression_type": "XML"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no filters"),
        ({"invisible_ms": 0}, ResponseCode.INVALID_PARAMETER, "invisibleTime=0"),
    ],
)
async def test_refusals(tmp_path: Path, changes: dict[str, Any], code: int, remark: str) -> None:
    values: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "T",
        "queue_id": -1,
        "message_count_max": 1,
        "invisible_ms": 1000,
        "poll_ms": 0,
        "init_mode": 0,
        **changes,
    }
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        answer = await peer.call(Code.POP_MESSAGE, PopMessageHeader(**values))
        assert (answer.code, remark in (answer.remark or "")) == (code, True), answer.remark
        bad = AckMessageHeader("G", "T", 0, "1 2 3", 0)
        answer = await peer.call(Code.ACK_MESSAGE, bad)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "is not a receipt handle" in (answer.remark or "")


@pytest.mark.parametrize("ahead_ms", [70_000, -3_600_000])
async def test_a_wait_counts_from_the_arrival_whatever_the_sender_s_clock_says(
    tmp_path: Path, ahead_ms: int
) -> None:
    born = int(time.time() * 1000) + ahead_ms
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 4)
        with trio.fail_after(10):
            assert await pop(peer, poll_ms=300, born_timestamp=born) == (
                ResponseCode.POLLING_TIMEOUT,
                [],
            )
            header = NotificationHeader("G", "T", -1, 300, born)
            answer = await peer.call(Code.NOTIFICATION, header, timeout=20)
            assert answer.code == 0
        await send(peer, 3)
        code, taken = await pop(peer, poll_ms=300, born_timestamp=born)
        assert (code, len(taken)) == (0, 3)


async def test_looking_takes_nothing(tmp_path: Path) -> None:
    async def notified(peer: BrokerPeer, poll_ms: int) -> bool:
        header = NotificationHeader("G", "T", -1, poll_ms, int(time.time() * 1000))
        answer = await peer.call(Code.NOTIFICATION, header, timeout=20)
        assert answer.code == 0, answer.remark
        return answer.header(NotificationResponseHeader).has_message

    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 2)
        peek = PeekMessageHeader("G", "T", -1, 5)
        assert (await peer.call(Code.PEEK_MESSAGE, peek)).code == ResponseCode.PULL_NOT_FOUND
        assert not await notified(peer, 50)
        found: list[bool] = []

        async def wait() -> None:
            found.append(await notified(peer, 10_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while True:
                answer = await peer.call(Code.POLLING_INFO, PollingCountHeader("G", "T", -1))
                if answer.header(PollingCountResponseHeader).count == 1:
                    break
                await trio.sleep(0.01)
            await send(peer, 8, 2)
        assert found == [True]
        answer = await peer.call(Code.PEEK_MESSAGE, peek)
        assert answer.code == 0
        assert len(decode_records(bytes(answer.body))) == 5
        assert await notified(peer, 0)
        _, taken = await pop(peer)
        assert len(taken) == 8
        assert not await notified(peer, 0)


async def change(peer: BrokerPeer, popped: Popped, invisible_ms: int) -> ReceiptHandle:
    handle = popped.handle
    header = ChangeInvisibleTimeHeader(
        "G", popped.topic, handle.queue_id, handle.encode(), handle.offset, invisible_ms
    )
    answer = await peer.call(Code.CHANGE_MESSAGE_INVISIBLETIME, header)
    assert answer.code == 0, answer.remark
    changed = answer.header(ChangeInvisibleTimeResponseHeader)
    assert changed.pop_time == handle.pop_time
    return handle._replace(invisible_ms=changed.invisible_ms)


def bodies(taken: list[Popped]) -> list[int]:
    return [int(each.body) for each in taken]


@in_virtual_time
async def test_an_orderly_group_gets_nothing_of_a_queue_while_messages_are_in_flight(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send(peer, 9, 1)
        long = {"order": True, "invisible_ms": 20_000}
        _, first = await pop(peer, count=3, attempt_id="a", **long)
        assert bodies(first) == [0, 1, 2]
        assert {each.handle.revive_queue for each in first} == {999}
        assert await pop(peer, order=True, attempt_id="b") == (ResponseCode.POLLING_TIMEOUT, [])
        # A client that repeats its request, as the answer was lost, gets the same messages.
        await trio.sleep(0.005)  # handles of one millisecond are the same
        _, again = await pop(peer, count=3, attempt_id="a", **long)
        assert bodies(again) == [0, 1, 2]
        for each in again[:2]:
            await acknowledge(peer, each)
        late = AckMessageHeader("G", "T", 0, first[2].handle.encode(), 2)
        assert (await peer.call(Code.ACK_MESSAGE, late)).code == 0  # of the lost answer: no effect
        assert await pop(peer, order=True) == (ResponseCode.POLLING_TIMEOUT, [])
        await change(peer, again[2], 3_000)
        begun = time.time()
        _, third = await pop(peer, count=3, poll_ms=10_000, **long)
        assert time.time() - begun > 2
        assert bodies(third) == [2, 3, 4]
        # The next ones come as soon as the last one in flight is acknowledged.
        found: list[list[int]] = []

        async def wait() -> None:
            _, last = await pop(peer, order=True, poll_ms=10_000, invisible_ms=8_000)
            found.append(bodies(last))

        with trio.fail_after(8):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(0.2)
                for each in (third[1], third[2], third[0]):
                    await acknowledge(peer, each)
        assert found == [[5, 6, 7, 8]]
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:  # the table is kept
        assert await pop(peer, order=True) == (ResponseCode.POLLING_TIMEOUT, [])
        _, again = await pop(peer, order=True, poll_ms=20_000)
        assert bodies(again) == [5, 6, 7, 8]


def held_pops(monkeypatch: pytest.MonkeyPatch) -> list[HeldPop]:
    """Return a list that gets every pop that begins to wait."""
    held: list[HeldPop] = []
    hold = HeldPops.hold
    monkeypatch.setattr(HeldPops, "hold", lambda pops, one: [held.append(one), hold(pops, one)][1])
    return held


async def test_a_pop_that_waits_hears_that_its_ordered_queue_is_free_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pops(monkeypatch)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send(peer, 1, 1)
        _, (first,) = await pop(peer, order=True, invisible_ms=60_000)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    _, again = await pop(peer, order=True, poll_ms=30_000)
                    assert bodies(again) == [0]

                nursery.start_soon(wait)
                await until(lambda: bool(held))
                await change(peer, first, 10)


async def test_messages_that_come_together_wake_as_many_pops_as_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pops(monkeypatch)
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        found: list[bytes] = []

        async def wait() -> None:
            _, taken = await pop(peer, count=2, poll_ms=30_000, invisible_ms=60_000)
            found.extend(each.body for each in taken)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait)
                await until(lambda: len(held) == 3)
                body = encode_batch((0, b"%d" % number, b"") for number in range(6))
                await peer.send("T", body, code=Code.SEND_BATCH_MESSAGE, batch=True)
        assert sorted(found) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@in_virtual_time
async def test_an_orderly_group_does_not_get_acknowledged_messages_again(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send(peer, 5, 1)
        _, taken = await pop(peer, count=4, order=True)
        await acknowledge(peer, taken[1])
        await acknowledge(peer, taken[3])
        _, again = await pop(peer, order=True, poll_ms=5_000)
        assert bodies(again) == [0, 2, 4]
        _, again = await pop(peer, order=True, poll_ms=5_000)
        assert bodies(again) == [0, 2, 4]
        for each in again:
            await acknowledge(peer, each)
        assert await pop(peer, order=True) == (ResponseCode.POLLING_TIMEOUT, [])


@in_virtual_time
async def test_a_topic_that_is_made_again_is_popped_from_its_start(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        await send(peer, 5, 1)
        assert len((await pop(peer))[1]) == 5
        _, again = await pop(peer, poll_ms=10_000)
        assert len(again) == 5  # the retry topic exists
        await peer.call(Code.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T"))
        await peer.create_topic("T", 1)
        await send(peer, 3, 1)
        _, taken = await pop(peer, invisible_ms=30_000)
        assert bodies(taken) == [0, 1, 2]
        # The check points of the old topic bring nothing of the new one.
        assert await drain(peer, 4) == []


@in_virtual_time
async def test_a_filter_that_passes_thousands_of_messages_finds_the_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        for number in range(3_000):
            await peer.send("T", b"%d" % number, properties={"TAGS": "a"})
        await peer.send("T", b"wanted", properties={"TAGS": "b"})
        with trio.fail_after(5):
            _, taken = await pop(peer, expression="b", poll_ms=20_000)
        assert [each.body for each in taken] == [b"wanted"]


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"revive_queue_id": 5_000_000}, "revive queue 5000000 does not exist"),
        ({"pop_time": 1 << 60}, "which no pop has promised"),
        ({"bits": offset_bits(0, range(33))}, "more than 32 messages"),
        ({"bits": "?"}, "is not base64"),
    ],
)
async def test_batches_that_no_client_of_a_pop_sends(
    tmp_path: Path, changes: dict[str, Any], remark: str
) -> None:
    values: dict[str, Any] = {
        "consumer_group": "G",
        "topic": "T",
        "start_offset": 0,
        "queue_id": 0,
        "revive_queue_id": 0,
        "pop_time": int(time.time() * 1000),
        "invisible_ms": 1000,
        "bits": offset_bits(0, [0]),
        **changes,
    }
    async with running_broker(tmp_path) as ready, peer_of(ready) as peer:
        await peer.create_topic("T", 1)
        body = BatchAckBody(broker_name="broker-a", acks=[BatchAck(**values)]).encode()
        answer = await peer.call(Code.BATCH_ACK_MESSAGE, None, body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert remark in (answer.remark or ""), answer.remark
        never = ReceiptHandle(0, int(time.time() * 1000), 1000, 999, NORMAL, "broker-a", 0, 0)
        header = AckMessageHeader("Unknown", "T", 0, never.encode(), 0)
        answer = await peer.call(Code.ACK_MESSAGE, header)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
