"""Several members share every queue: even one queue has work for all of them.

NAMESRV_ADDR=127.0.0.1:9876 python examples/pop_workers.py
"""

import sys
from collections import Counter

import trio

from triomq import PushConsumer, ReceivedMessage


async def worker(
    namesrv: str | None, name: str, done: Counter[str], wanted: int, finished: trio.Event
) -> None:
    """Handle orders until ``wanted`` are done by all workers."""

    async def handle(message: ReceivedMessage) -> None:
        await trio.sleep(0.01)  # the work
        done[name] += 1
        if done.total() >= wanted:
            finished.set()

    async with PushConsumer(
        namesrv,
        group="delivery",
        subscriptions="Orders",
        consume_from="first",
        handler=handle,
        concurrency=2,
        mode="pop",
    ):
        await finished.wait()


async def main(namesrv: str | None, wanted: int) -> None:
    """Run eight workers until ``wanted`` orders are delivered."""
    done, finished = Counter[str](), trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(worker, namesrv, f"worker-{number}", done, wanted, finished)
    print(f"{done.total()} orders delivered by {len(done)} workers")


if __name__ == "__main__":
    trio.run(
        main,
        sys.argv[1] if len(sys.argv) > 1 else None,
        int(sys.argv[2]) if len(sys.argv) > 2 else 10,
    )
