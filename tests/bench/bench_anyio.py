"""What the steps of a send cost on Trio, on AnyIO over Trio, and on AnyIO over asyncio.

    python tests/bench/bench_anyio.py

A send of the SDK waits under a time limit for an event that the connection's reader sets, behind a
limiter of sends in flight: 64 tasks do that here, with no socket and no message. Processor time,
the best of five rounds. See decision 25.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio
import trio

SENDS, TASKS, ROUNDS = 64 * 400, 64, 5


async def in_trio() -> None:
    waiting: list[trio.Event] = []
    limiter, arrived = trio.CapacityLimiter(TASKS), trio.Event()

    async def send() -> None:
        nonlocal arrived
        for _ in range(SENDS // TASKS):
            async with limiter:
                with trio.move_on_after(3):
                    event = trio.Event()
                    waiting.append(event)
                    if len(waiting) == 1:
                        arrived.set()
                    await event.wait()

    async def read() -> None:
        nonlocal arrived
        while True:
            await arrived.wait()
            await trio.lowlevel.checkpoint()
            arrived = trio.Event()
            for event in waiting:
                event.set()
            waiting.clear()

    async with trio.open_nursery() as reader:
        reader.start_soon(read)
        async with trio.open_nursery() as senders:
            for _ in range(TASKS):
                senders.start_soon(send)
        reader.cancel_scope.cancel()


async def in_anyio() -> None:
    waiting: list[anyio.Event] = []
    limiter, arrived = anyio.CapacityLimiter(TASKS), anyio.Event()

    async def send() -> None:
        nonlocal arrived
        for _ in range(SENDS // TASKS):
            async with limiter:
                with anyio.move_on_after(3):
                    event = anyio.Event()
                    waiting.append(event)
                    if len(waiting) == 1:
                        arrived.set()
                    await event.wait()

    async def read() -> None:
        nonlocal arrived
        while True:
            await arrived.wait()
            await anyio.lowlevel.checkpoint()
            arrived = anyio.Event()
            for event in waiting:
                event.set()
            waiting.clear()

    async with anyio.create_task_group() as reader:
        reader.start_soon(read)
        async with anyio.create_task_group() as senders:
            for _ in range(TASKS):
                senders.start_soon(send)
        reader.cancel_scope.cancel()


def cost(run: Callable[[Callable[[], Awaitable[None]]], object], work: object) -> float:
    """µs of processor time a send."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        run(work)  # type: ignore[arg-type]
        rounds.append((time.process_time() - began) / SENDS * 1e6)
    return min(rounds)


if __name__ == "__main__":
    print(f"Trio               {cost(trio.run, in_trio):5.1f} µs")
    print(
        f"AnyIO over Trio    {cost(lambda work: anyio.run(work, backend='trio'), in_anyio):5.1f} µs"
    )
    print(f"AnyIO over asyncio {cost(lambda work: anyio.run(work), in_anyio):5.1f} µs")
