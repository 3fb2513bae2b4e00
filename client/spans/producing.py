"""What sends a producer's messages: plain, or with spans if the settings have a tracer provider.

Producers without spans load none of OpenTelemetry and run none of its code.
"""

from __future__ import annotations

import trio

from triomq.client.core.config import ProducerSettings
from triomq.client.core.message_trace import MessageTrace
from triomq.client.core.session import Session
from triomq.client.sending.auto_batch import Accumulator
from triomq.client.sending.sender import Sender
from triomq.client.spans.attributes import tracer_of


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
