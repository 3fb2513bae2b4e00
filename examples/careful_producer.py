"""A producer under load: back-pressure, slow brokers left out, a selector, hooks, and error
handling.

NAMESRV_ADDR=127.0.0.1:9876 python examples/careful_producer.py
"""

import sys
from collections import Counter
from collections.abc import Sequence

import trio

from triomq import (
    Message,
    MessageInvalid,
    MessageQueue,
    Producer,
    ProducerSettings,
    SendContext,
    SendError,
    TrioMQError,
)


class Meter:
    """A send hook: called before and after every try; it must not wait."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def before_send(self, context: SendContext) -> None:
        """Remember when the try began."""
        context.attributes["began"] = trio.current_time()

    def after_send(self, context: SendContext) -> None:
        """Count how it ended."""
        self.outcomes["stored" if context.receipt else type(context.error).__name__] += 1


def no_secrets(context: SendContext) -> None:
    """A check: its error is the outcome of the send."""
    if b"password" in context.body:
        raise PermissionError("passwords are not sent around")


def by_first_letter(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """A selector: chooses the queue of a message."""
    return queues[message.body[0] % len(queues)]


async def main(namesrv: str | None) -> None:
    """Send some words."""
    meter = Meter()
    settings = ProducerSettings(
        send_timeout=5,  # all tries and look-ups together
        latency_faults=True,  # a broker that was slow or failed is left out for a while
        in_flight_messages_max=100,  # further sends wait
        in_flight_bytes_max=10_000_000,
        send_hooks=[meter],
        check_forbidden=[no_secrets],
    )
    async with Producer(namesrv, group="press", settings=settings) as producer:
        for word in ("apple", "avocado", "banana"):
            receipt = await producer.send("Words", word.encode(), select=by_first_letter)
            print(f"{word} is in queue {receipt.queue.queue_id}")

        try:
            await producer.send("Words", b"my password")
        except PermissionError as error:
            print("forbidden:", error)
        try:
            await producer.send("Words", b"x" * 5_000_000)
        except MessageInvalid as error:
            print("invalid:", error)
        message_id = producer.new_message_id()
        try:
            await producer.send("Words", b"pear", message_id=message_id)
        except SendError as error:
            # If both are stored (`error.maybe_stored`), consumers see by the id that they are the
            # same message.
            again = await producer.send("Words", b"pear", message_id=message_id)
            print(f"sent again after {error}:", again.status)
        except TrioMQError as error:
            print("refused:", error)
    print(dict(meter.outcomes))


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
