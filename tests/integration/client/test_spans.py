"""Spans of OpenTelemetry, collected by its own SDK, over a real cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import SpanKind, StatusCode

import triomq.sync
from triomq import (
    ConsumerSettings,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SettingsError,
)
from triomq.client.core.config import ClientSettings
from triomq.testing import InProcessCluster

KNOWN = {
    value
    for module in (messaging_attributes, error_attributes, server_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}
"""The names of OpenTelemetry's conventions, in its own package."""
TYPES = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}
MESSAGE_TYPES = {kind.value for kind in messaging_attributes.MessagingRocketmqMessageTypeValues}
OWN_CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """An application's tracer provider, and what it collected."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.client = ClientSettings(tracer_provider=self.provider)

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans of that name, checked against the conventions."""
        for span in self._exporter.get_finished_spans():
            attributes = span.attributes or {}
            if "messaging.system" in attributes:
                assert set(attributes) <= KNOWN
                assert attributes["messaging.system"] == "rocketmq"
                assert attributes["messaging.operation.type"] in TYPES
                assert attributes.get("messaging.rocketmq.message.type", "normal") in MESSAGE_TYPES
                assert span.name == (
                    f"{attributes['messaging.operation.name']}"
                    f" {attributes['messaging.destination.name']}"
                )
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def producing(cluster: InProcessCluster, spans: Spans, **more: Any) -> Producer:
    settings = ProducerSettings(client=spans.client, **more)
    return Producer(cluster.namesrv_address, group="shop", settings=settings)


async def consume(
    cluster: InProcessCluster,
    spans: Spans,
    count: int,
    handle: Callable[[ReceivedMessage], object] = lambda message: None,
    **more: Any,
) -> list[ReceivedMessage]:
    """Run a consumer with a handler until it has handled so many messages."""
    handled: list[ReceivedMessage] = []

    async def handler(message: Any) -> None:
        await trio.lowlevel.checkpoint()
        handled.extend(message if isinstance(message, list) else [message])
        handle(message)

    kind = "batch_handler" if "batch_max" in more else "handler"
    with trio.fail_after(30):
        async with PushConsumer(
            cluster.namesrv_address,
            group="billing",
            subscriptions="Orders",
            consume_from="first",
            settings=ConsumerSettings(client=spans.client),
            **{kind: handler},
            **more,
        ):
            while len(handled) < count:
                await trio.sleep(0.01)
    return handled


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def ids(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.span_id for span in spans}


async def test_one_trace_from_the_sender_to_the_settlement(
    triomq_cluster: InProcessCluster,
) -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("shop")
    async with producing(triomq_cluster, spans) as producer:
        with tracer.start_as_current_span("order"):
            receipt = await producer.send("Orders", b"body", tag="paid", keys=["o-1", "o-2"])
    (message,) = await consume(
        triomq_cluster, spans, 1, lambda message: tracer.start_span("charge").end()
    )
    (order,), (send,) = spans.named("order"), spans.named("send Orders")
    (process,), (charge,), (ack,) = map(spans.named, ("process Orders", "charge", "ack Orders"))
    assert send.parent is not None
    assert send.parent.span_id == order.context.span_id
    assert message.properties["traceparent"] == (
        f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}"
        f"-{send.context.trace_flags:02x}"
    )
    for inner, outer in ((process, send), (charge, process), (ack, send)):
        assert inner.parent is not None
        assert inner.parent.span_id == outer.context.span_id
        assert inner.context.trace_id == order.context.trace_id
    assert linked(ack) == ids([send])
    kinds = [span.kind for span in (send, process, ack)]
    assert kinds == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    attributes = dict(send.attributes or {})
    host, _, port = triomq_cluster.brokers[0].address.partition(":")
    assert attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "Orders",
        "messaging.destination.partition.id": f"broker-a:{receipt.queue.queue_id}",
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("o-1", "o-2"),
        "messaging.rocketmq.message.type": "normal",
        "server.address": host,
        "server.port": int(port),
    }
    for span, kind in ((process, "process"), (ack, "settle")):
        attributes = dict(span.attributes or {})
        assert attributes["messaging.operation.type"] == kind
        assert attributes["messaging.message.id"] == receipt.message_id
        assert attributes["messaging.consumer.group.name"] == "billing"


