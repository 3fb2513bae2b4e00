"""The blocking and the asyncio interface against a real cluster."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Sequence

import pytest
import trio

import triomq
from triomq import ConsumerSettings, Message, NoNameServer, NotRunning, ProducerSettings, aio, sync
from triomq.client.core.config import ClientSettings
from triomq.client.core.errors import AlreadySettled, CallTimeout, ForkDetected
from triomq.client.core.portal import Portal

QUICK = ConsumerSettings(retry_delay=0.05, client=ClientSettings(shutdown_timeout=2))


@pytest.mark.feature(192)
def test_blocking_producer_and_consumers(namesrv: str) -> None:
    with sync.Producer(namesrv, group="jobs") as producer:
        receipt = producer.send(
            "Numbers", b"0", tag="t", keys=["k"], properties={"a": "b"}, timeout=5
        )
        assert receipt.status is triomq.SendStatus.STORED
        producer.send_oneway("Numbers", b"1")
        batch = producer.send_batch(
            [Message(topic="Numbers", body=b"2"), Message(topic="Numbers", body=b"3")]
        )
        assert len(batch) == 2
        many = list(
            producer.send_many(
                (Message(topic="Numbers", body=b"%d" % number) for number in range(4, 100)),
                window=8,
            )
        )
        assert len({receipt.message_id for receipt in many}) == 96
        message_id = producer.new_message_id()
        assert (
            producer.send(Message(topic="Numbers", body=b"100"), message_id=message_id).message_id
            == message_id
        )
    seen = []
    with sync.PushConsumer(
        namesrv, group="readers", subscriptions="Numbers", consume_from="first"
    ) as consumer:
        consumer.wait_assigned(timeout=10)
        for message in consumer:
            with message:
                seen.append(int(message.body))
            assert message.settled
            if len(seen) == 1:
                assert message.keys in {("k",), ()}
                with pytest.raises(AlreadySettled):
                    message.ack()
            if len(seen) == 101:
                break
        assert consumer.statistics().unsettled == 0
    assert sorted(seen) == list(range(101))


@pytest.mark.feature(192)
def test_blocking_handlers_run_in_threads(namesrv: str) -> None:
    with sync.Producer(namesrv, group="jobs") as producer:
        for number in range(20):
            producer.send("Numbers", b"%d" % number)
    seen: list[int] = []
    threads: set[int] = set()
    failed_once: set[int] = set()
    done = threading.Event()

    def handle(message: sync.ReceivedMessage) -> None:
        threads.add(threading.get_ident())
        number = int(message.body)
        if number == 7 and number not in failed_once:
            failed_once.add(number)
            message.retry(1)
            return
        seen.append(number)
        if len(seen) == 19:
            done.set()

    with sync.PushConsumer(
        namesrv,
        group="readers",
        subscriptions="Numbers",
        consume_from="first",
        handler=handle,
        concurrency=3,
        settings=QUICK,
    ):
        assert done.wait(20)
    assert threading.get_ident() not in threads
    assert set(seen) == set(range(20)) - {7} or set(seen) == set(range(20))
    assert failed_once == {7}


@pytest.mark.feature(192)
def test_blocking_pull_consumer(namesrv: str) -> None:
    with sync.Producer(namesrv, group="jobs") as producer:
        for number in range(10):
            producer.send("Numbers", b"%d" % number, queue=0)
    with sync.PullConsumer(namesrv, group="readers", consume_from="first") as consumer:
        assert consumer.poll(timeout=0.05) == []
        queue = consumer.queues("Numbers", timeout=5)[0]
        consumer.assign([queue])
        assert consumer.assignment == (queue,)
        assert int(next(consumer).body) == 0
        assert [int(message.body) for message in consumer.poll(max_messages=3, timeout=5)] == [
            1,
            2,
            3,
        ]
        assert consumer.position(queue) == 4
        consumer.commit()
        assert consumer.committed(queue) == 4
        consumer.seek(queue, 9)
        assert int(next(consumer).body) == 9
        consumer.seek_to_begin(queue)
        consumer.pause(queue)
        assert consumer.poll(timeout=0.1) == []
        consumer.resume(queue)
        assert int(next(consumer).body) == 0
        consumer.seek_to_end(queue)
        assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 10)


def test_many_threads_may_share_a_producer(namesrv: str) -> None:
    with (
        sync.Producer(namesrv, group="jobs") as producer,
        concurrent.futures.ThreadPoolExecutor(8) as threads,
    ):
        receipts = list(
            threads.map(lambda number: producer.send("Numbers", b"%d" % number), range(64))
        )
    assert len({receipt.message_id for receipt in receipts}) == 64


def test_time_limits_and_errors_reach_the_caller(namesrv: str) -> None:
    with sync.PushConsumer(namesrv, group="readers", subscriptions="Numbers") as consumer:
        consumer.wait_assigned(timeout=10)
        portal = consumer._portal
        with pytest.raises(CallTimeout, match=r"0\.05 s"):
            portal.call(0.05, trio.sleep_forever)
        with pytest.raises(TimeoutError, match="mine"):
            portal.call(5, _raise, TimeoutError("mine"))
        with pytest.raises(triomq.TopicInvalid), sync.Producer(namesrv, group="jobs") as producer:
            producer.send("no.dots", b"x")
    with pytest.raises(NotRunning):
        consumer.statistics()
    with pytest.raises(NotRunning, match="make a new one"), consumer:
        pass


def test_a_missing_name_server_is_an_error_at_the_with_statement() -> None:
    settings = ProducerSettings(client=ClientSettings(route_timeout=0.1))
    with pytest.raises(NoNameServer), sync.Producer("127.0.0.1:1", group="jobs", settings=settings):
        raise AssertionError("must not start")


def test_an_error_of_the_body_is_raised_and_the_thread_ends(namesrv: str) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), sync.Producer(namesrv, group="jobs"):
        _ = 1 / 0
    assert threading.active_count() == before


def test_a_crashed_background_task_raises_at_the_end() -> None:
    @contextlib.asynccontextmanager
    async def crashing():  # type: ignore[no-untyped-def]
        async with trio.open_nursery() as nursery:

            async def crash() -> None:
                await trio.sleep(0.01)
                raise LookupError("inside")

            nursery.start_soon(crash)
            yield "target"

    portal: Portal[str] = Portal(crashing())
    assert portal.start().result(5) == "target"
    with pytest.raises(NotRunning):
        portal.call(5, trio.sleep_forever)
    with pytest.raises(ExceptionGroup) as caught:
        portal.stop().result(5)
    assert caught.group_contains(LookupError, match="inside")
    portal.join()


def test_an_object_used_after_a_fork_raises(namesrv: str) -> None:
    with sync.Producer(namesrv, group="jobs") as producer:
        producer._portal._pid = os.getpid() + 1  # as it looks from a child
        with pytest.raises(ForkDetected, match="spawn"):
            producer.send("Numbers", b"x")
        producer._portal._pid = os.getpid()


@pytest.mark.feature(191)
def test_asyncio(namesrv: str) -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        async with aio.Producer(namesrv, group="web") as producer:
            receipts = await asyncio.gather(
                *(producer.send("Numbers", b"%d" % number, tag="t") for number in range(50))
            )
            assert len({receipt.message_id for receipt in receipts}) == 50
            await producer.send_oneway("Numbers", b"50")
            assert len(await producer.send_batch([Message(topic="Numbers", body=b"51")])) == 1
            await producer.send(Message(topic="Numbers", body=b"52"))
        async with aio.PushConsumer(
            namesrv, group="readers", subscriptions="Numbers", consume_from="first"
        ) as consumer:
            await consumer.wait_assigned()
            async with asyncio.timeout(20):
                async for message in consumer:
                    async with message:
                        seen.append(int(message.body))
                    if len(seen) == 53:
                        break
        async with aio.PullConsumer(namesrv, group="others", consume_from="first") as puller:
            queues = await puller.queues("Numbers")
            await puller.assign(queues)
            messages = await puller.poll()
            assert messages
            await puller.seek(messages[0].queue, 0)
            await puller.commit()
            assert await puller.committed(messages[0].queue) == 0
        return seen

    assert sorted(asyncio.run(main())) == list(range(53))


@pytest.mark.feature(192)
def test_blocking_objects_are_kept_from_cell_to_cell_under_a_running_loop(namesrv: str) -> None:
    """In a Jupyter kernel cells run inside a running asyncio loop: there is no ``with``, and calls
    come from the loop's own thread.
    """
    cells = {"sync": sync, "namesrv": namesrv}

    async def cell(source: str) -> object:
        await asyncio.sleep(0)
        return eval(source, cells)

    async def notebook() -> list[object]:
        cells["producer"] = await cell('sync.Producer(namesrv, group="cells").start()')
        cells["consumer"] = await cell(
            'sync.PullConsumer(namesrv, group="cells", subscriptions="Numbers",'
            ' consume_from="first").start()'
        )
        sent = [
            await cell('producer.send("Numbers", b"1", timeout=5)'),
            await cell('producer.send("Numbers", b"2")'),
        ]
        got: list[object] = []
        async with asyncio.timeout(10):
            while len(got) < 2:
                got += await cell(
                    "[m.message_id for m in consumer.poll(max_messages=10, timeout=1)]"
                )  # type: ignore[operator]
        await cell("consumer.stop()")
        await cell("producer.stop()")
        assert set(got) == {receipt.message_id for receipt in sent}  # type: ignore[attr-defined]
        with pytest.raises(NotRunning):
            await cell('producer.send("Numbers", b"3")')
        return got

    threads = threading.active_count()
    assert len(asyncio.run(notebook())) == 2
    assert threading.active_count() == threads


@pytest.mark.feature(191)
def test_asyncio_objects_are_kept_from_cell_to_cell(namesrv: str) -> None:
    async def notebook() -> None:
        producer = await aio.Producer(namesrv, group="cells").start()
        consumer = await aio.PullConsumer(
            namesrv, group="cells", subscriptions="Numbers", consume_from="first"
        ).start()
        sent = await producer.send("Numbers", b"1")
        async with asyncio.timeout(20):
            (message,) = await consumer.poll()
        assert message.message_id == sent.message_id
        with pytest.raises(NotRunning, match="make a new one"):
            await producer.start()
        for running in (consumer, producer):
            await running.stop()
            await running.stop()
        with pytest.raises(NotRunning, match=r"between `start\(\)` and `stop\(\)`"):
            await producer.send("Numbers", b"2")

    threads = threading.active_count()
    asyncio.run(notebook())
    assert threading.active_count() <= threads + 1, "asyncio's own executor at most"


@pytest.mark.feature(191)
def test_an_asyncio_loop_goes_on_while_others_wait(namesrv: str) -> None:
    """The documented pattern: ``await`` of ``triomq.aio``, and ``triomq.sync`` in a thread; neither
    stops the loop.
    """

    async def main() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        async with aio.PushConsumer(namesrv, group="waiting", subscriptions="Numbers") as consumer:
            before = turns
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(consumer)  # nothing comes
            assert turns - before > 10

        def wait_blocking() -> list[object]:
            with sync.PullConsumer(namesrv, group="blocking", subscriptions="Numbers") as puller:
                return list(puller.poll(timeout=0.2))

        before = turns
        assert await asyncio.to_thread(wait_blocking) == []
        assert turns - before > 10
        counting.cancel()

    asyncio.run(main())


def test_cancelling_in_asyncio_cancels_in_trio(namesrv: str) -> None:
    async def main() -> None:
        async with aio.PushConsumer(namesrv, group="readers", subscriptions="Numbers") as consumer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(consumer)
            task = asyncio.create_task(anext(consumer))  # type: ignore[arg-type]
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with pytest.raises(NotRunning):
            await consumer.wait_assigned()

    asyncio.run(main())


async def _raise(error: Exception) -> None:
    await trio.lowlevel.checkpoint()
    raise error


def test_an_interrupted_wait_cancels_the_call_and_leaves_the_object_usable(namesrv: str) -> None:
    with sync.Producer(namesrv, group="jobs") as producer:
        call = producer._portal.submit(trio.sleep_forever)
        call.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            call.future.result(5)
        assert producer.send("Numbers", b"x", timeout=5).status is triomq.SendStatus.STORED


def test_handlers_run_in_the_asyncio_loop(namesrv: str) -> None:
    """At most ``concurrency`` run at a time; an exception retries the message, a batch handler gets
    messages of one queue, ``stop`` waits for running handlers.
    """
    seen: list[int] = []
    batches: list[list[int]] = []
    failed: set[int] = set()
    running = most = 0

    async def main() -> None:
        loop, done, all_there = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def handle(message: aio.ReceivedMessage) -> None:
            nonlocal running, most
            assert asyncio.get_running_loop() is loop
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            number = int(message.body)
            if number == 7 and number not in failed:
                failed.add(number)
                await message.retry(1)
                return
            seen.append(number)
            if len(set(seen)) == 20:
                done.set()

        async def handle_batch(messages: Sequence[aio.ReceivedMessage]) -> None:
            assert len({message.queue for message in messages}) == 1
            batches.append([int(message.body) for message in messages])
            if sum(map(len, batches)) >= 20:
                all_there.set()

        async with aio.Producer(namesrv, group="jobs") as producer:
            receipts = await producer.send_many(
                (Message(topic="Numbers", body=b"%d" % number) for number in range(20)), window=4
            )
            assert len({receipt.message_id for receipt in receipts}) == 20
            assert producer.client_id
        async with aio.PushConsumer(
            namesrv,
            group="readers",
            subscriptions="Numbers",
            consume_from="earliest",
            handler=handle,
            concurrency=3,
            settings=QUICK,
        ) as consumer:
            await asyncio.wait_for(done.wait(), 20)
            assert consumer.client_id
            assert {queue.topic for queue in consumer.assignment} >= {"Numbers"}
        async with aio.PushConsumer(
            namesrv,
            group="batches",
            subscriptions="Numbers",
            consume_from="earliest",
            batch_handler=handle_batch,
            batch_max=5,
        ):
            await asyncio.wait_for(all_there.wait(), 20)

    asyncio.run(main())
    assert set(seen) == set(range(20))
    assert failed == {7}
    assert 1 < most <= 3
    assert {number for batch in batches for number in batch} == set(range(20))
    assert max(map(len, batches)) <= 5


def test_a_handler_that_hangs_is_cancelled_with_its_consumer(namesrv: str) -> None:
    cancelled: list[bytes] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def handle(message: aio.ReceivedMessage) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

        async with aio.Producer(namesrv, group="jobs") as producer:
            await producer.send("Numbers", b"1")
        settings = ConsumerSettings(client=ClientSettings(shutdown_timeout=0.1))
        async with aio.PushConsumer(
            namesrv,
            group="readers",
            subscriptions="Numbers",
            consume_from="earliest",
            handler=handle,
            settings=settings,
        ):
            await asyncio.wait_for(begun.wait(), 20)
        await asyncio.sleep(0.1)

    asyncio.run(main())
    assert cancelled == [b"1"]


def test_blocking_batch_handlers(namesrv: str) -> None:
    batches: list[list[int]] = []
    done = threading.Event()

    def handle(messages: Sequence[sync.ReceivedMessage]) -> None:
        batches.append([int(message.body) for message in messages])
        if sum(map(len, batches)) >= 10:
            done.set()

    with sync.Producer(namesrv, group="jobs") as producer:
        producer.send_batch(
            [Message(topic="Numbers", body=b"%d" % number) for number in range(10)], queue=0
        )
    with sync.PushConsumer(
        namesrv,
        group="readers",
        subscriptions="Numbers",
        consume_from="earliest",
        batch_handler=handle,
        batch_max=4,
    ) as consumer:
        assert done.wait(20)
        assert {queue.topic for queue in consumer.assignment} >= {"Numbers"}
        assert consumer.client_id
    assert sorted(number for batch in batches for number in batch) == list(range(10))
    assert max(map(len, batches)) <= 4
