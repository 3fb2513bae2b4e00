"""What the steps of a send cost on Trio, on AnyIO over Trio, and on AnyIO over asyncio.

    python tests/bench/bench_anyio.py

A send of the SDK waits under a time limit for an event that the connection's reader sets, behind a
limiter of sends in flight: 64 tasks do that here, with no socket and no message. Processor time,
the best of five rounds. See decision 25.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import trio

SENDS, TASKS, ROUNDS = 64 * 400, 64, 5


async def exchange(library: Any, task_group: Callable[[], Any]) -> None:
    waiting: list[Any] = []
    limiter, arrived = library.CapacityLimiter(TASKS), library.Event()

    async def send() -> None:
        nonlocal arrived
        for _ in range(SENDS // TASKS):
            async with limiter:
                with library.move_on_after(3):
                    event = library.Event()
                    waiting.append(event)
                    if len(waiting) == 1:
                        arrived.set()
                    await event.wait()

    async def read() -> None:
        nonlocal arrived
        while True:
            await arrived.wait()
            await library.lowlevel.checkpoint()
            arrived = library.Event()
            for event in waiting:
                event.set()
            waiting.clear()

    async with task_group() as reader:
        reader.start_soon(read)
        async with task_group() as senders:
            for _ in range(TASKS):
                senders.start_soon(send)
        reader.cancel_scope.cancel()


def cost(run: Callable[[Callable[[], Awaitable[None]]], object], *parts: Any) -> float:
    """µs of processor time a send."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        run(partial(exchange, *parts))
        rounds.append((time.process_time() - began) / SENDS * 1e6)
    return min(rounds)


if __name__ == "__main__":
    of_anyio = (anyio, anyio.create_task_group)
    print(f"Trio               {cost(trio.run, trio, trio.open_nursery):5.1f} µs")
    print(f"AnyIO over Trio    {cost(partial(anyio.run, backend='trio'), *of_anyio):5.1f} µs")
    print(f"AnyIO over asyncio {cost(anyio.run, *of_anyio):5.1f} µs")
