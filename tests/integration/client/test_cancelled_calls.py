"""Each public call that waits, cancelled once and twice at each of its checkpoints, in the three
interfaces: the object goes on, no call is left behind, and what was there is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel
from threaded_cluster import cluster_in_a_thread

import triomq
from triomq import (
    CallTimeout,
    Message,
    aio,
    sync,
)

STEPS = 30
"""More loop turns than any call takes here, of which some take many and are cancelled in these."""

READS = {"subscriptions": "T", "consume_from": "first"}
BODIES = {b"%d" % number for number in range(24)}
TRANSACTIONS = {"check": lambda message: triomq.TransactionOutcome.COMMIT}


async def _transaction(producer: Any) -> None:
    async with producer.transaction("Other", b"x"):
        pass


def _message() -> Message:
    return Message(topic="Other", body=b"x")


PRODUCER_CALLS: dict[str, Callable[[Any], Any]] = {
    "send": lambda producer: producer.send("Other", b"x"),
    "send_oneway": lambda producer: producer.send_oneway("Other", b"x"),
    "send_batch": lambda producer: producer.send_batch([_message(), _message()]),
    "send_many": lambda producer: producer.send_many([_message(), _message()]),
    "queues": lambda producer: producer.queues("Other"),
}
PULL_CALLS: dict[str, Callable[[Any], Any]] = {
    "commit": lambda consumer: consumer.commit(),
    "queues": lambda consumer: consumer.queues("T"),
    "max_offset": lambda consumer: consumer.max_offset(_queue(consumer)),
    "committed": lambda consumer: consumer.committed(_queue(consumer)),
}
ADMIN_CALLS: dict[str, Callable[[Any], Any]] = {
    "topics": lambda admin: admin.topics(),
    "create_topic": lambda admin: admin.create_topic("Made", queues=1),
    "groups": lambda admin: admin.groups(),
}


def _queue(consumer: Any) -> triomq.MessageQueue:
    assigned = consumer.assignment
    return assigned[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with cluster_in_a_thread(topic="T") as address:
        with sync.Admin(address) as admin, sync.Producer(address, group="p") as producer:
            admin.create_topic("Other", queues=1)
            for body in BODIES:
                producer.send("T", body)
        yield address


async def in_asyncio(call: Callable[[], Awaitable[Any]], keep: Callable[[Any], None]) -> None:
    """Cancel a call after each number of turns, once and then in each turn until it ends."""
    for step in range(STEPS):
        for often in (False, True):
            task = asyncio.ensure_future(call())
            for _ in range(step):
                await asyncio.sleep(0)
            if step % 2:  # a turn of this loop is shorter than one of Trio's
                await asyncio.sleep(step * 1e-4)
            task.cancel()
            while often and not task.done():
                await asyncio.sleep(0)
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                keep(await task)


async def in_trio(call: Callable[[], Awaitable[Any]], keep: Callable[[Any], None]) -> None:
    """Cancel a call at each of its turns; in Trio a cancelled scope cancels it again and again."""
    for step in range(STEPS):
        async with trio.open_nursery() as nursery:

            async def run(scope: trio.CancelScope) -> None:
                with scope:
                    keep(await call())

            scope = trio.CancelScope()
            nursery.start_soon(run, scope)
            for _ in range(step):
                await trio.lowlevel.checkpoint()
            scope.cancel()


async def consumed(call: Callable[[], Awaitable[Any]], found: set[bytes]) -> None:
    """Call, uncancelled, until all bodies were found."""
    while found != BODIES:
        found |= {message.body for message in await call()}


@pytest.mark.parametrize("interface", ["trio", "asyncio"])
@pytest.mark.parametrize(
    ("kind", "calls"),
    [("Producer", PRODUCER_CALLS), ("PullConsumer", PULL_CALLS), ("Admin", ADMIN_CALLS)],
)
def test_a_call_that_is_cancelled_leaves_its_object_as_it_was(
    namesrv: str, interface: str, kind: str, calls: dict[str, Callable[[Any], Any]]
) -> None:
    module: Any = aio if interface == "asyncio" else triomq
    cancelled: Any = in_asyncio if interface == "asyncio" else in_trio
    settings: dict[str, Any] = {
        "Producer": {"group": "p", **TRANSACTIONS},
        "PullConsumer": {"group": f"pull-{interface}", **READS},
        "Admin": {},
    }[kind]

    async def main() -> None:
        async with getattr(module, kind)(namesrv, **settings) as target:
            if kind == "PullConsumer":
                await target.poll()
            for call in calls.values():
                await cancelled(lambda call=call: call(target), lambda _: None)
                await call(target)
            if kind == "Producer":
                await cancelled(lambda: _transaction(target), lambda _: None)
                await _transaction(target)
                await target.send("Other", b"last")
            if kind == "PullConsumer" and interface == "asyncio":
                assert not target._portal._calls

    asyncio.run(main()) if interface == "asyncio" else trio.run(main)


@pytest.mark.parametrize("interface", ["trio", "asyncio"])
@pytest.mark.parametrize("kind", ["PullConsumer", "PushConsumer", "SimpleConsumer"])
def test_messages_of_cancelled_calls_come_to_later_ones(
    namesrv: str, interface: str, kind: str
) -> None:
    module: Any = aio if interface == "asyncio" else triomq
    cancelled: Any = in_asyncio if interface == "asyncio" else in_trio
    found: set[bytes] = set()

    async def main() -> None:
        group = f"{kind}-{interface}"
        async with getattr(module, kind)(namesrv, group=group, **READS) as consumer:
            name = {"PullConsumer": "poll", "PushConsumer": "take"}.get(kind, "receive")
            limits = {"count": 1, "invisible": 300} if name == "receive" else {"max_messages": 1}

            async def call() -> Any:
                return await getattr(consumer, name)(**limits)

            await cancelled(
                call, lambda messages: found.update(message.body for message in messages)
            )
            await consumed(call, found)

    asyncio.run(main()) if interface == "asyncio" else trio.run(main)


def test_a_blocking_call_whose_time_is_over_leaves_its_object_as_it_was(namesrv: str) -> None:
    found: set[bytes] = set()
    with (
        sync.Producer(namesrv, group="p") as producer,
        sync.PullConsumer(namesrv, group="pull-sync", **READS) as consumer,  # type: ignore[arg-type]
    ):
        for microseconds in range(0, 3000, 100):
            limit = microseconds / 1e6
            with contextlib.suppress(CallTimeout):
                producer.send("Other", b"x", timeout=limit)
            found |= {message.body for message in consumer.poll(max_messages=1, timeout=limit)}
            with contextlib.suppress(CallTimeout):
                consumer.commit(timeout=limit)
        while found != BODIES:
            found |= {message.body for message in consumer.poll(timeout=10)}
        assert producer.send("Other", b"last", timeout=10).status is triomq.SendStatus.STORED
        assert not consumer._portal._calls
    assert threading.active_count() < 20
