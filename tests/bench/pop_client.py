"""Our SDK's side of ``bench_pop.py``: a simple consumer that pops and acknowledges in some loops.

    python tests/bench/pop_client.py NAME_SERVER TOPIC GROUP UNCOUNTED_SECONDS SECONDS

It prints BEGIN when the seconds begin that count, and then ``POP count seconds``.
"""

from __future__ import annotations

import sys
import time

import trio

from triomq import SimpleConsumer

LOOPS = 8
COUNT = 32


async def main(namesrv: str, topic: str, group: str, uncounted: float, seconds: float) -> None:
    done = 0
    first = trio.Event()
    async with (
        SimpleConsumer(namesrv, group=group, subscriptions=topic, consume_from="first") as consumer,
        trio.open_nursery() as nursery,
    ):

        async def loop() -> None:
            nonlocal done
            while True:
                messages = await consumer.receive(count=COUNT)
                async with trio.open_nursery() as settling:
                    for message in messages:
                        settling.start_soon(consumer.ack, message)
                done += len(messages)
                first.set()

        for _ in range(LOOPS):
            nursery.start_soon(loop)
        await first.wait()
        await trio.sleep(uncounted)
        print("BEGIN", flush=True)
        begun, before = time.perf_counter(), done
        await trio.sleep(seconds)
        print("POP", done - before, time.perf_counter() - begun, sep="\t", flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:4], *map(float, sys.argv[4:6]))
