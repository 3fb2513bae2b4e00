"""The sender of a producer and the hooks of a consumer: with spans if there is a tracer provider.

Clients without spans load none of OpenTelemetry and run none of its code.
"""

from __future__ import annotations

import trio

from triomq.client.core.config import ConsumerSettings, ProducerSettings
from triomq.client.core.message_trace import MessageTrace
from triomq.client.core.session import Session
from triomq.client.receiving.observed import Observers
from triomq.client.sending.auto_batch import Accumulator
from triomq.client.sending.sender import Sender
from triomq.client.spans.attributes import tracer_of


def add_spans(observers: Observers, settings: ConsumerSettings, *, broadcast: bool) -> None:
    """Add the hooks that make a consumer's spans, if it has a tracer provider."""
    tracer = tracer_of(settings.client)
    if tracer is None:
        return
    from triomq.client.spans.handling import HandlingSpans  # the extra `otel`

    spans = HandlingSpans(tracer, settings.client.namespace, broadcast)
    observers.consume_hooks = (*observers.consume_hooks, spans)
    observers.settle_hooks = (*observers.settle_hooks, spans)


def make_sender(
    group: str, session: Session, settings: ProducerSettings, trace: MessageTrace | None
) -> Sender:
    """Return a producer's sender."""
    tracer = tracer_of(settings.client)
    if tracer is None:
        return Sender(group, session, settings, trace)
    from triomq.client.spans.sending import SendSpans, SpanSender  # the extra `otel`

    spans = SendSpans(tracer, session.client_id, settings.client.namespace)
    return SpanSender(group, session, settings, trace, spans=spans)


def make_accumulator(
    settings: ProducerSettings, nursery: trio.Nursery, sender: Sender
) -> Accumulator:
    """Return what makes a producer's automatic batches."""
    if settings.client.tracer_provider is None:
        return Accumulator(settings, nursery, sender)
    from triomq.client.spans.sending import SpanAccumulator, SpanSender  # the extra `otel`

    assert isinstance(sender, SpanSender)
    return SpanAccumulator(settings, nursery, sender, spans=sender.spans)
