"""``bench send``: messages to a topic, through the SDK's producer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from triomq.client.admin.errors import NotWritable
from triomq.client.core.errors import TrioMQError
from triomq.client.mqadmin.bench.bench_report import ProgressLines, load_progress
from triomq.client.mqadmin.bench.load_plan import LoadPlan
from triomq.client.mqadmin.bench.load_run import LoadCounts, load_phase, run_load
from triomq.client.sdk.producer import Producer
from triomq.remoting.protocol.bodies.route import MessageQueue
from triomq.remoting.protocol.message import Message

BODY = b"0123456789abcdef"


@attrs.frozen(kw_only=True)
class MessageShape:
    """What each message is like."""

    size: int
    """bytes of the body"""
    batch: int = 1
    """messages of each request"""
    keys: int = 0
    """keys of each message"""
    tag: str | None = None
    delay_seconds: float | None = None

    def body(self) -> bytes:
        """Return a body of the size."""
        return (BODY * (self.size // len(BODY) + 1))[: self.size]

    def keys_of(self, number: int) -> list[str]:
        """Return the keys of message ``number``."""
        return [f"bench-{number}-{key}" for key in range(self.keys)]


@attrs.define(eq=False)
class BrokerFailures:
    """Which brokers failed, and why: the last reason of each."""

    sent: Counter[str] = attrs.field(factory=Counter)
    reasons: dict[str, str] = attrs.field(factory=dict)


def request_sender(
    producer: Producer, queues: Sequence[MessageQueue], shape: MessageShape, seen: BrokerFailures
) -> Callable[[int], Awaitable[None]]:
    """Return the function that sends request number n, to the queues in turn, in one attempt."""
    body, topic = shape.body(), queues[0].topic

    async def send(number: int) -> None:
        queue = queues[number % len(queues)]
        try:
            if shape.batch > 1:
                first = number * shape.batch
                messages = [
                    Message(topic=topic, body=body, tag=shape.tag, keys=shape.keys_of(first + n))
                    for n in range(shape.batch)
                ]
                await producer.send_batch(messages, queue=queue)
            else:
                await producer.send(
                    topic,
                    body,
                    tag=shape.tag,
                    keys=shape.keys_of(number),
                    delay=shape.delay_seconds,
                    queue=queue,
                )
        except TrioMQError as error:
            seen.reasons[queue.broker_name] = str(error)
            raise
        seen.sent[queue.broker_name] += 1

    return send


async def publish_queues(producer: Producer, topic: str) -> Sequence[MessageQueue]:
    """Return the queues to send to, those of all brokers mixed. Raises: NotWritable."""
    queues = await producer.queues(topic)
    if not queues:
        raise NotWritable(topic)
    return sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))


async def run_send_bench(
    producer: Producer,
    topic: str,
    plan: LoadPlan,
    shape: MessageShape,
    tell: Callable[[str], object],
) -> tuple[LoadCounts, BrokerFailures, bool]:
    """Send until the plan or a signal ends it; ``tell`` gets a line each second.

    Returns: what came of it, the brokers' failures, and whether a signal ended it.
    """
    counts, seen, lines = LoadCounts(), BrokerFailures(), ProgressLines()
    send = request_sender(producer, await publish_queues(producer, topic), shape, seen)

    def progress() -> None:
        seconds = counts.seconds(trio.current_time())
        tell(lines.line(seconds, counts.sent, *load_progress(counts)))

    async with load_phase(progress) as end:
        await run_load(plan, send, counts, end.stop, messages=shape.batch)
    return counts, seen, end.interrupted
