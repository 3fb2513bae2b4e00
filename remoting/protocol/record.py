"""One message as it lies in the commit log, and as brokers send it in the bodies of 11, 12, 33, 39, 309 and POP answers.

::

    size i32 | magic u32 | bodyCRC u32 | queueId i32 | flag i32 | queueOffset i64 | logOffset i64 | sysFlag i32 |
    bornTimestamp i64 | bornHost 8 or 20 | storeTimestamp i64 | storeHost 8 or 20 | reconsumeTimes i32 |
    preparedTransactionOffset i64 | bodyLength i32 | body | topicLength u8 (V1) or i16 (V2) | topic |
    propertiesLength i16 | properties

A host is 4 or 16 address bytes and the port as i32; bits 0x10 and 0x20 of sysFlag say which. V2 is for topics of more than
127 characters. The CRC is CRC-32 of the body, without its top bit.
Source: store/…/CommitLog.java, MessageExtEncoder.java, common/…/message/MessageDecoder.java, MessageVersion.java.

A store that wants speed packs ``head_struct(sys_flag)`` itself and joins: head, body, ``topic_field(topic)``, length of the
properties, properties. ``encode_record`` does the same for everybody else.
"""

import struct
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Any, TypeAlias

import attrs

from triomq.remoting.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.checksum import crc32
from triomq.remoting.protocol.message import (
    BORN_HOST_V6,
    CRC_PROPERTY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TAGS,
    UNIQ_KEY,
    decode_properties,
)
from triomq.remoting.protocol.reprs import short_bytes, short_text

Buffer: TypeAlias = Any
"""bytes, bytearray, memoryview or mmap: what can be sliced and unpacked from."""

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
"""The rest of a segment is unused: ``i32 bytes left | u32 magic | anything``."""

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
BLANK = Struct(">iI")
LENGTH = Struct(">h")
QUEUE_OFFSET_AT = 20
LOG_OFFSET_AT = 28
SYS_FLAG_AT = 36
TOPIC_V1_MAX = 127  # characters as Java counts them

_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_HEADS = {
    born | store: Struct(f">iIIiiqqiq{20 if born else 8}sq{20 if store else 8}siqi")
    for born in (0, BORN_HOST_V6)
    for store in (0, STORE_HOST_V6)
}
HEAD_V4 = _HEADS[0]
"""Fields up to and with bodyLength when both hosts are IPv4: 88 bytes."""

_HEAD_V4_BYTES = HEAD_V4.size
_read_v4 = HEAD_V4.unpack_from
_read_length = LENGTH.unpack_from
_HOST_BITS_AT = SYS_FLAG_AT + 3  # the byte of sysFlag that holds both bits
_CRC_BYTES = len(CRC_PROPERTY) + 12  # name, 0x01, ten digits, 0x02
_FIX = "the records must be as RocketMQ 4.x or 5.x brokers write them"


def head_struct(sys_flag: int) -> Struct:
    """The layout of a record's fields up to and with bodyLength."""
    return _HEADS[sys_flag & _HOST_BITS]


def body_crc(body: Buffer) -> int:
    """The CRC that records carry: CRC-32 without its top bit."""
    return crc32(body) & 0x7FFFFFFF


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> tuple[int, bytes]:
    """Magic and the topic with its length in front; LocalProtocolError if it is too long for any version."""
    data = topic.encode()
    units = len(topic.encode("utf-16-be")) // 2
    if units <= TOPIC_V1_MAX and len(data) <= TOPIC_V1_MAX:
        return MAGIC_V1, bytes([len(data)]) + data
    if len(data) > 0x7FFF:
        raise LocalProtocolError(f"a topic of {len(data)} bytes does not fit a record")
    return MAGIC_V2, LENGTH.pack(len(data)) + data


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """The bits of sysFlag that say how long the hosts are."""
    return (BORN_HOST_V6 if len(born_host) != HOST_V4_BYTES else 0) | (
        STORE_HOST_V6 if len(store_host) != HOST_V4_BYTES else 0
    )


