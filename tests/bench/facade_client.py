"""The other interfaces of our SDK in ``bench_nats.py``: ``triomq.aio`` and ``triomq.sync``; the
same requests as ``sdk_client.py``.

    python tests/bench/facade_client.py NAMESRV asyncio      or "sync"
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from load_clock import Clock, message_body, publishing_end

from triomq import aio, sync

LIST = 256
_numbers = itertools.count(1)


def new_group(interface: str) -> str:
    return f"bench-{interface}-{os.getpid()}-{next(_numbers)}"


async def publish(producer: aio.Producer, request: dict[str, Any]) -> int:
    body, until, count = message_body(request), publishing_end(request), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await producer.send("BenchSent", body)
            count += 1

    await asyncio.gather(*[work() for _ in range(request["in_flight"])])
    return count


async def consume(namesrv: str, request: dict[str, Any], clock: Clock) -> int:
    wanted, count, done = request["count"], 0, asyncio.Event()

    async def handle(message: aio.ReceivedMessage) -> None:
        nonlocal count
        if not count:
            clock.start()
        count += 1
        if count == wanted:
            done.set()

    common: dict[str, Any] = {
        "group": new_group("asyncio"),
        "subscriptions": "BenchKept",
        "consume_from": "first",
    }
    if request["how"] == "handler":
        async with aio.PushConsumer(namesrv, handler=handle, **common):
            await done.wait()
            clock.stop()
    elif request["how"] == "take":
        async with aio.PushConsumer(namesrv, **common) as taker:
            while count < wanted:
                messages = await taker.take(max_messages=LIST)
                if not count:
                    clock.start()
                for message in messages:
                    await message.ack()
                count += len(messages)
            clock.stop()
    else:
        async with aio.PullConsumer(namesrv, **common) as poller:
            while count < wanted:
                polled = await poller.poll(max_messages=LIST)
                if not count:
                    clock.start()
                count += len(polled)
            clock.stop()
    return count


def publish_blocking(producer: sync.Producer, request: dict[str, Any]) -> int:
    body, until = message_body(request), publishing_end(request)

    def work(_: int) -> int:
        count = 0
        while time.perf_counter() < until:
            producer.send("BenchSent", body)
            count += 1
        return count

    with ThreadPoolExecutor(request["in_flight"]) as threads:
        return sum(threads.map(work, range(request["in_flight"])))


def consume_blocking(namesrv: str, request: dict[str, Any], clock: Clock) -> int:
    wanted, count = request["count"], 0
    done, lock = threading.Event(), threading.Lock()

    def handle(message: sync.ReceivedMessage) -> None:
        nonlocal count
        with lock:
            if not count:
                clock.start()
            count += 1
        if count == wanted:
            done.set()

    common: dict[str, Any] = {
        "group": new_group("sync"),
        "subscriptions": "BenchKept",
        "consume_from": "first",
    }
    if request["how"] == "handler":
        with sync.PushConsumer(namesrv, handler=handle, **common):
            done.wait()
            clock.stop()
    elif request["how"] == "take":
        with sync.PushConsumer(namesrv, **common) as taker:
            while count < wanted:
                messages = taker.take(max_messages=LIST)
                if not count:
                    clock.start()
                for message in messages:
                    message.ack()
                count += len(messages)
            clock.stop()
    else:
        with sync.PullConsumer(namesrv, **common) as poller:
            while count < wanted:
                polled = poller.poll(max_messages=LIST)
                if not count:
                    clock.start()
                count += len(polled)
            clock.stop()
    return count


async def main_asyncio(namesrv: str) -> None:
    async with aio.Producer(namesrv, group="bench") as producer:
        while line := await asyncio.to_thread(sys.stdin.readline):
            request, clock = json.loads(line), Clock()
            if request["verb"] == "consume":
                count = await consume(namesrv, request, clock)
            else:
                count = await publish(producer, request)
            print(clock.answer(count), flush=True)


def main_blocking(namesrv: str) -> None:
    with sync.Producer(namesrv, group="bench") as producer:
        while line := sys.stdin.readline():
            request, clock = json.loads(line), Clock()
            if request["verb"] == "consume":
                count = consume_blocking(namesrv, request, clock)
            else:
                count = publish_blocking(producer, request)
            print(clock.answer(count), flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "asyncio":
        asyncio.run(main_asyncio(sys.argv[1]))
    else:
        main_blocking(sys.argv[1])
