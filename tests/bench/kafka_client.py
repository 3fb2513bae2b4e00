"""aiokafka's side of ``bench_nats.py``: a process of its own, with nothing but aiokafka; one JSON
object a line comes in, one goes out, as in ``nats_client.py``.

    {"verb": "publish", "in_flight": 64, "seconds": 2, "size": 1024}
    {"verb": "fill", "count": 100000, "size": 1024}
    {"verb": "consume", "how": "each", "count": 100000}                   or "getmany"

``publish`` is what its users write: tasks that await ``send_and_wait``, which joins them in batches
by itself. ``each`` is ``async for message in consumer``, ``getmany`` takes 256 a time; both commit
by themselves every five seconds, as its default is. A consumer's clock starts with its first
message.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from load_clock import Clock, message_body, publishing_end

LIST = 256
_numbers = itertools.count(1)


async def publish(producer: Any, request: dict[str, Any]) -> int:
    body, until, count = message_body(request), publishing_end(request), 0

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await producer.send_and_wait("BenchSent", body)
            count += 1

    await asyncio.gather(*[work() for _ in range(request["in_flight"])])
    return count


async def fill(producer: Any, request: dict[str, Any]) -> int:
    body, left = message_body(request), request["count"]
    while left:
        now = min(left, LIST)
        await asyncio.gather(*[producer.send_and_wait("BenchKept", body) for _ in range(now)])
        left -= now
    return int(request["count"])


async def consume(address: str, request: dict[str, Any], clock: Clock) -> int:
    wanted, count = request["count"], 0
    async with AIOKafkaConsumer(
        "BenchKept",
        bootstrap_servers=address,
        group_id=f"bench-{os.getpid()}-{next(_numbers)}",
        auto_offset_reset="earliest",
    ) as consumer:
        if request["how"] == "each":
            async for _ in consumer:
                if not count:
                    clock.start()
                count += 1
                if count == wanted:
                    break
        else:
            while count < wanted:
                taken = await consumer.getmany(timeout_ms=10_000, max_records=LIST)
                if not count:
                    clock.start()
                count += sum(map(len, taken.values()))
        clock.stop()
    return count


async def main(address: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            clock = Clock()
            if request["verb"] == "consume":
                count = await consume(address, request, clock)
            else:
                count = await {"publish": publish, "fill": fill}[request["verb"]](producer, request)
                clock.stop()
            print(clock.answer(count), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
