"""Messages as a table or as labelled lines, a body in a character set; a trace as JSON. Pure."""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from triomq.client.admin.documents import body_text
from triomq.client.admin.times import milliseconds_text
from triomq.client.mqadmin.core.result import Columns, Document, Table, table_of

if TYPE_CHECKING:
    from triomq.client.trace.trace_events import TraceEvent

LABELS: Mapping[str, str] = {
    "offsetMsgId": "OffsetID",
    "topic": "Topic",
    "tags": "Tags",
    "keys": "Keys",
    "queueId": "Queue ID",
    "queueOffset": "Queue Offset",
    "commitLogOffset": "CommitLog Offset",
    "reconsumeTimes": "Reconsume Times",
    "bornTimestamp": "Born Timestamp",
    "storeTimestamp": "Store Timestamp",
    "bornHost": "Born Host",
    "storeHost": "Store Host",
    "sysFlag": "System Flag",
    "properties": "Properties",
}


def message_table(documents: Sequence[dict[str, object]], *, bodies: bool = True) -> Table:
    """Return a row for each message."""
    columns: Columns = {
        "Broker Name": "brokerName",
        ">QID": "queueId",
        ">Offset": "queueOffset",
        "Store Time": lambda message: milliseconds_text(message["storeTimestamp"]),
        "Tags": "tags",
        "Keys": lambda message: " ".join(message["keys"]),
        "MsgId": "msgId",
        **({"Body": body_text} if bodies else {}),
    }
    return table_of(documents, columns)


def message_lines(document: Document) -> list[str]:
    """Return a message as labelled lines."""
    lines = []
    for key, label in LABELS.items():
        value = document[key]
        if key.endswith("Timestamp"):
            value = milliseconds_text(value)
        elif key == "keys":
            value = " ".join(value)
        elif key == "properties":
            value = json.dumps(value, ensure_ascii=False, sort_keys=True)
        lines.append(f"{label + ':':<20} {'' if value is None else value}".rstrip())
    lines.append(f"{'Body:':<20} {body_text(document)}")
    if (consumed := document.get("consumed")) is not None:
        lines.append(
            f"{'Consumed by:':<20} {consumed['clientId']}: {consumed['consumeResult']} in"
            f" {consumed['spentTimeMills']} ms {consumed['remark'] or ''}".rstrip()
        )
    return lines


def charset(text: str) -> str:
    """Read the name of a character set."""
    try:
        return codecs.lookup(text.strip()).name
    except LookupError:
        raise ValueError("unknown character set; use for instance utf-8, gbk or latin-1") from None


def in_charset(document: Document, name: str) -> dict[str, object]:
    """Return the message with its body in another character set; undecodable bytes are U+FFFD."""
    body = (
        document["body"].encode()
        if document["body"] is not None
        else base64.b64decode(document["bodyBase64"])
    )
    return {**document, "body": body.decode(name, "replace"), "bodyBase64": None}


def trace_document(event: TraceEvent) -> dict[str, object]:
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
