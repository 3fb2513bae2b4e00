"""What the Trio, blocking and asyncio interfaces have in common, against a real cluster.

That is: messages, taking, running, watching, administration.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Iterator

import pytest
import trio

import triomq
from triomq import (
    ClientSettings,
    ConsumerSettings,
    Message,
    MessageView,
    NotRunning,
    TopicInvalid,
    aio,
    sync,
)
from triomq.client.core.errors import CallTimeout, SettingsError

QUICK = ConsumerSettings(
    retry_delay=0.05, client=ClientSettings(route_interval=0.1, shutdown_timeout=2)
)


def send_numbers(namesrv: str, count: int, queue: int | None = None) -> None:
    with sync.Producer(namesrv, group="jobs") as producer:
        for number in range(count):
            producer.send("Numbers", b"%d" % number, queue=queue)


def facts(message: MessageView) -> dict[str, object]:
    """Return everything that a view shows; written once, for messages of each interface."""
    names = [
        name
        for name, value in inspect.getmembers(MessageView)
        if isinstance(value, property) and not name.startswith("_")
    ]
    copy = message.copy_to("Archive")
    return {name: getattr(message, name) for name in names} | {
        "copy": (copy.topic, copy.body, copy.tag, copy.keys, dict(copy.properties), copy.flag)
    }


@pytest.mark.feature(191, 192)
def test_code_that_only_reads_takes_a_message_of_each_interface(namesrv: str) -> None:
    body = bytes(10_000)  # travels compressed
    with sync.Producer(namesrv, group="jobs") as producer:
        receipt = producer.send(
            "Numbers",
            body,
            tag="paid",
            keys=["k-1", "k-2"],
            properties={"shop": "7"},
            flag=5,
            timeout=5,
        )
    seen: list[dict[str, object]] = []

    async def with_trio() -> None:
        async with triomq.PushConsumer(
            namesrv, group="one", subscriptions="Numbers", consume_from="first"
        ) as pushes:
            seen.append(facts(await anext(pushes)))
        async with triomq.PullConsumer(
            namesrv, group="two", subscriptions="Numbers", consume_from="first"
        ) as pulls:
            seen.append(facts(await anext(pulls)))

    async def with_asyncio() -> None:
        async with aio.PushConsumer(
            namesrv, group="three", subscriptions="Numbers", consume_from="first"
        ) as pushes:
            seen.append(facts(await anext(pushes)))
        async with aio.PullConsumer(
            namesrv, group="four", subscriptions="Numbers", consume_from="first"
        ) as pulls:
            seen.append(facts(message := await anext(pulls)))
            assert isinstance(message, aio.ReceivedMessage)

    trio.run(with_trio)
    asyncio.run(with_asyncio())
    with sync.PushConsumer(
        namesrv, group="five", subscriptions="Numbers", consume_from="first"
    ) as pushes:
        seen.append(facts(next(pushes)))
    with sync.PullConsumer(
        namesrv, group="six", subscriptions="Numbers", consume_from="first"
    ) as pulls:
        seen.append(facts(message := next(pulls)))
        assert isinstance(message, sync.ReceivedMessage)
    # A message of a pull consumer counts as settled.
    unlike = {"settled", "group"}
    assert [{name: value for name, value in one.items() if name not in unlike} for one in seen] == [
        {name: value for name, value in seen[0].items() if name not in unlike}
    ] * 6
    assert seen[0]["message_id"] == receipt.message_id
    assert (seen[0]["body"], seen[0]["tag"], seen[0]["keys"], seen[0]["flag"]) == (
        body,
        "paid",
        ("k-1", "k-2"),
        5,
    )
    assert (seen[0]["queue"], seen[0]["queue_offset"], seen[0]["reconsume_times"]) == (
        receipt.queue,
        receipt.queue_offset,
        0,
    )
    assert seen[0]["copy"] == ("Archive", body, "paid", ("k-1", "k-2"), {"shop": "7"}, 5)


@pytest.mark.feature(192)
def test_blocking_take(namesrv: str) -> None:
    with sync.PushConsumer(
        namesrv, group="g", subscriptions="Numbers", consume_from="first", settings=QUICK
    ) as consumer:
        consumer.wait_assigned(timeout=10)
        assert consumer.take(timeout=0.05) == []
        with pytest.raises(SettingsError, match="max_messages must be 1"):
            consumer.take(max_messages=0)
        send_numbers(namesrv, 10, queue=0)
        taken: list[sync.ReceivedMessage] = []
        while len(taken) < 10:
            some = consumer.take(max_messages=3, timeout=10)
            assert 1 <= len(some) <= 3
            taken += some
        assert [int(message.body) for message in taken] == list(range(10))
        assert all(message.ack() for message in taken)
        assert consumer.statistics().unsettled == 0


@pytest.mark.feature(192)
def test_in_order_the_next_message_is_taken_when_the_last_is_settled(namesrv: str) -> None:
    send_numbers(namesrv, 3, queue=0)
    with sync.PushConsumer(
        namesrv,
        group="g",
        subscriptions="Numbers",
        consume_from="first",
        ordered=True,
        settings=QUICK,
    ) as consumer:
        for number in range(3):
            (message,) = consumer.take(timeout=20)
            assert int(message.body) == number
            assert consumer.take(timeout=0.05) == []
            assert message.ack()


@pytest.mark.feature(191)
def test_take_under_asyncio_loses_nothing_when_cancelled(namesrv: str) -> None:
    """The messages are there already, but a busy loop sees the cancellation first."""
    send_numbers(namesrv, 6, queue=0)

    async def main() -> None:
        async with aio.PushConsumer(
            namesrv, group="g", subscriptions="Numbers", consume_from="first", settings=QUICK
        ) as consumer:
            waiting = asyncio.ensure_future(consumer.take(max_messages=4))
            await asyncio.sleep(0)
            time.sleep(1)  # noqa: ASYNC251 — meanwhile the other thread has fetched them
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            taken: list[aio.ReceivedMessage] = []
            async with asyncio.timeout(20):
                while len(taken) < 6:
                    some = await consumer.take(max_messages=4)
                    assert 1 <= len(some) <= 4
                    taken += some
            assert [int(message.body) for message in taken] == list(range(6))

    asyncio.run(main())


@pytest.mark.feature(192)
@pytest.mark.parametrize("batches", [False, True])
def test_blocking_run_ends_with_the_consumer(namesrv: str, batches: bool) -> None:
    """``run`` and ``run_batches`` handle messages in worker threads until another thread stops the
    consumer.
    """
    send_numbers(namesrv, 6, queue=0)
    seen: list[int] = []
    sizes: list[int] = []
    failed: set[int] = set()
    done = threading.Event()

    def handle(message: sync.ReceivedMessage) -> None:
        number = int(message.body)
        if number == 3 and number not in failed:
            failed.add(number)
            message.retry(1)
            return
        seen.append(number)
        if len(set(seen)) == 6:
            done.set()

    def handle_batch(messages: list[sync.ReceivedMessage]) -> None:
        sizes.append(len(messages))
        for message in messages:
            handle(message)

    outcome: list[object] = []
    with sync.PushConsumer(
        namesrv, group="g", subscriptions="Numbers", consume_from="first", settings=QUICK
    ) as consumer:
        with pytest.raises(SettingsError, match="must be a plain function"):
            consumer.run(asyncio.sleep, timeout=5)
        with pytest.raises(CallTimeout):
            consumer.run_batches(time.sleep, timeout=0) if batches else consumer.run(
                time.sleep, timeout=0
            )

        def run() -> None:
            outcome.append(
                consumer.run_batches(handle_batch, batch_max=2)
                if batches
                else consumer.run(handle, concurrency=2)
            )

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert done.wait(20)
    thread.join(20)
    assert outcome == [None]
    assert set(seen) == set(range(6))
    assert not batches or max(sizes) == 2
    with pytest.raises(NotRunning, match="not running"):
        sync.PushConsumer(namesrv, group="g", subscriptions="Numbers").run(handle)


@pytest.mark.feature(191)
@pytest.mark.parametrize("batches", [False, True])
def test_run_under_asyncio_ends_when_it_is_cancelled_or_stopped(
    namesrv: str, batches: bool
) -> None:
    seen: list[int] = []
    sizes: list[int] = []
    send_numbers(namesrv, 6, queue=0)

    async def main() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        async def handle(message: aio.ReceivedMessage) -> None:
            assert asyncio.get_running_loop() is loop
            seen.append(int(message.body))
            if len(set(seen)) == 6:
                done.set()
            await asyncio.sleep(0)

        async def handle_batch(messages: list[aio.ReceivedMessage]) -> None:
            sizes.append(len(messages))
            for message in messages:
                await handle(message)

        async def hang(what: object) -> None:
            await asyncio.sleep(3600)

        async with aio.PushConsumer(
            namesrv, group="g", subscriptions="Numbers", consume_from="first", settings=QUICK
        ) as consumer:

            def run(handler, single):  # type: ignore[no-untyped-def]
                return (
                    consumer.run_batches(handler, batch_max=2)
                    if batches
                    else consumer.run(single, concurrency=2)
                )

            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await run(hang, hang)
            running = asyncio.ensure_future(run(handle_batch, handle))
            await asyncio.wait_for(done.wait(), 20)
            assert not running.done()
        assert await running is None

    asyncio.run(main())
    assert set(seen) == set(range(6))
    assert not batches or max(sizes) == 2


@pytest.mark.feature(191, 192)
def test_watched_queues_report_changes(namesrv: str) -> None:
    """The end is reported by ``NotRunning``, as in Trio."""

    async def with_asyncio() -> list[int]:
        async with (
            aio.Admin(namesrv) as admin,
            aio.PullConsumer(namesrv, group="g", settings=QUICK) as consumer,
        ):
            with pytest.raises(TopicInvalid):
                consumer.watch_queues("no.dots")
            watch = consumer.watch_queues("Numbers")
            counts = [len(await anext(watch))]
            await admin.create_topic("Numbers", queues=4)
            async with asyncio.timeout(20):
                counts.append(len(await anext(watch)))
        with pytest.raises(NotRunning):
            await anext(watch)
        return counts

    assert asyncio.run(with_asyncio()) == [2, 4]
    with (
        sync.Admin(namesrv) as admin,
        sync.PullConsumer(namesrv, group="g", settings=QUICK) as consumer,
    ):
        with pytest.raises(TopicInvalid):
            consumer.watch_queues("no.dots")
        watch = consumer.watch_queues("Numbers")
        counts = [len(next(watch))]
        admin.create_topic("Numbers", queues=6, timeout=10)
        counts.append(len(next(watch)))
    with pytest.raises(NotRunning):
        next(watch)
    assert counts == [4, 6]


@pytest.mark.feature(191, 192)
def test_offsets_are_committed_in_the_background(namesrv: str) -> None:
    with sync.PullConsumer(namesrv, group="g", auto_commit=False) as consumer:
        queue = consumer.queues("Numbers")[0]
        consumer.assign([queue])
        consumer.commit_nowait({queue: 0})
        assert not consumer.auto_commit
    with sync.PullConsumer(namesrv, group="g") as consumer:
        assert consumer.committed(consumer.queues("Numbers")[0], timeout=5) == 0

    async def main() -> int | None:
        async with aio.PullConsumer(namesrv, group="h", auto_commit=False) as consumer:
            queue = (await consumer.queues("Numbers"))[0]
            await consumer.assign([queue])
            await consumer.commit_nowait({queue: 0})
        async with aio.PullConsumer(namesrv, group="h") as consumer:
            return await consumer.committed(queue)

    assert asyncio.run(main()) == 0


@pytest.mark.feature(191, 192)
def test_send_takes_a_message_and_send_many_reads_its_messages_in_the_caller(namesrv: str) -> None:
    threads: set[int] = set()
    here = threading.get_ident()

    def messages() -> Iterator[Message]:
        for number in range(5):
            threads.add(threading.get_ident())
            yield Message(topic="Numbers", body=b"%d" % number)

    message = Message(topic="Numbers", body=b"x", tag="t")
    with sync.Producer(namesrv, group="jobs") as producer:
        assert producer.send(message, queue=1, timeout=5).queue.queue_id == 1
        assert len(producer.send_many(messages(), window=2, timeout=10)) == 5
        bad = [message, Message(topic="Numbers", body=bytes(5_000_000))]
        with pytest.raises(triomq.MessageInvalid) as failed:
            producer.send_many(bad)
        assert failed.value.__notes__ == ["1 messages of this send_many are stored"]

    async def main() -> None:
        async with aio.Producer(namesrv, group="jobs") as producer:
            assert (await producer.send(message, queue=1)).queue.queue_id == 1
            assert len(await producer.send_many(messages(), window=2)) == 5

    asyncio.run(main())
    assert threads == {here}


@pytest.mark.feature(191, 192)
def test_administration_without_trio(namesrv: str) -> None:
    with sync.Admin(namesrv, timeout_seconds=3) as admin:
        admin.create_topic("Made", queues=3)
        assert len(admin.queues("Made", timeout=5)) == 3
        assert admin.namesrv_addresses == (namesrv,)
        with pytest.raises(triomq.RouteNotFound):
            admin.route("NoSuchTopic")
        admin.limit_to(10)
    with pytest.raises(NotRunning):
        admin.topics()

    async def main() -> None:
        async with aio.Admin(namesrv) as admin:
            assert "Made" in await admin.topics()
            assert [broker.name for broker in await admin.brokers(masters_only=True)] == [
                "broker-a"
            ]

    asyncio.run(main())
