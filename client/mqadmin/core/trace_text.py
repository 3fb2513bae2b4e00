"""What happened to a message, as JSON. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triomq.client.trace.trace_events import TraceEvent

TRACE_SHAPE = (
    '{"type": "Pub"|"Sub"|"EndTransaction"|"Recall", "msgId", "topic", "group", "clientHost",'
    ' "timestamp", "costTime", "status", "tags", "keys": [], "storeHost", "offsetMsgId",'
    ' "bodyLength", "msgType", "retryTimes", "outcome", "transactionId", "transactionState",'
    ' "fromCheck", "regionId"}'
)
"""the shape of ``trace_document``"""


def trace_document(event: TraceEvent) -> dict[str, Any]:
    """Return an event as JSON."""
    return {
        "type": event.kind,
        "msgId": event.message_id,
        "topic": event.topic,
        "group": event.group,
        "clientHost": event.client_host or None,
        "timestamp": event.timestamp or None,
        "costTime": event.cost_ms,
        "status": status(event),
        "tags": event.tag,
        "keys": list(event.keys),
        "storeHost": event.store_host,
        "offsetMsgId": event.offset_message_id,
        "bodyLength": event.body_bytes,
        "msgType": None if event.message_kind is None else event.message_kind.name,
        "retryTimes": event.retry_times,
        "outcome": None if event.outcome is None else event.outcome.name,
        "transactionId": event.transaction_id,
        "transactionState": event.state,
        "fromCheck": event.from_check,
        "regionId": event.region,
    }


def status(event: TraceEvent) -> str | None:
    """Return Java's word for the result; None if the records do not say it."""
    if event.kind == "EndTransaction":
        return event.state
    return None if event.success is None else "success" if event.success else "failed"
