"""The locks that a member of an ordered group takes, and those that it must give back."""

from __future__ import annotations

from typing import Any

import attrs
import trio
import trio.testing

from triomq.client.core.config import ConsumerSettings
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.locks import QueueLocks
from triomq.client.receiving.process_queue import ProcessQueue, PullLimits
from triomq.remoting.protocol.bodies.locks import LockRequest, LockResponse
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.command import Command, response_to

FIRST, SECOND = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@attrs.define(eq=False)
class Broker:
    """A session with one broker, which grants every lock as soon as ``answers`` is set."""

    locked: set[MessageQueue] = attrs.field(factory=set)
    answers: trio.Event = attrs.field(factory=trio.Event)
    unlocks: bool = True
    client_id: str = "member"

    def master_address(self, queue: MessageQueue) -> str:
        return "broker-a:1"

    async def call(self, address: str, command: Command, seconds: float) -> Command:
        queues = LockRequest.decode(bytes(command.body)).queues
        if command.code == RequestCode.UNLOCK_BATCH_MQ:
            if not self.unlocks:
                await trio.sleep_forever()
            self.locked -= set(queues)
            return response_to(command)
        self.locked |= set(queues)
        await self.answers.wait()
        return response_to(command, body=LockResponse(queues).encode())


def member(broker: Any, owned: list[Assignment]) -> QueueLocks:
    return QueueLocks(
        "G", broker, ConsumerSettings(), lambda: owned, lambda queue: None, lambda queue: None
    )


def owner(queue: MessageQueue) -> Assignment:
    return Assignment(queue, ProcessQueue(0), PullLimits(1, 1, 1), sends_back=None)


async def test_a_lock_that_is_not_used_is_given_back() -> None:
    broker, owned = Broker(), list[Assignment]()
    broker.answers.set()
    locks = member(broker, owned)
    async with locks.gaining([FIRST, SECOND]) as granted:
        assert set(granted) == {FIRST, SECOND}
        owned.append(owner(SECOND))
    assert broker.locked == {SECOND}


async def test_a_queue_that_a_renewal_locks_after_its_handover_is_given_back() -> None:
    """Also if the member has gained it before; but not while it gains the queue again."""
    broker, owned = Broker(), list[Assignment]()
    broker.answers.set()
    locks = member(broker, owned)
    async with locks.gaining([FIRST]):
        owned.append(owner(FIRST))
    for gains_again in (True, False):
        broker.answers = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(locks.renew)
            await trio.testing.wait_all_tasks_blocked()
            owned.clear()
            await locks.release([FIRST])
            broker.locked.add(FIRST)  # the renewal came to the broker after the release
            broker.answers.set()
            if gains_again:
                async with locks.gaining([FIRST]):
                    await trio.testing.wait_all_tasks_blocked()
                    owned.append(owner(FIRST))
        assert broker.locked == ({FIRST} if gains_again else set())


async def test_locks_of_a_cancelled_request_are_given_back_at_the_end() -> None:
    broker = Broker()
    locks = member(broker, [])
    async with trio.open_nursery() as nursery:

        async def gain() -> None:
            async with locks.gaining([FIRST]):
                raise AssertionError("the broker did not answer")

        nursery.start_soon(gain)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert broker.locked == {FIRST}
    await locks.release_all()
    assert broker.locked == set()


async def test_a_queue_whose_unlocking_was_cancelled_is_unlocked_at_the_end() -> None:
    broker, owned = Broker(unlocks=False), list[Assignment]()
    broker.answers.set()
    locks = member(broker, owned)
    async with locks.gaining([FIRST]):
        owned.append(owner(FIRST))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(locks.release, [FIRST])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    broker.unlocks = True
    await locks.release_all()
    assert broker.locked == set()
