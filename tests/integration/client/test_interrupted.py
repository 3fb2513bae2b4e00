"""Calls, handlers and subscriptions that are interrupted: nothing is lost or waits for ever."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import trio
from scripted_cluster import pulled, record, scripted_cluster
from serving import until
from threaded_cluster import cluster_in_a_thread

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Handler,
    Message,
    NotRunning,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    aio,
    sync,
)
from triomq.aio.calls import AsyncioLifetime
from triomq.client.core.portal import Portal
from triomq.client.receiving.local_offsets import LocalOffsets, read_offsets
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.codes import RequestCode, ResponseCode
from triomq.remoting.server.requests import Request, Response
from triomq.sync.lifetime import BlockingLifetime

QUICK = ConsumerSettings(
    rebalance_retry=0.05, error_delay=0.05, client=ClientSettings(shutdown_timeout=5)
)


def queue_of(records: list[bytes]):  # type: ignore[no-untyped-def]
    """Answer pulls with these records, one each, then let the client wait."""

    async def play(request: Request) -> Response:
        offset = request.header.queue_offset
        if offset >= len(records):
            await trio.sleep_forever()
        return pulled(ResponseCode.SUCCESS, offset + 1, records[offset])

    return play


async def test_an_answer_that_comes_after_unsubscribe_is_dropped() -> None:
    """The heartbeats with the new subscriptions take a while; pulls of the topic are still waiting
    then.
    """
    async with scripted_cluster() as cluster:
        release, beating = trio.Event(), trio.Event()

        async def late(request: Request) -> Response:
            if request.header.topic != "T":
                await trio.sleep_forever()
            await release.wait()
            return pulled(ResponseCode.SUCCESS, 1, record(0))

        cluster.broker.script[RequestCode.PULL_MESSAGE] = late
        got: list[ReceivedMessage] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message)

        async with PushConsumer(
            cluster.namesrv.address,
            group="g",
            subscriptions=["T", "Other"],
            handler=handle,
            settings=QUICK,
        ) as consumer:
            await until(lambda: cluster.broker.count(RequestCode.PULL_MESSAGE) == 1)
            beat = cluster.broker.script[RequestCode.HEART_BEAT]

            async def slow_beat(request: Request) -> Response:
                beating.set()
                release.set()
                await trio.sleep(0.1)
                return beat(request)  # type: ignore[return-value]

            cluster.broker.script[RequestCode.HEART_BEAT] = slow_beat
            await consumer.unsubscribe("T")
            await until(lambda: not consumer.assignment)
        assert beating.is_set()
        assert got == []


@pytest.mark.parametrize("ordered", [True, False])
async def test_messages_of_a_cancelled_handler_come_again(ordered: bool) -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.PULL_MESSAGE] = queue_of([record(0), record(1)])
        got: list[int] = []

        async def hang(message: ReceivedMessage) -> None:
            got.append(message.queue_offset)
            await trio.sleep_forever()

        async def handle(message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            got.append(message.queue_offset)

        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", ordered=ordered, settings=QUICK
        ) as consumer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, hang)
                await until(lambda: len(got) == (1 if ordered else 2))
                nursery.cancel_scope.cancel()
            got.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consumer.run, handle)
                await until(lambda: sorted(got) == [0, 1])
                nursery.cancel_scope.cancel()


async def test_a_cancelled_block_does_not_hold_an_ordered_queue_for_ever() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.PULL_MESSAGE] = queue_of([record(0), record(1)])
        async with PushConsumer(
            cluster.namesrv.address, group="g", subscriptions="T", ordered=True, settings=QUICK
        ) as consumer:
            first = await anext(consumer)
            with trio.move_on_after(0.01):
                async with first:
                    await trio.sleep_forever()
            with trio.fail_after(5):
                again = await anext(consumer)
                assert again.queue_offset == 0
                assert await again.ack()
                assert (await anext(consumer)).queue_offset == 1


async def test_a_first_subscription_that_failed_can_be_repeated() -> None:
    async with scripted_cluster() as cluster:
        cluster.broker.script[RequestCode.PULL_MESSAGE] = queue_of([record(0)])
        async with PullConsumer(cluster.namesrv.address, group="g", settings=QUICK) as consumer:
            with trio.CancelScope() as scope:
                scope.cancel()
                await consumer.subscribe("T")
            await consumer.subscribe("T")
            with trio.fail_after(5):
                assert [message.queue_offset for message in await consumer.poll()] == [0]


async def test_a_start_that_is_cancelled_at_any_moment_ends() -> None:
    async with scripted_cluster() as cluster:
        for deadline in (0.0, 0.0005, 0.001, 0.002, 0.004):
            with trio.fail_after(20), trio.move_on_after(deadline):
                async with PushConsumer(
                    cluster.namesrv.address, group="g", subscriptions="T", settings=QUICK
                ):
                    await trio.sleep_forever()


async def test_watching_queues_ends_with_an_error_when_the_consumer_stops() -> None:
    async with scripted_cluster() as cluster, trio.open_nursery() as nursery:
        ended = trio.Event()

        async def watch(consumer: PullConsumer) -> None:
            with pytest.raises(NotRunning):
                async for _ in consumer.watch_queues("T"):
                    pass
            ended.set()

        async with PullConsumer(cluster.namesrv.address, group="g") as consumer:
            nursery.start_soon(watch, consumer)
            await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.fail_after(5):
            await ended.wait()


async def test_offset_files_are_written_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triomq.client.receiving import local_offsets

    writing, most = 0, 0
    write = local_offsets.write_offsets

    def watched(path: Path, offsets: dict[MessageQueue, int]) -> None:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        time.sleep(0.02)
        write(path, offsets)
        writing -= 1

    monkeypatch.setattr(local_offsets, "write_offsets", watched)
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets("g", None, 1.0, path=path, known={})  # type: ignore[arg-type]

    class Owned:
        """What the store needs of an assignment."""

        def __init__(self, number: int) -> None:
            self.queue, self.to_store, self.stored = MessageQueue("T", "b", number), number, -1

    owned = [Owned(number) for number in range(4)]
    async with trio.open_nursery() as nursery:
        for one in owned:
            nursery.start_soon(offsets.store, [one])
    assert most == 1
    assert [one.stored for one in owned] == [0, 1, 2, 3]
    assert {queue.queue_id: offset for queue, offset in read_offsets(path).items()} == {
        0: 0,
        1: 1,
        2: 2,
        3: 3,
    }


# -- from outside Trio
# ------------------------------------------------------------------------------------------------


def test_a_poll_that_is_cancelled_too_late_loses_nothing_under_asyncio() -> None:
    """The messages are there already, but a busy loop sees its timeout first."""

    async def main(namesrv: str) -> None:
        async with aio.Producer(namesrv, group="p") as producer:
            for number in range(3):
                await producer.send("Numbers", b"%d" % number, queue=0)
        async with aio.PullConsumer(namesrv, group="g", consume_from="first") as consumer:
            await consumer.assign([(await consumer.queues("Numbers"))[0]])
            task = asyncio.ensure_future(consumer.poll(max_messages=1))
            await asyncio.sleep(0)
            time.sleep(1)  # noqa: ASYNC251 — meanwhile the other thread has the answer
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            found = []
            while len(found) < 3:
                found += [
                    int(message.body) for message in await asyncio.wait_for(consumer.poll(), 10)
                ]
            assert found == [0, 1, 2]
            queue = (await consumer.queues("Numbers"))[0]
            offsets = [
                await consumer.min_offset(queue),
                await consumer.position(queue),
                await consumer.max_offset(queue),
            ]
            assert offsets == [0, 3, 3]
            assert (
                await consumer.offset_for_time(
                    queue, datetime.datetime.fromtimestamp(0, datetime.UTC)
                )
                == 0
            )

    with cluster_in_a_thread() as namesrv:
        asyncio.run(main(namesrv))


def test_blocking_handlers_may_settle_messages_while_the_consumer_stops() -> None:
    acks: list[bool] = []
    begun = threading.Event()

    def handle(message: sync.ReceivedMessage) -> None:
        begun.set()
        time.sleep(0.5)
        acks.append(message.ack())

    with cluster_in_a_thread() as namesrv:
        with sync.Producer(namesrv, group="p") as producer:
            producer.send("Numbers", b"0")
        with sync.PushConsumer(
            namesrv,
            group="g",
            subscriptions="Numbers",
            consume_from="first",
            handler=handle,
            settings=QUICK,
        ):
            assert begun.wait(20)
    assert acks == [True]


def test_a_call_from_the_loop_itself_is_refused() -> None:
    """It would wait for itself for ever."""
    errors: list[NotRunning] = []

    def select(queues, message):  # type: ignore[no-untyped-def]
        try:
            producer.queues("Numbers")
        except NotRunning as error:
            errors.append(error)
        return queues[0]

    with cluster_in_a_thread() as namesrv, sync.Producer(namesrv, group="p") as producer:
        producer.send("Numbers", b"0", select=select, timeout=10)
    assert "thread" in str(errors[0])


def test_consume_timeout_begins_when_the_application_gets_the_message() -> None:
    """If it began when messages are fetched together, the last ones would go back to the broker
    before the application saw them.
    """
    settings = ConsumerSettings(consume_timeout=1, client=ClientSettings(shutdown_timeout=1))
    acks = []
    with cluster_in_a_thread() as namesrv:
        with sync.Producer(namesrv, group="p") as producer:
            producer.send_batch(
                [Message(topic="Numbers", body=b"%d" % number) for number in range(4)]
            )
        with sync.PushConsumer(
            namesrv, group="g", subscriptions="Numbers", consume_from="first", settings=settings
        ) as consumer:
            for message in consumer:
                time.sleep(0.7)
                acks.append(message.ack())
                if len(acks) == 4:
                    break
    assert acks == [True] * 4


class Slow:
    """A context that takes a while to enter."""

    def __init__(self) -> None:
        self.left = threading.Event()

    async def __aenter__(self) -> Slow:
        await trio.sleep(0.3)
        return self

    async def __aexit__(self, *outcome: object) -> None:
        await trio.lowlevel.checkpoint()
        self.left.set()


def test_an_interrupted_start_leaves_nothing_behind() -> None:
    slow = Slow()
    blocking = BlockingLifetime(slow)
    timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        blocking.start()
    assert slow.left.wait(5)
    blocking._portal.join()


def test_a_stop_before_the_loop_runs_is_not_lost() -> None:
    class Quick:
        async def __aenter__(self) -> Quick:
            return self

        async def __aexit__(self, *outcome: object) -> None:
            pass

    for _ in range(20):
        portal = Portal(Quick())
        portal.start()
        portal.stop().result(30)
        portal.join()


def test_a_stop_where_nothing_runs_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is a stop before the start, a second one, one in the child of a fork, and one from the
    object's own thread.
    """
    for blocking in (sync.Producer("127.0.0.1:1", group="jobs"), BlockingLifetime(Slow())):
        blocking.stop()
        blocking.stop()
    asyncio.run(aio.Producer("127.0.0.1:1", group="jobs").stop())
    with BlockingLifetime(Slow()) as started:
        started._portal.call(5, trio.lowlevel.checkpoint)

        async def stop_inside() -> None:
            await trio.lowlevel.checkpoint()
            started.stop()

        with pytest.raises(NotRunning, match="own thread"):
            started._portal.call(30, stop_inside)
        with monkeypatch.context() as patch:
            patch.setattr(started._portal, "_pid", os.getpid() + 1)  # as it looks from a child
            started.stop()
        started._portal.call(5, trio.lowlevel.checkpoint)  # which has changed nothing here
        started.stop()
        started.stop()


