"""An object of the SDK that is called from another loop than its own says so; it used to hang its
caller and to end its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from threaded_cluster import cluster_in_a_thread

from triomq import (
    HandlerInvalid,
    Message,
    NotRunning,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    aio,
    sync,
)
from triomq.testing import InProcessCluster

Call = Callable[[Any], Awaitable[object]]
CALLS: dict[str, tuple[type[Any], dict[str, object], Call]] = {
    "send": (Producer, {}, lambda producer: producer.send("T", b"x")),
    "queues": (Producer, {}, lambda producer: producer.queues("T")),
    "poll": (PullConsumer, {"subscriptions": "T"}, lambda consumer: consumer.poll()),
    "commit": (PullConsumer, {"subscriptions": "T"}, lambda consumer: consumer.commit()),
    "take": (PushConsumer, {"subscriptions": "T"}, lambda consumer: consumer.take()),
    "receive": (SimpleConsumer, {"subscriptions": "T"}, lambda consumer: consumer.receive()),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_from_elsewhere_is_refused_and_the_object_goes_on(
    triomq_cluster: InProcessCluster, name: str
) -> None:
    await triomq_cluster.create_topic("T", queues=1)
    kind, settings, call = CALLS[name]
    address = triomq_cluster.namesrv_address

    async def elsewhere(target: Any) -> None:
        with trio.fail_after(5):
            await call(target)

    async def under_asyncio(target: Any) -> None:
        await asyncio.wait_for(call(target), 5)

    async with kind(address, group="g", **settings) as target:
        for run in (
            lambda: trio.run(elsewhere, target),
            lambda: asyncio.run(under_asyncio(target)),
        ):
            with pytest.raises(NotRunning, match=r"trio\.from_thread\.run"):
                await trio.to_thread.run_sync(run)
        assert target.client_id in (await trio.to_thread.run_sync(lambda: target.client_id))
        if kind is Producer:
            await target.send(Message(topic="T", body=b"x"))


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with cluster_in_a_thread(topic="T") as address:
        yield address


async def started(kind: type[Any], namesrv: str, **settings: object) -> Any:
    return await kind(namesrv, group="g", **settings).start()


@pytest.mark.parametrize("name", CALLS)
def test_an_object_that_outlives_its_asyncio_loop_says_so(namesrv: str, name: str) -> None:
    kind, settings, call = CALLS[name]
    other = getattr(aio, kind.__name__)
    target = asyncio.run(started(other, namesrv, **settings))

    async def again() -> None:
        for _ in range(2):
            with pytest.raises(NotRunning, match="in another asyncio loop, which is closed"):
                await call(target)
        with pytest.raises(NotRunning, match="another asyncio loop"):
            await target.start()
        await target.stop()

    async def under_trio() -> None:
        with pytest.raises(NotRunning, match=f"in Trio use triomq.{kind.__name__}"):
            await call(target)
        with pytest.raises(NotRunning, match=f"in Trio use triomq.{kind.__name__}"):
            await other(namesrv, group="g", **settings).start()

    trio.run(under_trio)
    asyncio.run(again())


def test_handlers_of_a_closed_loop_end_their_consumer_and_make_no_dead_letters(
    namesrv: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    async def handle(message: object) -> None:
        called.append(message)

    consumer = asyncio.run(
        started(aio.PushConsumer, namesrv, subscriptions="T", consume_from="first", handler=handle)
    )
    with sync.Producer(namesrv, group="p") as producer:
        producer.send("T", b"x")

    async def stop() -> None:
        with pytest.raises(HandlerInvalid, match="loop in which handlers run is closed"):
            await asyncio.wait_for(consumer.stop(), 30)

    consumer._portal._thread.join(30)
    assert "has ended: the asyncio loop in which handlers run is closed" in caplog.text
    asyncio.run(stop())
    assert not called
    with sync.PushConsumer(namesrv, group="g", subscriptions="T") as later:
        (message,) = later.take(timeout=30)
        assert (message.body, message.reconsume_times) == (b"x", 0)
        message.ack()


async def test_once_of_asyncio_is_refused_in_trio() -> None:
    store: Any = SimpleNamespace(lease=60.0, claim=None)

    @aio.once(store)
    async def handle(message: object) -> None: ...

    with pytest.raises(HandlerInvalid, match=r"in Trio use triomq\.once"):
        await handle(None)  # type: ignore[arg-type]


async def test_the_blocking_interface_is_refused_in_trio() -> None:
    with pytest.raises(NotRunning, match=r"use triomq\.Producer, or call it in a thread"):
        sync.Producer("127.0.0.1:1", group="g").start()


def test_the_blocking_interface_warns_in_asyncio_once(
    namesrv: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with sync.Producer(namesrv, group="p") as producer:
            producer.queues("T")
            producer.queues("T")

    monkeypatch.setattr("builtins.get_ipython", None, raising=False)
    asyncio.run(main())
    assert not caplog.records
    monkeypatch.undo()
    asyncio.run(main())
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "triomq.sync.Producer stops the asyncio loop that calls it" in record.message
