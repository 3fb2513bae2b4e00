"""Names and values of OpenTelemetry's conventions for messaging, and the context in a message.

Pure, and without OpenTelemetry. Source: opentelemetry.io/docs/specs/semconv/messaging (1.38),
messaging-spans and rocketmq; www.w3.org/TR/trace-context.
"""

from __future__ import annotations

from collections.abc import Mapping

from triomq.client.core.config import ClientSettings
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.batch import decode_batch
from triomq.remoting.protocol.message_properties import (
    DELAY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
)

SYSTEM = "rocketmq"
BATCH_COUNT = "messaging.batch.message_count"
BODY_SIZE = "messaging.message.body.size"
CLIENT_ID = "messaging.client.id"
CONSUMER_GROUP = "messaging.consumer.group.name"
CONSUMPTION_MODEL = "messaging.rocketmq.consumption_model"
DESTINATION = "messaging.destination.name"
ERROR_TYPE = "error.type"
MESSAGE_ID = "messaging.message.id"
MESSAGE_KEYS = "messaging.rocketmq.message.keys"
MESSAGE_TAG = "messaging.rocketmq.message.tag"
MESSAGE_TYPE = "messaging.rocketmq.message.type"
NAMESPACE = "messaging.rocketmq.namespace"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
PARTITION = "messaging.destination.partition.id"
SERVER_ADDRESS, SERVER_PORT = "server.address", "server.port"

_TIMED = (DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS)
_TRACEPARENT = "traceparent\x01"


def tracer_of(settings: ClientSettings) -> object:
    """Return the tracer of this package, or None without a tracer provider."""
    provider = settings.tracer_provider
    return None if provider is None else provider.get_tracer("triomq")


def operation(name: str, kind: str, topic: str) -> dict[str, object]:
    """Return what every span has; ``kind``: create, send, receive, process or settle."""
    return {
        "messaging.system": SYSTEM,
        OPERATION_NAME: name,
        OPERATION_TYPE: kind,
        DESTINATION: topic,
    }


def of_properties(properties: Mapping[str, str]) -> dict[str, object]:
    """Return what a message's properties tell about it."""
    found: dict[str, object] = {}
    if tag := properties.get(TAGS):
        found[MESSAGE_TAG] = tag
    if keys := properties.get(KEYS):
        found[MESSAGE_KEYS] = keys.split()
    if properties.get(TRAN_MSG) == "true":
        found[MESSAGE_TYPE] = "transaction"
    elif any(name in properties for name in _TIMED):
        found[MESSAGE_TYPE] = "delay"
    else:
        found[MESSAGE_TYPE] = "fifo" if SHARDING_KEY in properties else "normal"
    return found


def has_context(properties_text: str) -> bool:
    """Return whether a message carries a trace context, made here or by the application."""
    return properties_text.startswith(_TRACEPARENT) or f"\x02{_TRACEPARENT}" in properties_text


def with_context(properties_text: str, carrier: Mapping[str, str]) -> str:
    """Return the properties with those of the trace context.

    Values that cannot travel are left out, and all of them if the properties would be too long: a
    message is more important than its trace.
    """
    added = "".join(
        f"{name}\x01{value}\x02"
        for name, value in carrier.items()
        if name and value and "\x01" not in value and "\x02" not in value
    )
    separator = "" if not properties_text or properties_text.endswith("\x02") else "\x02"
    whole = f"{properties_text}{separator}{added}"
    return whole if len(whole.encode()) <= PROPERTIES_BYTES_MAX else properties_text


def batch_elements(body: bytes) -> list[tuple[int, bytes, str]]:
    """Return flag, body and properties text of a batch's messages; none if it cannot be read."""
    try:
        return [(flag, own, encoded.decode()) for flag, own, encoded in decode_batch(body)]
    except (RemoteProtocolError, UnicodeDecodeError):
        return []
