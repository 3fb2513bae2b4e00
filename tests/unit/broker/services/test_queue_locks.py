"""Which member owns a queue, and until when."""

from __future__ import annotations

import trio
import trio.testing

from triomq.broker.services.queue_locks import LIFE_SECONDS, QueueLocks
from triomq.remoting.protocol.bodies.route import MessageQueue

Q = [MessageQueue("T", "b", number) for number in range(3)]


def test_the_first_member_gets_the_lock() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "a", Q[:2], 0.0) == Q[:2]
    assert locks.lock("G", "b", Q, 1.0) == Q[2:]
    assert locks.lock("other group", "b", Q, 1.0) == Q


def test_a_lock_lives_from_its_last_renewal() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", Q[:1], 0.0)
    assert locks.lock("G", "a", Q[:1], LIFE_SECONDS - 1) == Q[:1]
    assert locks.lock("G", "b", Q[:1], LIFE_SECONDS + 1) == []
    assert locks.lock("G", "b", Q[:1], 2 * LIFE_SECONDS - 1) == Q[:1], (
        "a did not renew: b may take it"
    )
    assert locks.lock("G", "a", Q[:1], 2 * LIFE_SECONDS) == []


def test_only_the_owner_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("G", "a", Q, 0.0)
    locks.unlock("G", "b", Q)
    assert locks.lock("G", "b", Q, 1.0) == []
    locks.unlock("G", "a", Q[:1])
    assert locks.lock("G", "b", Q, 1.0) == Q[:1]
    locks.unlock("unknown", "a", Q)


def test_a_group_with_a_live_lock_consumes_in_order() -> None:
    locks = QueueLocks()
    assert not locks.any_alive("G", 0.0)
    locks.lock("G", "a", Q, 0.0)
    assert locks.any_alive("G", LIFE_SECONDS - 0.1)
    assert not locks.any_alive("G", LIFE_SECONDS)


async def test_dead_locks_are_swept(autojump_clock: trio.testing.MockClock) -> None:
    locks = QueueLocks()
    locks.lock("G", "a", Q[:2], 0.0)
    locks.lock("G", "a", Q[2:], 50.0)
    await trio.sleep_until(LIFE_SECONDS + 1)
    await locks.sweep()
    assert list(locks._groups["G"]) == Q[2:]
    await trio.sleep_until(LIFE_SECONDS + 50)
    await locks.sweep()
    assert locks._groups == {}
