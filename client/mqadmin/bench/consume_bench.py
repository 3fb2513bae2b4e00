"""``bench consume``: messages of a topic, through the SDK's push consumer.

Without a topic the benchmark sends its own load at a steady rate, and measures end to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import trio

from triomq.client.core.background import open_background
from triomq.client.core.config import ConsumerSettings
from triomq.client.mqadmin.bench.bench_report import ProgressLines, load_progress
from triomq.client.mqadmin.bench.load_plan import LoadPlan
from triomq.client.mqadmin.bench.load_run import EarlyEnd, LoadCounts, load_phase, run_load
from triomq.client.mqadmin.bench.received_counts import ReceivedCounts
from triomq.client.mqadmin.bench.send_bench import (
    BrokerFailures,
    MessageShape,
    publish_queues,
    request_sender,
)
from triomq.client.receiving.offsets import Start
from triomq.client.receiving.received import ReceivedMessage
from triomq.client.sdk.producer import Producer
from triomq.client.sdk.push_consumer import PushConsumer

DRAIN_SECONDS = 3.0
"""how long the run waits, after its own load, for messages that have not come"""
DRAIN_POLL_SECONDS = 0.05


@attrs.frozen(kw_only=True)
class ConsumePlan:
    """How a benchmark consumes."""

    seconds: float
    messages_max: int | None
    concurrency: int
    start: Start
    assign_seconds: float
    """how long it waits for its share of the queues"""


@attrs.define(eq=False)
class ConsumeRun:
    """A run, and what it has counted."""

    namesrv: list[str]
    group: str
    topic: str
    plan: ConsumePlan
    settings: ConsumerSettings
    received: ReceivedCounts = attrs.field(factory=ReceivedCounts)
    load: LoadCounts | None = None
    failures: BrokerFailures = attrs.field(factory=BrokerFailures)
    seconds: float = 0.0
    """from the first share of the queues to the last message; to the end if there was none"""
    interrupted: bool = False
    assigned: bool = False
    """the consumer got its share of the queues in time"""
    _began_at: float | None = None
    _first_at: float | None = None
    _last_at: float | None = None
    """Trio's clock, as the two before"""
    _lines: ProgressLines = attrs.field(factory=ProgressLines)

    async def consume(
        self,
        tell: Callable[[str], object],
        producer: Producer | None,
        load: LoadPlan,
        shape: MessageShape,
    ) -> None:
        """Consume until the plan or a signal ends it; ``tell`` gets a line each second.

        ``producer``: sends ``load`` at the same time, None for a topic that others fill.
        """

        def progress() -> None:
            if self._began_at is None:
                return
            parts = () if self.load is None else load_progress(self.load)
            seconds = trio.current_time() - self._began_at
            more = (f"{self.received.duplicates} duplicates", *parts)
            tell(self._lines.line(seconds, self.received.received, *more))

        async with load_phase(progress) as end:
            consumer = PushConsumer(
                self.namesrv,
                group=self.group,
                subscriptions=self.topic,
                batch_handler=lambda messages: self._take(messages, end),
                concurrency=self.plan.concurrency,
                consume_from=self.plan.start,
                settings=self.settings,
            )
            async with consumer, open_background() as nursery:
                nursery.start_soon(self._time_out, consumer, end, producer, load, shape)
                await end.stop.wait()
                self.seconds = self._length(trio.current_time())
            self.interrupted = end.interrupted

    def _length(self, now: float) -> float:
        """Return ``seconds``: without the idle time after a backlog, which would hide the rate."""
        begins = [at for at in (self._began_at, self._first_at) if at is not None]
        end = now if self._last_at is None else self._last_at
        return end - min(begins) if begins else 0.0

    async def _time_out(
        self,
        consumer: PushConsumer,
        end: EarlyEnd,
        producer: Producer | None,
        load: LoadPlan,
        shape: MessageShape,
    ) -> None:
        """Wait for a share of the queues, then for the end of the load or of the time."""
        with trio.move_on_after(self.plan.assign_seconds):
            await consumer.wait_assigned()
            self.assigned = True
        # Without a whole share it goes on: a broker that hangs must not hide what others deliver.
        self._began_at = trio.current_time()
        if producer is not None:
            await self._send(end, producer, load, shape)
        else:
            await trio.sleep(self.plan.seconds)
        end.stop.set()

    async def _send(
        self, end: EarlyEnd, producer: Producer, load: LoadPlan, shape: MessageShape
    ) -> None:
        """Send the load, then wait a moment for messages that have not come."""
        self.load = LoadCounts()
        queues = await publish_queues(producer, self.topic)
        send = request_sender(producer, queues, shape, self.failures)
        await run_load(load, send, self.load, end.stop, messages=shape.batch)
        with trio.move_on_after(DRAIN_SECONDS):
            while self.received.received < self.load.sent:  # noqa: ASYNC110  (a poll in 50 ms costs less than an event for each batch)
                await trio.sleep(DRAIN_POLL_SECONDS)

    async def _take(self, messages: list[ReceivedMessage], end: EarlyEnd) -> None:
        await trio.lowlevel.checkpoint()
        now_ms = time.time() * 1000
        self._last_at = trio.current_time()
        if self._first_at is None:
            self._first_at = self._last_at
        for message in messages:
            self.received.note(
                message.message_id,
                len(message.body),
                message.born_timestamp,
                message.store_timestamp,
                now_ms,
            )
        most = self.plan.messages_max
        if most is not None and self.received.received >= most:
            end.stop.set()
