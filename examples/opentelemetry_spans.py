"""Spans of OpenTelemetry: one trace from the sender to the handler. Needs opentelemetry-sdk.

NAMESRV_ADDR=127.0.0.1:9876 python examples/opentelemetry_spans.py
"""

import sys

import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from triomq import (
    ClientSettings,
    ConsumerSettings,
    Producer,
    ProducerSettings,
    PushConsumer,
    ReceivedMessage,
)


async def main(namesrv: str | None) -> None:
    """Send an order within a span, and handle it within the same trace."""
    provider = TracerProvider()
    provider.add_span_processor(
        SimpleSpanProcessor(
            ConsoleSpanExporter(
                formatter=lambda span: f"{span.context.trace_id:032x} {span.name}\n"
            )
        )
    )
    trace.set_tracer_provider(provider)
    handled = trio.Event()

    client = ClientSettings(tracer_provider=trace.get_tracer_provider())
    async with Producer(
        namesrv, group="shop", settings=ProducerSettings(client=client)
    ) as producer:
        with trace.get_tracer("shop").start_as_current_span("order"):
            await producer.send("Spanned", b"order 7")

    async def bill(message: ReceivedMessage) -> None:
        with trace.get_tracer("billing").start_as_current_span("bill"):
            await trio.sleep(0.01)
        handled.set()

    async with PushConsumer(
        namesrv,
        group="billing",
        subscriptions="Spanned",
        consume_from="first",
        handler=bill,
        settings=ConsumerSettings(client=client),
    ):
        await handled.wait()


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
