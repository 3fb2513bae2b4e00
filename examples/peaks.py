"""Peak shaving: a burst is stored at once, and the workers handle it at their own pace.

NAMESRV_ADDR=127.0.0.1:9876 python examples/peaks.py
"""

import sys

import trio

from triomq import Producer, PushConsumer, ReceivedMessage

BURST = 600
WORKERS = 4
WORK = 0.01
"""Seconds that one order takes: four workers handle 400 orders a second."""


async def main(namesrv: str | None) -> None:
    """Store the burst, then handle it with four tasks."""
    done: set[str] = set()
    busy = most_busy = 0
    finished = trio.Event()

    async def work(message: ReceivedMessage) -> None:
        nonlocal busy, most_busy
        busy += 1
        most_busy = max(most_busy, busy)
        await trio.sleep(WORK)
        busy -= 1
        done.add(message.body.decode())
        if len(done) == BURST:
            finished.set()

    async with Producer(namesrv, group="tickets") as producer:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(BURST):
                nursery.start_soon(producer.send, "Tickets", f"ticket-{number}".encode())
        taken = trio.current_time() - began
    print(f"{BURST} orders are stored")

    async with PushConsumer(
        namesrv,
        group="office",
        subscriptions="Tickets",
        consume_from="first",
        handler=work,
        concurrency=WORKERS,
    ):
        began = trio.current_time()
        await finished.wait()
        worked = trio.current_time() - began
    print(f"{len(done)} orders are done, never more than {most_busy} at a time")
    print(f"taken in {taken:.2f} s, worked off in {worked:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
