"""The records of a message trace and their text, as Java's clients and tools write and read it.

::

    kind 0x01 field 0x01 … field 0x02 kind 0x01 …

A trace message has the records of several messages. Its KEYS are the ids and the business keys of
all of them, so that a query by either finds it. Absent values are the word ``null``; a reader in
Java drops empty fields at the end of a record, and fails on the missing field.

Source: client/…/trace/TraceDataEncoder.java; the Go client's ``internal/trace.go`` for the client
host at the end of Pub.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import attrs

FIELD_END, RECORD_END = "\x01", "\x02"
_ABSENT = "null"
_SEPARATORS = str.maketrans({FIELD_END: " ", RECORD_END: " "})
RECORDS_READ_MAX = 100_000
"""Records read from one trace message; the shortest record has about 40 bytes, a body 4 MiB."""


class TracedKind(enum.IntEnum):
    """What kind of message was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeOutcome(enum.IntEnum):
    """How the call of a handler ended (Java: context code)."""

    SUCCESS = 0
    TIMED_OUT = 1
    """later than the consumer's time limit for a message, whatever the handler returned"""
    RAISED = 2
    RETURNED_NULL = 3
    """written by Java's consumers only"""
    FAILED = 4
    """the handler gave the message back"""


@attrs.frozen(kw_only=True)
class PubRecord:
    """A message was sent, and a broker answered."""

    timestamp: int
    """when the send began, in milliseconds since 1970"""
    region: str
    group: str
    topic: str
    message_id: str
    tag: str | None = None
    keys: str | None = None
    """separated by blanks"""
    store_host: str
    """the broker's address"""
    body_bytes: int
    cost_ms: int
    kind: TracedKind = TracedKind.NORMAL
    offset_message_id: str | None = None
    """None in records of old clients"""
    success: bool
    client_host: str | None = None
    """only in records of clients other than Java's"""


@attrs.frozen(kw_only=True)
class SubBeforeRecord:
    """A handler is about to be called with a message."""

    timestamp: int
    region: str
    group: str
    request_id: str
    """the same in the record of the end of this call"""
    message_id: str
    retry_times: int
    keys: str | None = None


@attrs.frozen(kw_only=True)
class SubAfterRecord:
    """A handler has ended."""

    request_id: str
    message_id: str
    cost_ms: int
    """the time of the call, divided by the number of its messages"""
    success: bool
    keys: str | None = None
    outcome: ConsumeOutcome = ConsumeOutcome.SUCCESS
    timestamp: int | None = None
    """when the handler ended; None, as the group, in records of old clients"""
    group: str | None = None


@attrs.frozen(kw_only=True)
class EndTransactionRecord:
    """A producer has told the broker how a transaction ended."""

    timestamp: int
    region: str
    group: str
    topic: str
    message_id: str
    tag: str | None = None
    keys: str | None = None
    store_host: str
    kind: TracedKind = TracedKind.COMMIT
    transaction_id: str
    state: str
    """COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW (Java's spelling)"""
    from_check: bool


@attrs.frozen(kw_only=True)
class RecallRecord:
    """A producer has asked a broker to recall a timed message."""

    timestamp: int
    region: str
    group: str
    topic: str
    message_id: str
    success: bool


TraceRecord = PubRecord | SubBeforeRecord | SubAfterRecord | EndTransactionRecord | RecallRecord
KINDS: dict[str, type[TraceRecord]] = {
    "Pub": PubRecord,
    "SubBefore": SubBeforeRecord,
    "SubAfter": SubAfterRecord,
    "EndTransaction": EndTransactionRecord,
    "Recall": RecallRecord,
}
"""First word of a record → its class, whose attributes stand in the order of the fields."""
_ENCODED = {
    kind: (word, attrgetter(*(field.name for field in attrs.fields(kind))))
    for word, kind in KINDS.items()
}


def encode_trace(record: TraceRecord) -> str:
    """Return the text of one record, its end included."""
    word, values = _ENCODED[type(record)]
    texts = [word, *map(_text, values(record))]
    if isinstance(record, PubRecord) and record.client_host is None:
        texts.pop()
    elif isinstance(record, SubAfterRecord) and record.timestamp is None:
        texts[7] = "0"
    return FIELD_END.join(texts) + RECORD_END


