"""Answers to pulls that arrive after their queue was lost or moved: they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import trio
import trio.testing

from triomq.client.core.config import ConsumerSettings
from triomq.client.core.session import Session
from triomq.client.receiving.allocation import allocate_average
from triomq.client.receiving.fetcher import Fetcher
from triomq.client.receiving.member_spec import MemberSpec
from triomq.client.receiving.offsets import ConsumeFrom, StartPoint
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.receiving.subscribing import make_subscriptions
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.protocol.command import Command, request, response_to
from triomq.remoting.protocol.headers.pull import PullMessageHeader, PullMessageResponseHeader
from triomq.remoting.protocol.record import encode_record

QUEUE = MessageQueue("T", "a", 0)
HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])


class OneBroker:
    """A session whose broker answers the first pull with ``answer``.

    ``meanwhile`` is called when the answer is there and the pull task has not run yet.
    """

    namespace = None

    def __init__(self, answer: Command, meanwhile: Callable[[], object]) -> None:
        self.routes = self
        self.heartbeats = self
        self.answer = answer
        self.meanwhile = meanwhile
        self.pulls: list[int] = []

    def any_address(self, name: str, broker_id: int = 0) -> str:
        return "a:1"

    async def ensure(self, address: str) -> None:
        pass

    def may_have_forgotten(self, address: str) -> bool:
        return False

    async def invoke(self, address: str, command: Command, timeout: float) -> Command:
        await trio.lowlevel.checkpoint()
        self.pulls.append(command.header(PullMessageHeader).queue_offset)
        if len(self.pulls) > 1:
            await trio.sleep_forever()
        self.meanwhile()
        return self.answer


def answer(code: int, next_offset: int, body: bytes = b"") -> Command:
    header = PullMessageResponseHeader(
        suggested_broker_id=0, next_begin_offset=next_offset, min_offset=0, max_offset=900
    )
    return response_to(request(RequestCode.PULL_MESSAGE), code, header, body=body)


def message(offset: int) -> bytes:
    return encode_record(
        topic="T", queue_id=0, queue_offset=offset, log_offset=0, body=b"x", properties=b"",
        born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST,
    )  # fmt: skip


def fetcher_of(
    broker: OneBroker, deliver: Callable[[list[ReceivedMessage]], None], nursery: trio.Nursery
) -> Fetcher:
    spec = MemberSpec(
        group="g",
        subscriptions=make_subscriptions("T"),
        start=StartPoint(ConsumeFrom.LAST),
        allocate=allocate_average,
        deliver=deliver,
        sends_back=None,
    )
    return Fetcher(cast("Session", broker), ConsumerSettings(), spec, nursery)


@pytest.mark.parametrize(
    "late",
    [answer(ResponseCode.PULL_OFFSET_MOVED, 450), answer(0, 501, message(500))],
    ids=["offset moved", "message"],
)
@pytest.mark.parametrize("how", ["restarted", "lost", "leaving"])
async def test_a_late_answer_is_dropped(late: Command, how: str) -> None:
    delivered: list[list[ReceivedMessage]] = []
    async with trio.open_nursery() as nursery:

        def meanwhile() -> None:
            if how == "restarted":
                fetcher.restart(QUEUE, 700, paused=False)
            elif how == "lost":
                fetcher.drop(QUEUE)
            else:
                fetcher.assignments[QUEUE].leave()

        broker = OneBroker(late, meanwhile)
        fetcher = fetcher_of(broker, delivered.append, nursery)
        before = fetcher.take(QUEUE, 500, 500)
        await trio.testing.wait_all_tasks_blocked()
        assert delivered == []
        now = fetcher.assignments.get(QUEUE)
        if how == "restarted":
            assert now is not None
            assert (now.held.position, now.lost, broker.pulls) == (700, False, [500, 700])
        else:
            assert now is (before if how == "leaving" else None)
            assert (before.held.position, broker.pulls) == (500, [500])
        nursery.cancel_scope.cancel()


async def test_after_a_stop_queues_are_moved_but_not_pulled() -> None:
    async with trio.open_nursery() as nursery:
        broker = OneBroker(answer(0, 501, message(500)), lambda: None)
        fetcher = fetcher_of(broker, lambda messages: None, nursery)
        fetcher.take(QUEUE, 500, 500)
        fetcher.stop()
        moved = fetcher.restart(QUEUE, 2, paused=False)
        assert fetcher.assignments == {QUEUE: moved}
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks
        assert broker.pulls == []
