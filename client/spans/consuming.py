"""Hooks that make a consumer's spans, if the settings have a tracer provider.

Consumers without spans load none of OpenTelemetry and run none of its code.
"""

from __future__ import annotations

from triomq.client.core.config import ConsumerSettings
from triomq.client.receiving.observed import Observers
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