def encode_record(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    body: bytes,
    properties: bytes,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    append_crc: bool = False,
) -> bytes:
    """Write one record. Hosts are encoded (8 or 20 bytes); *append_crc* adds the property ``__CRC32#``.

    LocalProtocolError if the properties or a number do not fit.
    """
    if append_crc and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties_size = len(properties) + (_CRC_BYTES if append_crc else 0)
    if properties_size > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"properties of {properties_size} bytes; the limit is {PROPERTIES_BYTES_MAX}")
    if len(born_host) not in (HOST_V4_BYTES, HOST_V6_BYTES) or len(store_host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
        raise LocalProtocolError("a record's hosts have 8 or 20 bytes: address and port")
    flags = sys_flag & ~_HOST_BITS | host_flags(born_host, store_host)
    layout = head_struct(flags)
    magic, topic_bytes = topic_field(topic)
    size = layout.size + len(body) + len(topic_bytes) + 2 + properties_size
    try:
        head = layout.pack(
            size,
            magic,
            body_crc(body),
            queue_id,
            flag,
            queue_offset,
            log_offset,
            flags,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise LocalProtocolError(f"a number does not fit its field of a record: {error}") from error
    record = b"".join((head, body, topic_bytes, LENGTH.pack(properties_size), properties))
    return record + crc_property(crc32(record)) if append_crc else record


def crc_property(crc: int) -> bytes:
    """The 20 bytes of ``__CRC32#``; Java writes the digits with the least significant first."""
    digits = f"{crc & 0x7FFFFFFF:010d}"[::-1]
    return f"{CRC_PROPERTY}\x01{digits}\x02".encode()


def has_valid_crc_property(record: bytes) -> bool:
    """Whether a whole record ends with ``__CRC32#`` and the value is right."""
    return len(record) > _CRC_BYTES and crc_property(crc32(record[:-_CRC_BYTES])) == record[-_CRC_BYTES:]


def encode_blank(size: int) -> bytes:
    """The first eight bytes of the *size* unused ones at the end of a segment."""
    return BLANK.pack(size, MAGIC_BLANK)


# -------------------------------------------------------------------------------------------------- reading records


class RecordStatus(IntEnum):
    """What stands at a place of the log."""

    MESSAGE = 0
    BLANK = 1
    BROKEN = 2


@attrs.define(eq=False)
class StoredMessage:
    """One decoded record. Body as stored, so compressed where ``sys_flag`` has bit 0; times in ms."""

    topic: str = attrs.field(repr=short_text)
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host_bytes: bytes = attrs.field(repr=False)
    store_timestamp: int
    store_host_bytes: bytes = attrs.field(repr=False)
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes = attrs.field(repr=short_bytes)
    body_crc: int
    properties_bytes: bytes = attrs.field(repr=short_bytes)
    _properties: dict[str, str] | None = attrs.field(default=None, repr=False)

    @property
    def properties(self) -> dict[str, str]:
        """Decoded at first use; the same dict every time, so that a consumer may add to it."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_bytes)
        return self._properties

    @property
    def born_host(self) -> tuple[str, int]:
        return host_text(self.born_host_bytes)

    @property
    def store_host(self) -> tuple[str, int]:
        return host_text(self.store_host_bytes)

    @property
    def offset_message_id(self) -> str:
        """Where the record lies, as an id: upper-case hex of store host and log offset."""
        return f"{self.store_host_bytes.hex().upper()}{self.log_offset:016X}"

    @property
    def message_id(self) -> str:
        """The id its producer gave it, or the offset id if there is none."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The business keys: what stands between blanks (MessageExt#getKeys is split so, KEY_SEPARATOR); other white space belongs to a key."""
        return tuple(filter(None, self.properties.get(KEYS, "").split(" ")))


@attrs.define(eq=False)
class RecordCheck:
    """What ``check_record`` found.

    *size* is how far to go on: the record's length, for BLANK the bytes left in the segment, for BROKEN the announced
    length if that much was there to read, else 0. The other fields are those of a MESSAGE.
    """

    status: RecordStatus
    size: int
    reason: str = ""
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    sys_flag: int = 0
    store_timestamp: int = 0
    prepared_transaction_offset: int = 0
    body_size: int = 0
    properties: bytes = b""  # encoded text


def check_record(buffer: Buffer, position: int, limit: int, check_crc: bool = True) -> RecordCheck:
    """Judge what stands at *position* of a buffer that is readable up to *limit*; never raises for bad content.

    As Java does, the stored log offset is not compared with the real position, and an empty body has no CRC.
    """
    left = limit - position
    if left < BLANK.size:
        return _broken(0, f"only {left} bytes left")
    size, magic = BLANK.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        return RecordCheck(RecordStatus.BLANK, size)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return _broken(0, f"no record starts here: magic {magic:#010x}")
    if size < BLANK.size or size > left:
        return _broken(0, f"a record of {size} bytes, but {left} bytes left")
    return _check_fields(buffer, position, size, check_crc)


def _check_fields(buffer: Buffer, position: int, size: int, check_crc: bool) -> RecordCheck:
    end = position + size
    if position + _HOST_BITS_AT >= end:
        return _broken(size, f"a record of {size} bytes is shorter than its fixed fields")
    layout = _HEADS[buffer[position + _HOST_BITS_AT] & _HOST_BITS]
    body_at = position + layout.size
    if body_at > end:
        return _broken(size, f"a record of {size} bytes is shorter than its fixed fields")
    fields = layout.unpack_from(buffer, position)
    body_size = fields[14]
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 1 > end:
        return _broken(size, f"a body of {body_size} bytes in a record of {size}")
    spans = _spans(buffer, fields[1], topic_at, end)
    if spans is None or spans[2] != end:
        return _broken(size, f"lengths inside a record of {size} bytes do not add up")
    topic_start, topic_end, _ = spans
    if check_crc and body_size and body_crc(memoryview(buffer)[body_at:topic_at]) != fields[2]:
        return _broken(size, "the body does not match its CRC")
    return RecordCheck(
        status=RecordStatus.MESSAGE,
        size=size,
        topic=str(buffer[topic_start:topic_end], "utf-8", "replace"),
        queue_id=fields[3],
        queue_offset=fields[5],
        log_offset=fields[6],
        sys_flag=fields[7],
        store_timestamp=fields[10],
        prepared_transaction_offset=fields[13],
        body_size=body_size,
        properties=bytes(buffer[topic_end + 2 : end]),
    )


def _spans(buffer: Buffer, magic: int, topic_at: int, end: int) -> tuple[int, int, int] | None:
    """Start and end of the topic, end of the properties; None if they overrun *end*."""
    if magic == MAGIC_V1:
        topic_start = topic_at + 1
        if buffer[topic_at] > TOPIC_V1_MAX:  # a signed byte in Java
            return None
        topic_end = topic_start + buffer[topic_at]
    else:
        if topic_at + 2 > end:
            return None
        topic_start = topic_at + 2
        (length,) = LENGTH.unpack_from(buffer, topic_at)
        if length < 0:
            return None
        topic_end = topic_start + length
    if topic_end + 2 > end:
        return None
    (properties_size,) = LENGTH.unpack_from(buffer, topic_end)
    return (topic_start, topic_end, topic_end + 2 + properties_size) if properties_size >= 0 else None


def _broken(size: int, reason: str) -> RecordCheck:
    return RecordCheck(RecordStatus.BROKEN, size, reason)


def decode_records(buffer: Buffer, *, check_crc: bool = False) -> list[StoredMessage]:
    """All messages of a buffer in which records follow each other; RemoteProtocolError if anything else is in it."""
    messages: list[StoredMessage] = []
    data = bytes(buffer)
    limit = len(data)
    position = 0
    topic, topic_bytes = "", b""
    while position < limit:
        # Nearly every record, without a call for each part of it; whatever is unusual or broken takes the other way.
        body_at = position + _HEAD_V4_BYTES
        if body_at < limit and not (check_crc or data[position + _HOST_BITS_AT] & _HOST_BITS):
            fields = _read_v4(data, position)
            topic_at = body_at + fields[14]
            if body_at <= topic_at < limit and fields[1] == MAGIC_V1 and data[topic_at] <= TOPIC_V1_MAX:
                topic_end = topic_at + 1 + data[topic_at]
                end = position + fields[0]
                if topic_end + 2 <= end <= limit and topic_end + 2 + _read_length(data, topic_end)[0] == end:
                    if data[topic_at + 1 : topic_end] != topic_bytes:
                        topic_bytes = data[topic_at + 1 : topic_end]
                        topic = topic_bytes.decode("utf-8", "replace")
                    size, _, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born, born_host, stored, store_host, times, prepared, _ = fields
                    messages.append(
                        StoredMessage(
                            topic,
                            queue_id,
                            queue_offset,
                            log_offset,
                            size,
                            flag,
                            sys_flag,
                            born,
                            born_host,
                            stored,
                            store_host,
                            times,
                            prepared,
                            data[body_at:topic_at],
                            crc,
                            data[topic_end + 2 : end],
                        )
                    )
                    position = end
                    continue
        message = decode_record(data, position, limit, check_crc=check_crc)
        messages.append(message)
        position += message.size
    return messages


def decode_record(data: bytes, position: int = 0, limit: int | None = None, *, check_crc: bool = False) -> StoredMessage:
    """The message at *position*; RemoteProtocolError if none stands there whole."""
    end = len(data) if limit is None else limit
    if position + HEAD_V4.size > end:
        raise RemoteProtocolError(f"{end - position} bytes are too few for a record", _FIX)
    layout = _HEADS[data[position + _HOST_BITS_AT] & _HOST_BITS]
    body_at = position + layout.size
    if body_at > end:
        raise RemoteProtocolError(f"{end - position} bytes are too few for a record", _FIX)
    (
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_size,
    ) = layout.unpack_from(data, position)
    topic_at = body_at + body_size
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or body_size < 0 or topic_at >= end:
        raise RemoteProtocolError(f"no whole record at byte {position}: magic {magic:#010x}, body {body_size}", _FIX)
    spans = _spans(data, magic, topic_at, end)
    if spans is None or spans[2] != position + size or spans[2] > end:
        raise RemoteProtocolError(f"lengths inside the record at byte {position} do not add up to {size}", _FIX)
    topic_start, topic_end, properties_end = spans
    body = data[body_at:topic_at]
    if check_crc and body_size and body_crc(body) != crc:
        raise RemoteProtocolError(f"the body of the record at byte {position} does not match its CRC", _FIX)
    return StoredMessage(
        str(data[topic_start:topic_end], "utf-8", "replace"),
        queue_id,
        queue_offset,
        log_offset,
        size,
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        crc,
        data[topic_end + 2 : properties_end],
    )


# ---------------------------------------------------------------------------------------------------------- hosts

_PORT = Struct(">i")


def encode_host(address: bytes, port: int) -> bytes:
    """4 or 16 address bytes and the port, as records carry them."""
    return address + _PORT.pack(port)


@lru_cache(maxsize=4096)
def host_text(host: bytes) -> tuple[str, int]:
    """Address and port of an encoded host; IPv6 in its usual shortened form."""
    (port,) = _PORT.unpack_from(host, len(host) - 4)
    address = host[:-4]
    if len(address) == 4:
        return ".".join(map(str, address)), port
    groups = [f"{address[place] << 8 | address[place + 1]:x}" for place in range(0, len(address), 2)]
    # The longest run of zero groups (at least two; the first of equal ones) becomes "::".
    best_start, best_size, start = 0, 1, 0
    while start < len(groups):
        end = start
        while end < len(groups) and groups[end] == "0":
            end += 1
        if end - start > best_size:
            best_start, best_size = start, end - start
        start = end + 1
    if best_size == 1:
        return ":".join(groups), port
    return f"{':'.join(groups[:best_start])}::{':'.join(groups[best_start + best_size :])}", port
