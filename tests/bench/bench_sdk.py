"""What one process reaches through the SDK, against a name server and a broker in processes of
their own.

    .venv/bin/python tests/bench/bench_sdk.py [--messages 100000] [--size 1024] [--tasks 64]
        [--namesrv host:port]

Prints one line for each way to send and to consume. With ``--profile`` the SDK's own time is shown
by function.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio

from triomq import (
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from triomq.client.admin.admin import Admin

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from processes import our_broker, our_name_server


@contextlib.contextmanager
def servers(namesrv: str | None) -> Iterator[str]:
    """Start both processes, unless an address is given."""
    if namesrv is not None:
        yield namesrv
        return
    with tempfile.TemporaryDirectory() as folder, our_name_server(Path(folder)) as address:
        with our_broker(Path(folder), "broker-a", address):
            yield address


async def report(name: str, count: int, work: Callable[[], Awaitable[None]], profile: bool) -> None:
    """Time one piece of work."""
    profiler = cProfile.Profile() if profile else None
    began = time.perf_counter()
    before = os.times()
    if profiler:
        profiler.enable()
    await work()
    if profiler:
        profiler.disable()
    seconds, after = time.perf_counter() - began, os.times()
    user, system = ((after[place] - before[place]) / count * 1e6 for place in (0, 1))
    print(
        f"{name:<30} {count / seconds:>9,.0f} msg/s; CPU of this process: {user:5.1f} +"
        f" {system:5.1f} µs each",
        flush=True,
    )
    if profiler:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


async def bench(namesrv: str, messages: int, size: int, tasks: int, profile: bool) -> None:
    """Run everything once."""
    body = b"x" * size
    async with Admin(namesrv) as admin:
        await admin.create_topic("Bench", queues=8)
    async with Producer(namesrv, group="bench") as producer:

        async def in_tasks(
            send: Callable[[], Awaitable[object]], count: int, task_count: int
        ) -> None:
            async def some() -> None:
                for _ in range(count // task_count):
                    await send()

            async with trio.open_nursery() as nursery:
                for _ in range(task_count):
                    nursery.start_soon(some)

        async def one() -> None:
            await producer.send("Bench", body, tag="t", keys=["k"])

        async def oneway() -> None:
            await producer.send_oneway("Bench", body, tag="t", keys=["k"])

        async def batches() -> None:
            lists = [Message(topic="Bench", body=body, tag="t", keys=("k",)) for _ in range(256)]
            for _ in range(messages // 256):
                await producer.send_batch(lists)

        await in_tasks(one, 1000, 4)
        await report(
            "send, one task", messages // 10, lambda: in_tasks(one, messages // 10, 1), profile
        )
        await report(
            f"send, {tasks} tasks", messages, lambda: in_tasks(one, messages, tasks), profile
        )
        await report(
            f"send, {4 * tasks} tasks",
            messages,
            lambda: in_tasks(one, messages, 4 * tasks),
            profile,
        )
        await report(
            "send_oneway, one task",
            messages // 4,
            lambda: in_tasks(oneway, messages // 4, 1),
            profile,
        )
        await report("send_batch of 256, one task", messages // 256 * 256, batches, profile)
        await trio.sleep(1)

    settings = ProducerSettings(auto_batch=True, auto_batch_hold=0)
    async with Producer(namesrv, group="bench", settings=settings) as producer:
        await report(
            f"automatic batches, {4 * tasks} tasks",
            messages,
            lambda: in_tasks(one, messages, 4 * tasks),
            profile,
        )
    total = 0

    async def drain_by_handler() -> None:
        nonlocal total
        done = trio.Event()

        async def handle(message: ReceivedMessage) -> None:
            nonlocal total
            total += 1
            if total == messages:
                done.set()

        async with PushConsumer(
            namesrv, group="handlers", subscriptions="Bench", consume_from="first", handler=handle
        ):
            await done.wait()

    async def drain_by_iteration() -> None:
        count = 0
        async with PushConsumer(
            namesrv, group="iterators", subscriptions="Bench", consume_from="first"
        ) as consumer:
            async for message in consumer:
                message.ack_nowait()
                count += 1
                if count == messages:
                    return

    async def drain_by_lists() -> None:
        count = 0
        settings = ConsumerSettings(pull_batch=256, pull_batch_bytes=1 << 20)
        async with PushConsumer(
            namesrv, group="takers", subscriptions="Bench", consume_from="first", settings=settings
        ) as consumer:
            while count < messages:
                for message in await consumer.take(max_messages=256):
                    message.ack_nowait()
                    count += 1

    async def drain_by_poll() -> None:
        count = 0
        async with PullConsumer(
            namesrv, group="pollers", subscriptions="Bench", consume_from="first"
        ) as consumer:
            while count < messages:
                count += len(await consumer.poll(max_messages=256))

    await report("push consumer, handler", messages, drain_by_handler, profile)
    await report("push consumer, async for", messages, drain_by_iteration, profile)
    await report("push consumer, take(256)", messages, drain_by_lists, profile)
    await report("pull consumer, poll(256)", messages, drain_by_poll, profile)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--namesrv")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with servers(options.namesrv) as address:
        trio.run(bench, address, options.messages, options.size, options.tasks, options.profile)


if __name__ == "__main__":
    main()
