"""Spans of a producer: "send" around each send, "create" for each message that travels with others.

The trace context travels as the properties ``traceparent`` and ``tracestate`` (or what the
application's propagator writes). A message that has a ``traceparent`` of the application keeps it;
its send is linked to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Link, Span, SpanKind, Tracer, get_current_span, set_span_in_context

from triomq.client.sending.auto_batch import Accumulator, BatchKey
from triomq.client.sending.encoding import OutgoingMessage
from triomq.client.sending.receipt import SendReceipt
from triomq.client.sending.sender import Sender, SendTarget
from triomq.client.spans import attributes as names
from triomq.remoting.core.address import parse_address
from triomq.remoting.protocol.batch import encode_batch
from triomq.remoting.protocol.codes import RequestCode
from triomq.remoting.protocol.message_properties import UNIQ_KEY, parse_properties


@attrs.define(eq=False)
class SendSpans:
    """Makes the spans of one producer."""

    tracer: Tracer
    client_id: str
    namespace: str | None

    @contextmanager
    def sending(self, outgoing: OutgoingMessage, *, batch: bool = False) -> Iterator[Span]:
        """Span a send; write the context into the message, or into each message of a batch."""
        given = self._operation("send", "send", outgoing.topic)
        links: list[Link] = []
        kind = SpanKind.CLIENT
        if batch:
            links = self._create_all(outgoing)
            given[names.BATCH_COUNT] = len(links)
        else:
            given |= self._message(
                outgoing.message_id, outgoing.body, parse_properties(outgoing.properties)
            )
            if names.has_context(outgoing.properties):
                links = linked(parse_properties(outgoing.properties))
            else:
                kind = SpanKind.PRODUCER
        with self.tracer.start_as_current_span(
            f"send {outgoing.topic}", kind=kind, attributes=given, links=links
        ) as span:
            if kind is SpanKind.PRODUCER:
                outgoing.properties = _injected(outgoing.properties, span)
            try:
                yield span
            except BaseException as error:
                span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
                raise

    def create(self, topic: str, message_id: str, body: bytes, properties: str) -> str:
        """Return the properties with a context of the message's own, made by a "create" span."""
        if names.has_context(properties):
            return properties
        given = self._operation("create", "create", topic)
        given |= self._message(message_id, body, parse_properties(properties))
        span = self.tracer.start_span(f"create {topic}", kind=SpanKind.PRODUCER, attributes=given)
        try:
            return _injected(properties, span)
        finally:
            span.end()

    def stored(self, span: Span, receipt: SendReceipt, address: str | None) -> None:
        """Add to a span where the message is."""
        queue = receipt.queue
        span.set_attribute(names.PARTITION, f"{queue.broker_name}:{queue.queue_id}")
        if address is not None:
            host, port = parse_address(address)
            span.set_attribute(names.SERVER_ADDRESS, host)
            span.set_attribute(names.SERVER_PORT, port)

    def _create_all(self, outgoing: OutgoingMessage) -> list[Link]:
        """Give each message of a batch a context, and return the links to them."""
        made: list[tuple[int, bytes, bytes]] = []
        links: list[Link] = []
        for flag, body, text in names.batch_elements(outgoing.body):
            message_id = parse_properties(text).get(UNIQ_KEY, "")
            text = self.create(outgoing.topic, message_id, body, text)
            made.append((flag, body, text.encode()))
            links += linked(parse_properties(text))
        if made:
            outgoing.body = encode_batch(made)
        return links

    def _operation(self, name: str, kind: str, topic: str) -> dict[str, object]:
        given = names.operation(name, kind, topic)
        given[names.CLIENT_ID] = self.client_id
        if self.namespace is not None:
            given[names.NAMESPACE] = self.namespace
        return given

    def _message(
        self, message_id: str, body: bytes, properties: dict[str, str]
    ) -> dict[str, object]:
        return {
            names.MESSAGE_ID: message_id,
            names.BODY_SIZE: len(body),
            **names.of_properties(properties),
        }


def linked(properties: dict[str, str]) -> list[Link]:
    """Return the link to a message's context, if it has one."""
    span = get_current_span(extract(properties, Context()))
    context = span.get_span_context()
    return [Link(context)] if context.is_valid else []


def _injected(properties: str, span: Span) -> str:
    carrier: dict[str, str] = {}
    inject(carrier, set_span_in_context(span))
    return names.with_context(properties, carrier)


@attrs.define(eq=False)
class SpanSender(Sender):
    """A sender with a span around each send."""

    spans: SendSpans = attrs.field(kw_only=True)

    async def send(
        self,
        outgoing: OutgoingMessage,
        *,
        target: SendTarget | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        deadline: float | None = None,
    ) -> SendReceipt:
        batch = code == RequestCode.SEND_BATCH_MESSAGE
        with self.spans.sending(outgoing, batch=batch) as span:
            receipt = await Sender.send(self, outgoing, target=target, code=code, deadline=deadline)
            address = self.session.routes.master(receipt.queue.broker_name)
            self.spans.stored(span, receipt, address)
            return receipt

    async def send_oneway(
        self, outgoing: OutgoingMessage, *, target: SendTarget | None = None
    ) -> None:
        with self.spans.sending(outgoing):
            await Sender.send_oneway(self, outgoing, target=target)


@attrs.define(eq=False)
class SpanAccumulator(Accumulator):
    """Automatic batches whose messages have a context of the task that sends them."""

    spans: SendSpans = attrs.field(kw_only=True)

    async def send(self, outgoing: OutgoingMessage, key: BatchKey, deadline: float) -> SendReceipt:
        outgoing.properties = self.spans.create(
            outgoing.topic, outgoing.message_id, outgoing.body, outgoing.properties
        )
        return await Accumulator.send(self, outgoing, key, deadline)
