"""Spans of a consumer: "process" around a handler's call, "poll", and one for each settlement.

A single message is processed in the trace of its sender; a batch is linked to the contexts of its
messages, which may come from many traces. The span is the current one while the handler runs.
"""

from __future__ import annotations

import time
from typing import Any

import attrs
from opentelemetry.context import Context, attach, detach
from opentelemetry.propagate import extract
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from triomq.client.core.message_hooks import ConsumeContext, SettleContext
from triomq.client.spans import attributes as names

_SPAN, _TOKEN = "triomq.spans.span", "triomq.spans.token"


@attrs.define(eq=False)
class HandlingSpans:
    """A consume hook and a settle hook that make the spans of one consumer."""

    tracer: Tracer
    namespace: str | None
    broadcast: bool

    def before_consume(self, context: ConsumeContext) -> None:
        messages = context.messages
        topic = messages[0].topic
        name, kind = ("poll", "receive") if context.polled else ("process", "process")
        given = self._operation(name, kind, topic, context.group)
        # Other tasks' work that is current where the consumer was opened is not its parent.
        parent, links = Context(), []
        if len(messages) == 1 and not context.polled:
            parent = extract(messages[0].properties, parent)
        else:
            given[names.BATCH_COUNT] = len(messages)
            links = [link for message in messages for link in linked(message)]
        if len(messages) == 1:
            given |= _of_message(messages[0])
        span = self.tracer.start_span(
            f"{name} {topic}",
            parent,
            SpanKind.CLIENT if context.polled else SpanKind.CONSUMER,
            given,
            links,
            start_time=time.time_ns() - round(context.elapsed * 1e9),
        )
        context.attributes[_SPAN] = span
        context.attributes[_TOKEN] = attach(set_span_in_context(span, parent))

    def after_consume(self, context: ConsumeContext) -> None:
        detach(context.attributes.pop(_TOKEN))
        _end(context.attributes.pop(_SPAN), context.error)

    def before_settle(self, context: SettleContext) -> None:
        message = context.message
        given = self._operation(context.outcome, "settle", message.topic, context.group)
        context.attributes[_SPAN] = self.tracer.start_span(
            f"{context.outcome} {message.topic}",
            # A handler's message is settled behind its span: there, in the message's trace.
            None if _is_current() else extract(message.properties, Context()),
            kind=SpanKind.CLIENT,
            attributes=given | _of_message(message),
            links=linked(message),
        )

    def after_settle(self, context: SettleContext) -> None:
        _end(context.attributes.pop(_SPAN), context.error)

    def _operation(self, name: str, kind: str, topic: str, group: str) -> dict[str, object]:
        given = names.operation(name, kind, topic)
        given[names.CONSUMER_GROUP] = group
        given[names.CONSUMPTION_MODEL] = "broadcasting" if self.broadcast else "clustering"
        if self.namespace is not None:
            given[names.NAMESPACE] = self.namespace
        return given


def linked(message: Any) -> list[Link]:
    """Return the link to a message's context, if it has one."""
    span = get_current_span(extract(message.properties, Context()))
    context = span.get_span_context()
    return [Link(context)] if context.is_valid else []


def _is_current() -> bool:
    return bool(get_current_span().get_span_context().is_valid)


def _of_message(message: Any) -> dict[str, object]:
    queue = message.queue
    return {
        names.MESSAGE_ID: message.message_id,
        names.PARTITION: f"{queue.broker_name}:{queue.queue_id}",
        **names.of_properties(message.properties),
    }


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
        if isinstance(error, Exception):  # a cancelled handler has not failed
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, str(error))
    span.end()
