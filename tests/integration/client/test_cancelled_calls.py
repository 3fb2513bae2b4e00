"""Each public call that waits, cancelled once and twice at each of its checkpoints, in the three
interfaces: the object goes on, no call is left behind, and what was there is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.lowlevel
from threaded_cluster import cluster_in_a_thread

import triomq
from triomq import CallTimeout, Message, aio, sync
from triomq.client.admin.cleaning import Cleaning

STEPS = 30
"""More loop turns than any call takes here, of which some take many and are cancelled in these."""

READS = {"subscriptions": "T", "consume_from": "first"}
BODIES = {b"%d" % number for number in range(24)}
KEYS = {"a", "b", "c"}
SETTINGS = {"recallMessageEnable": True, "traceTopicEnable": True}
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
TRANSACTIONS = {"check": lambda message: triomq.TransactionOutcome.COMMIT}


async def _transaction(producer: Any) -> None:
    async with producer.transaction("Other", b"x"):
        pass


async def _request(producer: Any) -> None:
    with contextlib.suppress(triomq.ReplyTimeout):
        await producer.request("Other", b"x", timeout=0.01)


async def _recall(producer: Any) -> None:
    await producer.recall(await producer.send("Other", b"x", delay=3600))


async def _settle(consumer: Any, *, hide: bool) -> None:
    for message in await consumer.receive(count=1, invisible=300, timeout=0.2):
        if hide:
            await consumer.change_invisible(message, 300)
        await consumer.ack(message)


async def _resubscribe(consumer: Any) -> None:
    await consumer.subscribe("Other")
    await consumer.unsubscribe("Other")


def _message() -> Message:
    return Message(topic="Other", body=b"x")


PRODUCER_CALLS: dict[str, Callable[[Any], Any]] = {
    "send": lambda producer: producer.send("Other", b"x"),
    "send_oneway": lambda producer: producer.send_oneway("Other", b"x"),
    "send_batch": lambda producer: producer.send_batch([_message(), _message()]),
    "send_many": lambda producer: producer.send_many([_message(), _message()]),
    "queues": lambda producer: producer.queues("Other"),
    "request": _request,
    "recall": _recall,
    "send_in_transaction": lambda producer: producer.send_in_transaction(
        _message(), lambda message, argument: triomq.TransactionOutcome.COMMIT
    ),
}
PULL_CALLS: dict[str, Callable[[Any], Any]] = {
    "commit": lambda consumer: consumer.commit(),
    "queues": lambda consumer: consumer.queues("T"),
    "max_offset": lambda consumer: consumer.max_offset(_queue(consumer)),
    "committed": lambda consumer: consumer.committed(_queue(consumer)),
    "min_offset": lambda consumer: consumer.min_offset(_queue(consumer)),
    "offset_for_time": lambda consumer: consumer.offset_for_time(_queue(consumer), LONG_AGO),
    "subscribe": _resubscribe,
    "seek": lambda consumer: consumer.seek(_queue(consumer), 1),
    "seek_to_end": lambda consumer: consumer.seek_to_end(_queue(consumer)),
    "seek_to_time": lambda consumer: consumer.seek_to_time(_queue(consumer), LONG_AGO),
    "seek_to_begin": lambda consumer: consumer.seek_to_begin(_queue(consumer)),
}
TABLE_CALLS: dict[str, Callable[[Any], Any]] = {
    "latest": lambda consumer: consumer.latest("Keyed"),
    "assign": lambda consumer: _assign(consumer),
}
PUSH_CALLS: dict[str, Callable[[Any], Any]] = {"subscribe": _resubscribe}
SIMPLE_CALLS: dict[str, Callable[[Any], Any]] = {
    "subscribe": _resubscribe,
    "ack": lambda consumer: _settle(consumer, hide=False),
    "change_invisible": lambda consumer: _settle(consumer, hide=True),
}
ADMIN_CALLS: dict[str, Callable[[Any], Any]] = {
    "topics": lambda admin: admin.topics(),
    "create_topic": lambda admin: admin.create_topic("Made", queues=1),
    "update_topic": lambda admin: admin.update_topic("Made", read_queues=2, write_queues=2),
    "route": lambda admin: admin.route("Made"),
    "topic_brokers": lambda admin: admin.topic_brokers("Made"),
    "topic_stats": lambda admin: admin.topic_stats("T"),
    "topic_groups": lambda admin: admin.topic_groups("T"),
    "topic_groups_by_broker": lambda admin: admin.topic_groups_by_broker("T"),
    "set_order_config": lambda admin: admin.set_order_config("Made"),
    "delete_topic": lambda admin: admin.delete_topic("Gone"),
    "update_group": lambda admin: admin.update_group("made", lambda config: config),
    "groups": lambda admin: admin.groups(),
    "consume_stats": lambda admin: admin.consume_stats("made"),
    "consumer_connections": lambda admin: _connections(admin),
    "producer_connections": lambda admin: admin.producer_connections("p", "Other"),
    "cluster": lambda admin: admin.cluster(),
    "brokers": lambda admin: admin.brokers(),
    "missing_brokers": lambda admin: admin.missing_brokers(),
    "leaders": lambda admin: admin.leaders(),
    "queues": lambda admin: admin.queues("T"),
    "max_offset": lambda admin: _of_queue(admin, "max_offset"),
    "min_offset": lambda admin: _of_queue(admin, "min_offset"),
    "offset_by_time": lambda admin: _of_queue(admin, "offset_by_time", 0),
    "address_of": lambda admin: _of_queue(admin, "address_of"),
    "read": lambda admin: _of_queue(admin, "read", 0, count=3),
    "query": lambda admin: admin.query("Keyed", "a"),
    "message_trace": lambda admin: admin.message_trace("a"),
    "statuses": lambda admin: _at_brokers(admin),
}


async def _assign(consumer: Any) -> None:
    await consumer.assign(await consumer.queues("T"))


async def _of_queue(admin: Any, name: str, *arguments: int, **more: int) -> Any:
    return await getattr(admin, name)((await admin.queues("T"))[0], *arguments, **more)


async def _connections(admin: Any) -> None:
    with contextlib.suppress(triomq.BrokerError):  # nobody is in that group
        await admin.consumer_connections("made")


async def _at_brokers(admin: Any) -> None:
    """What asks one broker, by its address."""
    brokers = await admin.brokers()
    address = brokers[0].address
    await admin.statuses(brokers)
    await admin.broker_status(address)
    await admin.topic_config("T", address)
    await admin.group_config("made", address)
    await admin.clean(Cleaning.EXPIRED_QUEUES, [address])
    await admin.message_at(address, 0)


def _queue(consumer: Any) -> triomq.MessageQueue:
    return next(queue for queue in consumer.assignment if queue.topic == "T")


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with cluster_in_a_thread(topic="T", settings=SETTINGS) as address:
        with sync.Admin(address) as admin, sync.Producer(address, group="p") as producer:
            for name in ("Other", "Keyed"):
                admin.create_topic(name, queues=1)
            for key in KEYS:
                producer.send("Keyed", b"x", keys=[key])
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
    [
        ("Producer", PRODUCER_CALLS),
        ("PullConsumer", PULL_CALLS),
        ("PullConsumer", TABLE_CALLS),
        ("PushConsumer", PUSH_CALLS),
        ("SimpleConsumer", SIMPLE_CALLS),
        ("Admin", ADMIN_CALLS),
    ],
    ids=["producer", "pull", "table", "push", "simple", "admin"],
)
def test_a_call_that_is_cancelled_leaves_its_object_as_it_was(
    namesrv: str, interface: str, kind: str, calls: dict[str, Callable[[Any], Any]]
) -> None:
    module: Any = aio if interface == "asyncio" else triomq
    cancelled: Any = in_asyncio if interface == "asyncio" else in_trio
    settings: dict[str, Any] = {"Producer": {"group": "p", **TRANSACTIONS}, "Admin": {}}.get(
        kind, {"group": f"{kind}-calls-{interface}", **READS}
    )
    if calls is TABLE_CALLS:
        settings = {"group": f"table-{interface}"}

    async def main() -> None:
        async with getattr(module, kind)(namesrv, **settings) as target:
            if calls is PULL_CALLS:
                await target.poll()
            for call in [*calls.values(), *([_transaction] if kind == "Producer" else [])]:

                async def alone(call: Callable[[Any], Any] = call) -> None:
                    # A call of asyncio that is cancelled twice does not wait for its end.
                    while interface == "asyncio" and target._portal._calls:
                        await asyncio.sleep(0.001)
                    await call(target)

                await cancelled(alone, lambda _: None)
                await alone()
            if kind == "Producer":
                await target.send("Other", b"last")
                statistics = target.request_statistics()
                if interface == "asyncio":
                    statistics = await statistics
                assert statistics.waiting == 0
            if calls is PULL_CALLS:
                for queue in target.assignment:
                    await target.seek_to_begin(queue)
                await consumed(target.poll, set())
            if calls is TABLE_CALLS:
                assert (await target.latest("Keyed")).keys() == KEYS
            if interface == "asyncio":
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
