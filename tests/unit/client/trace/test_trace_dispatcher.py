"""When trace records leave, and that nothing waits for them: a sender of the test, virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from triomq.client.core.config import ProducerSettings
from triomq.client.core.errors import SendFailed
from triomq.client.core.trace_records import RecallRecord, decode_trace
from triomq.client.sending.encoding import OutgoingMessage
from triomq.client.sending.sender import Sender
from triomq.client.trace.dispatcher import BUFFERED_MAX, SEND_SECONDS, TraceDispatcher
from triomq.remoting.protocol.ids import UniqueIds


@attrs.define(eq=False)
class FakeSender:
    """Notes what is sent and when; takes ``seconds``, or fails while ``error`` is set."""

    seconds: float = 0.0
    error: Exception | None = None
    ids: UniqueIds = attrs.field(factory=lambda: UniqueIds(bytes(4), 1, 1))
    sent: list[tuple[float, list[str]]] = attrs.field(factory=list)

    async def send(self, message: OutgoingMessage) -> None:
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        read = decode_trace(message.body.decode())
        self.sent.append((trio.current_time(), [record.message_id for record in read.records]))


@asynccontextmanager
async def running(sender: FakeSender, seconds: float = SEND_SECONDS) -> AsyncIterator[Any]:
    plain = ProducerSettings(compress_over_bytes=1 << 20)
    dispatcher = TraceDispatcher("Traces", cast("Sender", sender), plain)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.send_waiting)
        yield dispatcher
        nursery.cancel_scope.cancel()  # as the end of a client does: the task is shielded
        dispatcher.close(seconds)


def records(*names: object) -> list[RecallRecord]:
    return [
        RecallRecord(
            timestamp=1, region="R", group="g", topic="T", message_id=str(name), success=True
        )
        for name in names
    ]


async def test_ten_records_leave_at_once_and_fewer_after_five_seconds(
    autojump_clock: MockClock,
) -> None:
    sender = FakeSender()
    began = trio.current_time()
    async with running(sender) as dispatcher:
        await trio.sleep(0.5)
        dispatcher.append(records(*range(9)))
        await trio.sleep(1)
        dispatcher.append(records("tenth"))
        await trio.sleep(1)
        dispatcher.append(records("late"))
        await trio.sleep(5)
        dispatcher.append(records("at the end"))
    assert [round(at - began, 1) for at, _ in sender.sent] == [1.5, 6.5, 7.5]
    assert [len(names) for _, names in sender.sent] == [10, 1, 1]
    assert (dispatcher.sent, dispatcher.dropped) == (12, 0)


async def test_a_sender_that_hangs_delays_the_end_by_five_seconds_at_most(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sender = FakeSender(seconds=1000)
    began = trio.current_time()
    async with running(sender) as dispatcher:
        dispatcher.append(records(*range(20)))
        await trio.sleep(1)  # the first message is on its way
        dispatcher.append(records(*range(5)))
        assert trio.current_time() - began == pytest.approx(1)
    assert trio.current_time() - began == pytest.approx(1 + SEND_SECONDS)
    assert (dispatcher.sent, dispatcher.dropped) == (0, 25)
    assert "did not leave in time, 25 were dropped" in caplog.text


async def test_records_gather_while_a_message_is_on_its_way(autojump_clock: MockClock) -> None:
    sender = FakeSender(seconds=2)
    async with running(sender, seconds=60) as dispatcher:
        dispatcher.append(records(*range(10)))
        await trio.sleep(1)
        dispatcher.append(records(*range(100)))
    assert [len(names) for _, names in sender.sent] == [10, 100]


async def test_failures_are_logged_once_and_counted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sender = FakeSender(error=SendFailed("Traces", (), reason="the broker is away"))
    async with running(sender) as dispatcher:
        for _ in range(3):
            dispatcher.append(records(*range(10)))
            await trio.sleep(1)
        sender.error = ZeroDivisionError("in an RPC hook")
        dispatcher.append(records(*range(10)))
        await trio.sleep(1)
        sender.error = None
        dispatcher.append(records(*range(10)))
    lines = [record.message for record in caplog.records]
    assert len(lines) == 3
    assert "the broker is away" in lines[0]
    assert "ZeroDivisionError" in lines[1]
    assert "works again; 40 records were dropped" in lines[2]
    assert (dispatcher.sent, dispatcher.dropped) == (10, 40)


async def test_a_full_buffer_is_logged_once_in_a_while(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sender = FakeSender()
    async with running(sender) as dispatcher:
        dispatcher.append(records(*range(BUFFERED_MAX - 1)))
        for _ in range(50):
            dispatcher.append(records("a", "b"))
    assert dispatcher.dropped == 99
    assert dispatcher.sent == BUFFERED_MAX
    lines = [record for record in caplog.records if "is full" in record.message]
    assert len(lines) == 1
