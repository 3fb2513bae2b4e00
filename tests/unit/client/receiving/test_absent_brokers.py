"""Queues whose broker is missing from the topic's route: when a round takes them away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from triomq.client.core.config import ConsumerSettings
from triomq.client.receiving.assignment import Assignment
from triomq.client.receiving.process_queue import ProcessQueue, PullLimits
from triomq.client.receiving.rebalance import Rebalancer
from triomq.remoting.protocol.bodies.route import MessageQueue

HERE, AWAY = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 0)
BOTH = ("broker-a", "broker-b")


@attrs.define(eq=False)
class Rounds:
    """A consumer that owns one queue of each broker, and the rounds of its rebalancer."""

    rebalancer: Rebalancer
    clock: trio.testing.MockClock

    def after(self, seconds: float, brokers: tuple[str, ...]) -> tuple[MessageQueue, ...]:
        """Wait, hold a round with these brokers in the route, and return the lost queues."""
        self.clock.jump(seconds)
        share = [queue for queue in (HERE, AWAY) if queue.broker_name in brokers]
        return self.rebalancer._compare("T", brokers, share)[1]


@pytest.fixture
def rounds(mock_clock: trio.testing.MockClock) -> Rounds:
    """Return rounds in which a queue of a missing broker stays owned for ten seconds.

    A test also takes ``mock_clock``, so that waits take no real time.
    """
    owned = {
        queue: Assignment(queue, ProcessQueue(0), PullLimits(1, 1, 1), sends_back=None)
        for queue in (HERE, AWAY)
    }
    nothing: Any = SimpleNamespace()
    fetcher: Any = SimpleNamespace(assignments=owned)
    spec: Any = SimpleNamespace(turns=None)
    settings = ConsumerSettings(absent_broker_timeout=10)
    return Rounds(Rebalancer(nothing, settings, spec, fetcher, nothing), mock_clock)


async def test_queues_of_a_missing_broker_stay_owned_until_the_time_limit(
    rounds: Rounds, mock_clock: trio.testing.MockClock
) -> None:
    assert rounds.after(0, BOTH) == ()
    assert rounds.after(1, ("broker-a",)) == ()
    assert rounds.after(9.5, ("broker-a",)) == ()
    assert rounds.after(1, ("broker-a",)) == (AWAY,)


async def test_a_broker_that_came_back_gets_the_whole_time_limit_again(
    rounds: Rounds, mock_clock: trio.testing.MockClock
) -> None:
    """One round that sees the broker is enough, however short it was there."""
    assert rounds.after(0, ("broker-a",)) == ()
    assert rounds.after(8, BOTH) == ()
    assert rounds.after(1, ("broker-a",)) == ()
    assert rounds.after(9, ("broker-a",)) == ()
    assert rounds.after(2, ("broker-a",)) == (AWAY,)


async def test_queues_of_other_members_are_given_up_at_once(
    rounds: Rounds, mock_clock: trio.testing.MockClock
) -> None:
    """A queue whose broker is in the route is lost at once; one that is being handed over is not
    lost again.
    """
    new = MessageQueue("T", "broker-a", 1)
    assert rounds.rebalancer._compare("T", BOTH, [new, AWAY]) == ((new,), (HERE,))
    rounds.rebalancer.fetcher.assignments[HERE].leave()
    assert rounds.rebalancer._compare("T", BOTH, [AWAY])[1] == ()
