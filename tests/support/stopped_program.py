"""Programs that tests stop by signals: a consumer of one interface whose handlers take their time.

    python stopped_program.py (trio | aio | sync) NAMESRV TOPIC SECONDS

They print "handling N" when a handler begins, "handled N" when it ends, and "ended" at the end.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

import trio

import triomq
from triomq import aio, sync

SETTINGS: dict[str, Any] = {
    "group": "stopped", "consume_from": "first", "concurrency": 1,
    "settings": triomq.ConsumerSettings(
        client=triomq.ClientSettings(shutdown_timeout=20.0, farewell_timeout=5.0)
    ),
}  # fmt: skip


def say(text: str) -> None:
    print(text, flush=True)


async def with_trio(namesrv: str, topic: str, seconds: float) -> None:
    async def handle(message: triomq.ReceivedMessage) -> None:
        say(f"handling {message.body.decode()}")
        await trio.sleep(seconds)
        say(f"handled {message.body.decode()}")

    async with triomq.PushConsumer(namesrv, subscriptions=topic, handler=handle, **SETTINGS):
        await trio.sleep_forever()


async def with_asyncio(namesrv: str, topic: str, seconds: float) -> None:
    async def handle(message: aio.ReceivedMessage) -> None:
        say(f"handling {message.body.decode()}")
        await asyncio.sleep(seconds)
        say(f"handled {message.body.decode()}")

    async with aio.PushConsumer(namesrv, subscriptions=topic, handler=handle, **SETTINGS):
        await asyncio.Event().wait()


def with_threads(namesrv: str, topic: str, seconds: float) -> None:
    def handle(message: sync.ReceivedMessage) -> None:
        say(f"handling {message.body.decode()}")
        time.sleep(seconds)
        say(f"handled {message.body.decode()}")

    concurrency = SETTINGS.pop("concurrency")
    with sync.PushConsumer(namesrv, subscriptions=topic, **SETTINGS) as consumer:
        consumer.run(handle, concurrency=concurrency)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    interface, namesrv, topic, seconds = sys.argv[1:]
    if interface == "trio":
        triomq.run(with_trio, namesrv, topic, float(seconds))
    elif interface == "aio":
        aio.run(with_asyncio, namesrv, topic, float(seconds))
    else:
        sync.run(with_threads, namesrv, topic, float(seconds))
    say("ended")


if __name__ == "__main__":
    main()
