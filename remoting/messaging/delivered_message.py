"""A stored message as a 5.x consumer gets it. PURE; called for every message.

Bodies: 5.x clients inflate what is marked GZIP. Producers of the remoting protocol compress with
zlib, which Java's and Python's clients recognise by its first bytes, but Node's does not. Both
formats frame the same DEFLATE data, so a zlib body gets the frame of gzip: only its checksum must
be computed, nothing is compressed again, and the answer stays small. LZ4 and Zstandard, for which
the service has no encoding, are delivered plain.

Source: proxy/grpc/v2/common/GrpcConverter.java#buildSystemProperties.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

from triomq.remoting.core.address import format_address
from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.grpc.apache_rocketmq import definition_pb2 as pb
from triomq.remoting.messaging.sent_message import BORN_HOST, TRACE_CONTEXT
from triomq.remoting.protocol.compression import plain_body
from triomq.remoting.protocol.message_properties import (
    DELAY,
    KEYS,
    RESERVED_PROPERTIES,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRAN_MSG,
)
from triomq.remoting.protocol.record import StoredMessage
from triomq.remoting.protocol.sys_flags import COMPRESSED, COMPRESSION_MASK, COMPRESSION_ZLIB

DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
PLAIN_BYTES_MAX = 16 * 1024 * 1024
"""Longer bodies are delivered as stored: to inflate one of this size takes 40 to 80 ms on CPython
3.11. Java's and Python's clients can read zlib.
"""

_NORMAL, _FIFO = pb.MessageType.NORMAL, pb.MessageType.FIFO
_DELAY, _TRANSACTION = pb.MessageType.DELAY, pb.MessageType.TRANSACTION
_GZIP, _IDENTITY = pb.Encoding.GZIP, pb.Encoding.IDENTITY
_MD5 = pb.DigestType.MD5
_DELAYS = frozenset({DELAY, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS})
_GZIP_MAGIC = b"\x1f\x8b"
# No name, no time, made by an unknown system. Source: RFC 1952, section 2.3.
_GZIP_HEAD = _GZIP_MAGIC + b"\x08\x00\x00\x00\x00\x00\x00\xff"
_ZLIB_HEAD_BYTES, _ZLIB_TAIL_BYTES = 2, 4
_PIECE_BYTES = 256 * 1024
_TIME_MS_MAX = 253_402_300_799_999
_MS_DIGITS_MAX = 19
_REDELIVERIES_MAX = 0x7FFF_FFFE


def delivered_message(
    message: StoredMessage,
    *,
    topic: str | pb.Resource,
    handle: str,
    invisible_ms: int | None,
    made: pb.Message | None = None,
) -> pb.Message:
    """Return a message as a client gets it.

    ``topic``: the one that it was sent to, also if it comes from a retry topic: as the client names
    it, or the brokers' name. ``handle``: empty if there is nothing to acknowledge. ``made``: filled
    instead of a new one.
    """
    properties = message.properties
    if made is None:
        made = pb.Message()
    body, encoding = message.body, _IDENTITY
    if message.sys_flag & COMPRESSED:
        body, encoding = _body(body, message.sys_flag)
    made.body = body
    if isinstance(topic, str):
        made.topic.name = topic
    else:
        made.topic.CopyFrom(topic)
    if not RESERVED_PROPERTIES.issuperset(properties):
        made.user_properties.update(
            {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}
        )
    # Assignments are a third faster than arguments of a constructor.
    system = made.system_properties
    system.message_id = message.message_id
    digest = system.body_digest
    digest.type = _MD5
    digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = encoding
    system.message_type = _type(properties)
    _set_time(system.born_timestamp, message.born_timestamp)
    system.born_host = properties.get(BORN_HOST) or message.born_host[0]
    _set_time(system.store_timestamp, message.store_timestamp)
    system.store_host = format_address(*message.store_host)
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = min(message.reconsume_times, _REDELIVERIES_MAX) + 1
    if handle:
        system.receipt_handle = handle
    if invisible_ms is not None:
        _set_time(system.invisible_duration, invisible_ms)
    if (tag := properties.get(TAGS)) is not None:
        system.tag = tag
    if KEYS in properties:
        system.keys.extend(message.keys)
    if (group := properties.get(SHARDING_KEY)) is not None:
        system.message_group = group
    if (trace_context := properties.get(TRACE_CONTEXT)) is not None:
        system.trace_context = trace_context
    if (due_ms := _due_ms(properties)) is not None:
        _set_time(system.delivery_timestamp, due_ms)
    if DLQ_ORIGIN_TOPIC in properties and DLQ_ORIGIN_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties[DLQ_ORIGIN_MESSAGE_ID]
    return made


def _type(properties: Mapping[str, str]) -> pb.MessageType:
    """Return the type that the properties of a message say.

    Source: common/attribute/TopicMessageType.java#parseFromMessageProperty.
    """
    if properties.get(TRAN_MSG) == "true":
        return _TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return _DELAY
    return _FIFO if SHARDING_KEY in properties else _NORMAL


def _due_ms(properties: Mapping[str, str]) -> int | None:
    """Return when a timed message was to be delivered.

    Java's proxy adds TIMER_DELAY_SEC to the time of the receive instead; TIMER_OUT_MS is the time
    that the broker made of it.
    """
    text = properties.get(TIMER_DELIVER_MS) or properties.get(TIMER_OUT_MS)
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= _MS_DIGITS_MAX):
        return None
    return int(text)


def _set_time(field: Any, time_ms: int) -> None:
    """Set a timestamp or duration. Clients break at one after the year 9999, or before 1970."""
    time_ms = min(max(time_ms, 0), _TIME_MS_MAX)
    field.seconds = time_ms // 1000
    field.nanos = time_ms % 1000 * 1_000_000


# Bodies


def unpacks(message: StoredMessage) -> bool:
    """Tell whether the body of a message is unpacked for its client."""
    packed = message.sys_flag & COMPRESSED and not message.body.startswith(_GZIP_MAGIC)
    return bool(packed)


def _body(body: bytes, sys_flag: int) -> tuple[bytes, pb.Encoding]:
    """Return a compressed body as clients can read it, and its encoding.

    A body that cannot be read stays as it is: its consumer reports it as corrupted, and the other
    messages of the answer arrive.
    """
    if body.startswith(_GZIP_MAGIC):
        return body, _GZIP
    if sys_flag & COMPRESSION_MASK in (0, COMPRESSION_ZLIB):
        return _as_gzip(body) or body, _GZIP
    try:
        return plain_body(body, sys_flag, bytes_max=PLAIN_BYTES_MAX), _IDENTITY
    except RemoteProtocolError:
        return body, _GZIP


def _as_gzip(body: bytes) -> bytes | None:
    """Return a zlib stream as a gzip file; None if it is damaged or too long.

    Source: RFC 1950, section 2.2; RFC 1952, section 2.3.
    """
    inflater = zlib.decompressobj()
    checksum = size = 0
    rest = body
    try:
        while rest:
            piece = inflater.decompress(rest, _PIECE_BYTES)
            checksum = zlib.crc32(piece, checksum)
            size += len(piece)
            rest = inflater.unconsumed_tail
            if size > PLAIN_BYTES_MAX:
                return None
    except zlib.error:
        return None
    if not inflater.eof or inflater.unused_data:
        return None
    deflated = body[_ZLIB_HEAD_BYTES:-_ZLIB_TAIL_BYTES]
    tail = checksum.to_bytes(4, "little") + size.to_bytes(4, "little")
    return b"".join((_GZIP_HEAD, deflated, tail))