def test_a_cancelled_start_leaves_nothing_behind_under_asyncio() -> None:
    slow = Slow()
    running = AsyncioLifetime(slow)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running.start(), 0.1)

    asyncio.run(main())
    assert slow.left.wait(5)
    running._portal.join()
    assert running._portal.stop().exception() is None


def test_a_cancelled_stop_continues_under_asyncio() -> None:
    class SlowEnd:
        async def __aenter__(self) -> SlowEnd:
            return self

        async def __aexit__(self, *outcome: object) -> None:
            with trio.CancelScope(shield=True):
                ending.set()
                await trio.to_thread.run_sync(go_on.wait)

    ending, go_on = threading.Event(), threading.Event()
    running = AsyncioLifetime(SlowEnd())
    portal = running._portal

    async def main() -> None:
        await running.start()
        stops = [asyncio.ensure_future(running.stop()) for _ in range(2)]
        await asyncio.to_thread(ending.wait)
        for task in stops:  # no wait for the outcome, but still for the thread
            task.cancel()
        await asyncio.sleep(0.01)
        stops[1].cancel()  # and not even for that
        go_on.set()
        for task in stops:
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    portal.join()
    assert portal.stop().exception() is None
    with pytest.raises(NotRunning):
        portal.submit(trio.sleep, 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_message_whose_handler_ctrl_c_hits_comes_again(ordered: bool) -> None:
    """Python raises in the frame that runs: the handler's own. The consumer ends with it."""
    with cluster_in_a_thread(topic="T", queues=1) as address:
        bodies = [b"%d" % number for number in range(5)]
        with sync.Producer(address, group="p") as producer:
            for body in bodies:
                producer.send("T", body)
        finished: list[bytes] = []

        async def interrupted(message: ReceivedMessage) -> None:
            if len(finished) == 2:
                signal.raise_signal(signal.SIGINT)
            finished.append(message.body)

        async def handle(message: ReceivedMessage) -> None:
            finished.append(message.body)

        async def consume(handler: Handler, count: int) -> None:
            async with (
                PushConsumer(
                    address, group="g", subscriptions="T", consume_from="first", ordered=ordered
                ) as consumer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(partial(consumer.run, handler, concurrency=1))
                await until(lambda: len(finished) >= count)
                nursery.cancel_scope.cancel()

        with pytest.raises(BaseExceptionGroup) as caught:
            trio.run(consume, interrupted, len(bodies))
        assert caught.group_contains(KeyboardInterrupt)
        assert finished == bodies[:2]
        trio.run(consume, handle, len(bodies))
        assert finished == bodies
