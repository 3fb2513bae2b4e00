"""Our SDK's side of ``bench_nats.py``: a process that reads a JSON object from each line and
answers with a line, as ``nats_client.py`` does.

    {"verb": "publish", "in_flight": 64, "seconds": 2, "size": 1024}
    {"verb": "publish_batched", "in_flight": 64, "seconds": 2, "size": 1024}  with ``auto_batch``
    {"verb": "fill", "count": 100000, "size": 1024}
    {"verb": "consume", "how": "poll", "count": 100000}                       or "handler", "take"

Settings are the SDK's defaults but for what the verb names. ``poll`` and ``take`` ask for 256
messages a time.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import Any

import trio
from load_clock import Clock, message_body, publishing_end

from triomq import Producer, ProducerSettings, PullConsumer, PushConsumer, ReceivedMessage
from triomq.client.admin.admin import Admin

QUEUES = 8
LIST = 256
_numbers = itertools.count(1)


async def publish(producer: Producer, request: dict[str, Any]) -> int:
    """Tasks that send and wait for the answer, each one message at a time."""
    body, until, count = message_body(request), publishing_end(request), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await producer.send("BenchSent", body)
            count += 1

    async with trio.open_nursery() as nursery:
        for _ in range(request["in_flight"]):
            nursery.start_soon(work)
    return count


async def fill(producer: Producer, request: dict[str, Any]) -> int:
    """Single sends, so that the messages of a queue lie scattered as those of independent producers
    do.
    """
    left = request["count"]
    body = message_body(request)

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send("BenchKept", body)

    async with trio.open_nursery() as nursery:
        for _ in range(256):
            nursery.start_soon(work)
    return int(request["count"])


async def consume(namesrv: str, request: dict[str, Any], clock: Clock) -> int:
    how, wanted, count = request["how"], request["count"], 0
    group = f"bench-{os.getpid()}-{next(_numbers)}"
    if how == "handler":
        done = trio.Event()

        async def handle(message: ReceivedMessage) -> None:
            nonlocal count
            if not count:
                clock.start()
            count += 1
            if count == wanted:
                done.set()

        async with PushConsumer(
            namesrv, group=group, subscriptions="BenchKept", consume_from="first", handler=handle
        ):
            await done.wait()
            clock.stop()
            return count
    if how == "take":
        async with PushConsumer(
            namesrv, group=group, subscriptions="BenchKept", consume_from="first"
        ) as taker:
            while count < wanted:
                messages = await taker.take(max_messages=LIST)
                if not count:
                    clock.start()
                for message in messages:
                    message.ack_nowait()
                count += len(messages)
            clock.stop()
            return count
    async with PullConsumer(
        namesrv, group=group, subscriptions="BenchKept", consume_from="first"
    ) as poller:
        while count < wanted:
            messages = await poller.poll(max_messages=LIST)
            if not count:
                clock.start()
            count += len(messages)
        clock.stop()
        return count


async def main(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        for topic in ("BenchSent", "BenchKept"):
            await admin.create_topic(topic, queues=QUEUES)
    stdin = trio.wrap_file(sys.stdin)
    async with (
        Producer(namesrv, group="bench") as producer,
        Producer(namesrv, group="bench", settings=ProducerSettings(auto_batch=True)) as batching,
    ):
        while line := await stdin.readline():
            request = json.loads(line)
            verb, clock = request["verb"], Clock()
            if verb == "consume":
                count = await consume(namesrv, request, clock)
            elif verb == "fill":
                count = await fill(producer, request)
            else:
                count = await publish(batching if verb == "publish_batched" else producer, request)
            print(clock.answer(count), flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