def trace_keys(record: TraceRecord) -> list[str]:
    """Return the id and the business keys by which the record is found."""
    keys = None if isinstance(record, RecallRecord) else record.keys
    return [record.message_id, *(keys or "").split()]


def _text(value: object) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    # Keys of messages that other clients sent may contain the separators.
    return str(value).translate(_SEPARATORS) or _ABSENT


@attrs.frozen
class TraceText:
    """The records of one trace message."""

    records: Sequence[TraceRecord]
    unreadable: int
    """number of records that are broken, of an unknown kind, or beyond ``RECORDS_READ_MAX``"""


def decode_trace(text: str) -> TraceText:
    """Return the records that can be read, and count the others.

    A broken record costs nobody the others: Java's reader gives up on the whole message.
    """
    records: list[TraceRecord] = []
    pieces = [piece for piece in text.split(RECORD_END) if piece]
    for piece in pieces[:RECORDS_READ_MAX]:
        word, *texts = piece.split(FIELD_END)
        kind = KINDS.get(word)
        if kind is None:
            continue
        if kind is PubRecord and len(texts) == _OLD_PUB_FIELDS:
            texts.insert(-1, _ABSENT)
        try:
            values = {
                field.name: _PARSERS[str(field.type)](text)
                for field, text in zip(attrs.fields(kind), texts)
            }
            records.append(kind(**values))
        except (TypeError, ValueError):  # too few fields, or one that is not a number
            continue
    return TraceText(records, len(pieces) - len(records))


def _maybe(text: str) -> str | None:
    return None if text in ("", _ABSENT) else text


def _truth(text: str) -> bool:
    return text.lower() == "true"


_OLD_PUB_FIELDS = 12
"""Fields of "Pub" without an offset message id."""
_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    # In records for the cloud, the separator behind the outcome is the last character.
    "int | None": lambda text: int(text) if text else None,
    "str": str,
    "str | None": _maybe,
    "bool": _truth,
    "TracedKind": lambda text: TracedKind(int(text)),
    "ConsumeOutcome": lambda text: ConsumeOutcome(int(text or 0)),
}
"""Annotation of a record's attribute → how it is read from its text."""


@attrs.frozen
class TraceBatch:
    """The content of one trace message."""

    text: str
    keys: str
    """separated by blanks"""
    records: int


TEXT_LENGTH_MAX = 128_000
"""Characters of one trace message (Java: the trace producer's maxMessageSize)."""
KEYS_BYTES_MAX = 16_000
"""Bytes of the keys of one trace message; all properties together may have 32,767."""


KEYS_MAX = 500
"""Number of keys of one trace message; our brokers allow 1000, each has a place in the index."""


def pack_traces(records: Iterable[TraceRecord]) -> Iterator[TraceBatch]:
    """Divide records among trace messages within the limits of text and keys.

    Business keys that alone are beyond the limit are left out of the message's keys: a query by the
    message id still finds the record.
    """
    texts: list[str] = []
    keys: dict[str, None] = {}
    length = key_bytes = 0
    for record in records:
        text = encode_trace(record)
        own = trace_keys(record)
        own_bytes = sum(len(key.encode()) + 1 for key in own)
        if own_bytes > KEYS_BYTES_MAX or len(own) > KEYS_MAX:
            own = own[:1]
            own_bytes = len(own[0].encode()) + 1
        if texts and (
            length + len(text) > TEXT_LENGTH_MAX
            or key_bytes + own_bytes > KEYS_BYTES_MAX
            or len(keys) + len(own) > KEYS_MAX
        ):
            yield TraceBatch("".join(texts), " ".join(keys), len(texts))
            texts, keys, length, key_bytes = [], {}, 0, 0
        texts.append(text)
        keys.update(dict.fromkeys(own))
        length += len(text)
        key_bytes += own_bytes
    if texts:
        yield TraceBatch("".join(texts), " ".join(keys), len(texts))
