"""What the traces of clients tell about messages, asked of all brokers of the trace topic."""

from __future__ import annotations

from collections.abc import Awaitable

import attrs

from triomq.client.admin.answers import Answers
from triomq.client.admin.errors import TraceTopicMissing
from triomq.client.core.errors import RouteNotFound
from triomq.client.trace.trace_events import TraceEvent, read_events
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.short_repr import short_count


@attrs.frozen
class MessageHistory:
    """What happened to messages."""

    events: list[TraceEvent] = attrs.field(repr=short_count)
    """in order of time"""
    answers: Answers[list[StoredMessage]]
    """the trace messages, by broker name"""


async def message_history(
    key: str, trace_topic: str, found: Awaitable[Answers[list[StoredMessage]]]
) -> MessageHistory:
    """Return what the trace messages that a query finds tell about an id or a business key.

    The records of one call of a handler may lie at different brokers.

    Raises: TraceTopicMissing.
    """
    try:
        answers = await found
    except RouteNotFound:
        raise TraceTopicMissing(trace_topic) from None
    stored = [message for some in answers.values.values() for message in some]
    return MessageHistory(read_events(key, stored), answers)
