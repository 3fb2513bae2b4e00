"""nats-py's side of ``bench_nats.py``: a process of its own, with nothing but nats-py; one JSON
object a line comes in, one goes out.

    {"verb": "publish", "in_flight": 64, "seconds": 2, "size": 1024}      or "publish_async"
    {"verb": "fill", "count": 100000, "size": 1024}
    {"verb": "consume", "how": "fetch", "count": 100000}                  or "callback", "ordered"

``publish`` is what its users write: tasks that await ``js.publish``. ``publish_async`` is its
pipelined form, with that many answers outstanding. ``fetch`` is a durable pull consumer, 256
messages a time, ``callback`` a durable push consumer; both acknowledge every message. ``ordered``
is the push consumer without acknowledgements. A consumer's clock starts with its first message.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import nats
from load_clock import Clock, message_body, publishing_end
from nats.js.api import ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig

FETCH = 256
_numbers = itertools.count(1)


async def publish(js: Any, request: dict[str, Any]) -> int:
    """Tasks that publish and wait for the answer, each one message at a time."""
    body, until, count = message_body(request), publishing_end(request), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await js.publish("bench.sent", body)
            count += 1

    await asyncio.gather(*[work() for _ in range(request["in_flight"])])
    return count


async def publish_async(js: Any, request: dict[str, Any]) -> int:
    """One task that publishes as long as fewer answers than that are outstanding."""
    body, until, count = message_body(request), publishing_end(request), 0
    room = asyncio.Semaphore(request["in_flight"])

    def answered(answer: asyncio.Future[Any]) -> None:
        room.release()
        answer.result()

    while time.perf_counter() < until:
        await room.acquire()
        answer = await js.publish_async("bench.sent", body)
        answer.add_done_callback(answered)
        count += 1
    await js.publish_async_completed()
    return count


async def fill(js: Any, request: dict[str, Any]) -> int:
    body, left = message_body(request), request["count"]
    while left:
        now = min(left, 256)
        await asyncio.gather(*[js.publish("bench.kept", body) for _ in range(now)])
        left -= now
    return int(request["count"])


async def consume(js: Any, request: dict[str, Any], clock: Clock) -> int:
    how, wanted, count = request["how"], request["count"], 0
    name = f"consumer-{os.getpid()}-{next(_numbers)}"
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
    if how == "fetch":
        subscription = await js.pull_subscribe("bench.kept", name, config=config)
        while count < wanted:
            messages = await subscription.fetch(FETCH, timeout=10)
            if not count:
                clock.start()
            for message in messages:
                await message.ack()
            count += len(messages)
    else:
        done = asyncio.Event()

        async def handle(message: Any) -> None:
            nonlocal count
            if not count:
                clock.start()
            count += 1
            if count == wanted:
                done.set()

        if how == "ordered":
            subscription = await js.subscribe("bench.kept", cb=handle, ordered_consumer=True)
        else:
            subscription = await js.subscribe("bench.kept", cb=handle, durable=name, config=config)
        await done.wait()
    clock.stop()
    await subscription.unsubscribe()
    return count


async def main(address: str) -> None:
    client = await nats.connect(f"nats://{address}")
    js = client.jetstream()
    for name in ("sent", "kept"):
        config = StreamConfig(
            name=name,
            subjects=[f"bench.{name}"],
            storage=StorageType.FILE,
            retention=RetentionPolicy.LIMITS,
        )
        await js.add_stream(config)
    verbs: dict[str, Callable[[Any, dict[str, Any]], Awaitable[int]]] = {
        "publish": publish,
        "publish_async": publish_async,
        "fill": fill,
    }
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        clock = Clock()
        if request["verb"] == "consume":
            count = await consume(js, request, clock)
        else:
            count = await verbs[request["verb"]](js, request)
            clock.stop()
        if request["verb"].startswith("publish"):
            await js.purge_stream("sent")
        print(clock.answer(count), flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
