"""Consume as a member of a group: a handler, concurrency, failures that come again.

NAMESRV_ADDR=127.0.0.1:9876 python examples/push_consumer.py

It runs until Ctrl-C; several of them share the work. Delivery is at least once: a message comes
again after a failure, a crash or a rebalance. Remember ``message_id`` (or your own key) where that
matters, as ``done`` does here.
"""

import json
import sys

import trio

from triomq import PushConsumer, ReceivedMessage


async def main(namesrv: str | None, count: int | None) -> None:
    """Handle orders, ``count`` of them or for ever."""
    done: set[str] = set()
    finished = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.message_id in done:
            return  # a duplicate: the normal end acks it
        order = json.loads(message.body)  # an exception here retries the message
        await trio.sleep(0.001)  # stands for the real work
        done.add(message.message_id)
        print(
            f"{message.tag} {order} (delivery {message.reconsume_times + 1}, from"
            f" {message.queue.broker_name})"
        )
        if count is not None and len(done) >= count:
            finished.set()

    async with PushConsumer(
        namesrv,
        group="billing",
        subscriptions={"Orders": "paid || refunded"},
        consume_from="first",
        handler=handle,
        concurrency=20,
    ):
        await finished.wait()
    print(f"{len(done)} orders done")


if __name__ == "__main__":
    try:
        trio.run(
            main,
            sys.argv[1] if len(sys.argv) > 1 else None,
            int(sys.argv[2]) if len(sys.argv) > 2 else None,
        )
    except* KeyboardInterrupt:
        print("stopped")