async def test_messages_of_a_batch_have_their_own_contexts(
    triomq_cluster: InProcessCluster,
) -> None:
    spans = Spans()
    async with producing(triomq_cluster, spans) as producer:
        receipts = await producer.send_batch(
            [Message(topic="Orders", body=b"%d" % number) for number in range(3)]
        )
    created, (send,) = spans.named("create Orders"), spans.named("send Orders")
    assert [(span.attributes or {})["messaging.message.id"] for span in created] == [
        receipt.message_id for receipt in receipts
    ]
    assert linked(send) == ids(created)
    assert (send.attributes or {})["messaging.batch.message_count"] == 3
    assert send.kind is SpanKind.CLIENT
    await consume(triomq_cluster, spans, 3, batch_max=3, concurrency=1)
    (process,) = spans.named("process Orders")
    assert linked(process) == ids(created)
    assert process.parent is None
    assert {next(iter(linked(span))) for span in spans.named("ack Orders")} == ids(created)


async def test_automatic_batches_keep_the_context_of_each_sender(
    triomq_cluster: InProcessCluster,
) -> None:
    spans = Spans()
    tracer = spans.provider.get_tracer("shop")
    async with producing(triomq_cluster, spans, auto_batch=True) as producer:

        async def send(number: int) -> None:
            with tracer.start_as_current_span(f"task {number}"):
                await producer.send("Orders", b"%d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(send, number)
    created = spans.named("create Orders")
    parents = {span.parent.span_id for span in created if span.parent is not None}
    assert parents == ids([spans.named(f"task {number}")[0] for number in range(5)])
    assert set().union(*map(linked, spans.named("send Orders"))) == ids(created)


async def test_failures_and_returned_messages(triomq_cluster: InProcessCluster) -> None:
    spans = Spans()
    async with producing(triomq_cluster, spans, retries=0) as producer:
        with pytest.raises(triomq.TrioMQError):
            await producer.send("Orders", b"x", queue=99)
        await producer.send_oneway("Orders", b"x")

    def fail(message: ReceivedMessage) -> None:
        raise LookupError("no such order")

    await consume(triomq_cluster, spans, 1, fail)
    failed, oneway = spans.named("send Orders")
    (process,), (retry,) = spans.named("process Orders"), spans.named("retry Orders")
    assert process.parent is not None
    assert process.parent.span_id == oneway.context.span_id
    assert linked(retry) == ids([oneway])
    for span, error in ((failed, "MessageInvalid"), (process, "LookupError")):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == error
        assert [event.name for event in span.events] == ["exception"]


async def test_a_context_of_the_application_is_kept(triomq_cluster: InProcessCluster) -> None:
    """With spans it is linked to; without any it travels, and is copied to another topic."""
    spans = Spans()
    own = {"traceparent": OWN_CONTEXT}
    async with producing(triomq_cluster, spans) as producer:
        await producer.send("Orders", b"x", properties=own)
    async with Producer(triomq_cluster.namesrv_address, group="plain") as plain:
        await plain.send("Orders", b"x", properties=own)
    (send,) = spans.named("send Orders")
    assert {f"{span_id:016x}" for span_id in linked(send)} == {OWN_CONTEXT.split("-")[2]}
    messages = await consume(triomq_cluster, spans, 2)
    for message in messages:
        assert message.properties["traceparent"] == OWN_CONTEXT
        assert message.copy_to("Archive").properties["traceparent"] == OWN_CONTEXT
    for process in spans.named("process Orders"):
        assert f"{process.context.trace_id:032x}" == OWN_CONTEXT.split("-")[1]


async def test_iterating_and_polling(triomq_cluster: InProcessCluster) -> None:
    spans = Spans()
    address = triomq_cluster.namesrv_address
    settings = ConsumerSettings(client=spans.client)
    current: list[int] = []
    async with producing(triomq_cluster, spans) as producer:
        for _ in range(2):
            await producer.send("Orders", b"x")
    async with PushConsumer(
        address, group="a", subscriptions="Orders", consume_from="first", settings=settings
    ) as pushed:
        async with await anext(pushed):
            current.append(trace.get_current_span().get_span_context().span_id)
        await (await anext(pushed)).ack()
        assert not trace.get_current_span().get_span_context().is_valid
    processed = spans.named("process Orders")
    assert current[0] in ids(processed)
    assert len(processed) == len(spans.named("ack Orders")) == 2
    async with PullConsumer(
        address, group="b", subscriptions="Orders", consume_from="first", settings=settings
    ) as pulled:
        left = 2
        while left:
            left -= len(await pulled.poll())
    sent = ids(spans.named("send Orders"))
    polls = spans.named("poll Orders")
    assert set().union(*map(linked, polls)) == sent
    assert {(span.attributes or {})["messaging.operation.type"] for span in polls} == {"receive"}


async def test_a_poll_of_two_topics_is_two_spans(triomq_cluster: InProcessCluster) -> None:
    spans = Spans()
    topics = ["Orders", "Refunds"]
    async with Producer(triomq_cluster.namesrv_address, group="shop") as producer:
        for topic in topics:
            await producer.send(topic, b"x")
    async with PullConsumer(
        triomq_cluster.namesrv_address,
        group="b",
        subscriptions=topics,
        consume_from="first",
        settings=ConsumerSettings(client=spans.client),
    ) as polling:
        await trio.sleep(0.2)
        left = 2
        while left:
            left -= len(await polling.poll())
    for topic in topics:
        (poll,) = spans.named(f"poll {topic}")
        assert (poll.attributes or {})["messaging.batch.message_count"] == 1
        assert linked(poll) == set()  # the sender had no spans


async def test_a_provider_that_records_nothing(triomq_cluster: InProcessCluster) -> None:
    """As the application's own one is while no SDK is configured."""
    spans = Spans()
    spans.client = ClientSettings(tracer_provider=trace.NoOpTracerProvider())
    async with producing(triomq_cluster, spans, auto_batch=True) as producer:
        await producer.send("Orders", b"x")
        await producer.send_batch([Message(topic="Orders", body=b"y")] * 2)
    for message in await consume(triomq_cluster, spans, 3):
        assert "traceparent" not in message.properties


def test_other_interfaces_send_in_the_span_of_their_caller(triomq_server: str) -> None:
    spans = Spans()
    settings = ProducerSettings(client=spans.client)
    with triomq.sync.Producer(triomq_server, group="shop", settings=settings) as producer:
        with spans.provider.get_tracer("shop").start_as_current_span("order"):
            producer.send("SpansOfOthers", b"x")
    (order,), (send,) = spans.named("order"), spans.named("send SpansOfOthers")
    assert send.parent is not None
    assert send.parent.span_id == order.context.span_id


def test_a_tracer_provider_is_checked() -> None:
    with pytest.raises(SettingsError, match="tracer_provider must be TracerProvider or None"):
        ClientSettings(tracer_provider=True)  # type: ignore[arg-type]


def test_without_spans_nothing_of_opentelemetry_is_loaded() -> None:
    program = """
import sys, trio, triomq
from triomq.testing import local_cluster
async def main():
    async with local_cluster() as cluster:
        address = cluster.namesrv_address
        async with triomq.Producer(address, group="g") as producer:
            await producer.send("T", b"x")
        async with triomq.PushConsumer(
            address, group="c", subscriptions="T", consume_from="first"
        ) as consumer:
            message = await anext(consumer)
            assert type(message) is triomq.ReceivedMessage, type(message)
trio.run(main)
assert [name for name in sys.modules if name.startswith("opentelemetry")] == []
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
