"""``TraceEvent``: what a message trace tells about one message, joined from several records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from triomq.client.core.trace_records import (
    KINDS,
    ConsumeOutcome,
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedKind,
    TraceRecord,
    decode_trace,
    trace_keys,
)
from triomq.remoting.core.errors import ProtocolError
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.short_repr import short_text, short_value


@attrs.frozen(kw_only=True)
class TraceEvent:
    """One thing that happened to a message; what the record does not say is None."""

    kind: str
    """``"Pub"``, ``"Sub"``, ``"EndTransaction"`` or ``"Recall"``, as Java's tools name them"""
    message_id: str
    group: str | None
    client_host: str
    """the client that did it; if the record has none, the sender of the trace message"""
    timestamp: int
    """when it began, in milliseconds since 1970; 0 if unknown"""
    cost_ms: int | None = None
    success: bool | None = None
    """None of a handler whose end has no record (yet)"""
    topic: str | None = None
    tag: str | None = attrs.field(default=None, repr=short_text)
    keys: tuple[str, ...] = attrs.field(default=(), repr=short_value)
    store_host: str | None = None
    offset_message_id: str | None = None
    body_bytes: int | None = None
    message_kind: TracedKind | None = None
    retry_times: int | None = None
    """earlier deliveries to the group"""
    outcome: ConsumeOutcome | None = None
    transaction_id: str | None = None
    state: str | None = None
    from_check: bool | None = None
    region: str | None = None


def trace_events(key: str, traces: Iterable[tuple[Sequence[TraceRecord], str]]) -> list[TraceEvent]:
    """Return what happened to the messages with this id or business key, in its order of time.

    ``traces``: the records of each trace message, and the host that sent it. The two records of a
    handler's call are joined, wherever they are; one that is stored twice counts once.
    """
    events: dict[TraceEvent, None] = {}
    begun: dict[tuple[str, str], tuple[SubBeforeRecord, str]] = {}
    ended: dict[tuple[str, str], tuple[SubAfterRecord, str]] = {}
    for records, host in traces:
        for record in records:
            if key not in trace_keys(record):
                continue
            if isinstance(record, SubBeforeRecord):
                begun[record.request_id, record.message_id] = record, host
            elif isinstance(record, SubAfterRecord):
                ended[record.request_id, record.message_id] = record, host
            else:
                events[_single(record, host)] = None
    for call in begun.keys() | ended.keys():
        events[_joined(begun.get(call), ended.get(call))] = None
    order = _ORDER.index
    return sorted(events, key=lambda event: (event.timestamp, order(event.kind), event.message_id))


_WORDS = {kind: word for word, kind in KINDS.items()}
_ORDER = ("Pub", "EndTransaction", "Recall", "Sub")
"""the order of events in one millisecond"""


def read_events(key: str, stored: Iterable[StoredMessage]) -> list[TraceEvent]:
    """Return what trace messages tell about the messages with this id or business key.

    A trace message that cannot be decompressed tells nothing.
    """
    traces = []
    for message in stored:
        try:
            body = plain_body(message.body, message.sys_flag)
        except ProtocolError:
            continue
        read = decode_trace(bytes(body).decode("utf-8", "replace"))
        # Only these are kept: a trace message may have very many.
        wanted = [record for record in read.records if key in trace_keys(record)]
        traces.append((wanted, str(message.born_host[0])))
    return trace_events(key, traces)


def _single(record: PubRecord | EndTransactionRecord | RecallRecord, host: str) -> TraceEvent:
    fields = attrs.asdict(record, recurse=False)
    if not isinstance(record, RecallRecord):
        fields["message_kind"], fields["keys"] = fields.pop("kind"), _words(record.keys)
    fields["client_host"] = fields.get("client_host") or host
    return TraceEvent(kind=_WORDS[type(record)], **fields)


def _joined(
    begin: tuple[SubBeforeRecord, str] | None, end: tuple[SubAfterRecord, str] | None
) -> TraceEvent:
    before, host = begin if begin is not None else (None, "")
    after, host = end if end is not None else (None, host)
    known = before or after
    assert known is not None
    return TraceEvent(
        kind="Sub",
        message_id=known.message_id,
        group=before.group if before is not None else known.group,
        client_host=host,
        timestamp=(before.timestamp if before is not None else known.timestamp) or 0,
        cost_ms=None if after is None else after.cost_ms,
        success=None if after is None else after.success,
        keys=_words(known.keys),
        retry_times=None if before is None else before.retry_times,
        outcome=None if after is None else after.outcome,
        region=None if before is None else before.region,
    )


def _words(keys: str | None) -> tuple[str, ...]:
    return tuple((keys or "").split())
