"""The layout of a record, a message in the log, and how one is written.

The answers to requests 11, 12, 33, 39 and 309 and to POP requests carry records, too. Records are
read in ``record_reader``.

::

    size i32 | magic u32 | bodyCRC u32 | queueId i32 | flag i32 | queueOffset i64 | logOffset i64 |
    sysFlag i32 | bornTimestamp i64 | bornHost 8 or 20 | storeTimestamp i64 | storeHost 8 or 20 |
    reconsumeTimes i32 | preparedTransactionOffset i64 | bodyLength i32 | body |
    topicLength i8 (V1) or i16 (V2) | topic | propertiesLength i16 | properties

A host is 4 or 16 address bytes and the port as i32; bits 0x10 and 0x20 of sysFlag say which. V2 is
for topics of more than 127 characters. The CRC is CRC-32 of the body without the top bit. Source:
store/…/CommitLog.java, MessageExtEncoder.java, common/…/message/MessageDecoder.java,
MessageVersion.java.

The commit log's append packs ``head_struct(sys_flag)`` itself and joins head, body,
``topic_field(topic)``, length of the properties and properties; all other callers use
``encode_record``.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from struct import Struct
from typing import Any, TypeAlias

from triomq.remoting.core.errors import LocalProtocolError
from triomq.remoting.protocol.checksum import crc32
from triomq.remoting.protocol.message_properties import (
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    decode_properties,
)
from triomq.remoting.protocol.short_repr import short_bytes, short_text
from triomq.remoting.protocol.structs import msgspec
from triomq.remoting.protocol.sys_flags import BORN_HOST_V6, STORE_HOST_V6

Buffer: TypeAlias = Any
"""bytes, bytearray, memoryview or mmap."""

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
"""Marks the unused rest of a segment: ``i32 bytes left | u32 magic | anything``."""

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
BLANK = Struct(">iI")
LENGTH = Struct(">h")
QUEUE_OFFSET_AT = 20
LOG_OFFSET_AT = 28
SYS_FLAG_AT = 36
TOPIC_V1_MAX = 127
"""Bytes, and characters as Java counts them."""

HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_HEADS = {
    born | store: Struct(f">iIIiiqqiq{20 if born else 8}sq{20 if store else 8}siqi")
    for born in (0, BORN_HOST_V6)
    for store in (0, STORE_HOST_V6)
}
HEAD_V4 = _HEADS[0]
"""The fields up to and including bodyLength when both hosts are IPv4: 88 bytes."""


def head_struct(sys_flag: int) -> Struct:
    """Return the layout of a record's fields up to and including bodyLength."""
    return _HEADS[sys_flag & HOST_BITS]


def body_crc(body: Buffer) -> int:
    """Return the CRC that records carry: CRC-32 without the top bit."""
    return crc32(body) & 0x7FFFFFFF


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> tuple[int, bytes]:
    """Return the magic, and the topic with its length in front.

    Raises: LocalProtocolError if the topic is too long for a record.
    """
    data = topic.encode()
    units = len(topic.encode("utf-16-be")) // 2
    if units <= TOPIC_V1_MAX and len(data) <= TOPIC_V1_MAX:
        return MAGIC_V1, bytes([len(data)]) + data
    if len(data) > 0x7FFF:
        raise LocalProtocolError(f"a topic of {len(data)} bytes does not fit a record")
    return MAGIC_V2, LENGTH.pack(len(data)) + data


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the bits of sysFlag that say how long the hosts are."""
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
) -> bytes:
    """Return the bytes of one record.

    `born_host`, `store_host`: as ``encode_host`` returns them, 8 or 20 bytes.

    Raises: LocalProtocolError if the topic, the properties or a number do not fit.
    """
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"properties of {len(properties)} bytes; the limit is {PROPERTIES_BYTES_MAX}"
        )
    if not {len(born_host), len(store_host)} <= {HOST_V4_BYTES, HOST_V6_BYTES}:
        raise LocalProtocolError("a record's hosts have 8 or 20 bytes: address and port")
    flags = sys_flag & ~HOST_BITS | host_flags(born_host, store_host)
    layout = head_struct(flags)
    magic, topic_bytes = topic_field(topic)
    size = layout.size + len(body) + len(topic_bytes) + 2 + len(properties)
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
    return b"".join((head, body, topic_bytes, LENGTH.pack(len(properties)), properties))


def encode_blank(size: int) -> bytes:
    """Return the eight bytes that mark ``size`` unused bytes at the end of a segment."""
    return BLANK.pack(size, MAGIC_BLANK)


class StoredMessage(msgspec.Struct, eq=False, gc=False):
    """One decoded record.

    The body is as it lies in the log: compressed if ``sys_flag`` says so. Times are in ms. A
    Struct, not attrs, because a consumer makes one per message: 0.3 µs less.
    """

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host_bytes: bytes
    store_timestamp: int
    store_host_bytes: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    body_crc: int
    properties_bytes: bytes
    _properties: dict[str, str] | None = None

    def __repr__(self) -> str:
        texts: dict[str, Callable[[Any], str]] = {
            "topic": short_text,
            "body": short_bytes,
            "properties_bytes": short_bytes,
        }
        hidden = ("born_host_bytes", "store_host_bytes", "_properties")
        shown = [
            f"{name}={texts.get(name, repr)(getattr(self, name))}"
            for name in self.__struct_fields__
            if name not in hidden
        ]
        return f"StoredMessage({', '.join(shown)})"

    @property
    def properties(self) -> dict[str, str]:
        """The decoded properties: the same dict at every use, so that a consumer may add to it."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_bytes)
        return self._properties

    @property
    def born_host(self) -> tuple[str, int]:
        """Address and port of the producer."""
        return host_text(self.born_host_bytes)

    @property
    def store_host(self) -> tuple[str, int]:
        """Address and port of the broker."""
        return host_text(self.store_host_bytes)

    @property
    def offset_message_id(self) -> str:
        """The id that says where the record lies: store host and log offset."""
        return f"{self.store_host_bytes.hex().upper()}{self.log_offset:016X}"

    @property
    def message_id(self) -> str:
        """The id that the producer gave the message, or else the offset id."""
        return self.properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def tag(self) -> str | None:
        """The property TAGS."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The business keys: the parts of KEYS between blanks.

        Other white space belongs to a key. Source: common/…/message/MessageExt.java#getKeys.
        """
        return tuple(filter(None, self.properties.get(KEYS, "").split(" ")))


# ------------------------------------------------------------------------------------------------
# hosts

_PORT = Struct(">i")


def encode_host(address: bytes, port: int) -> bytes:
    """Return a host as records carry it: 4 or 16 address bytes and the port."""
    return address + _PORT.pack(port)


@lru_cache(maxsize=4096)
def host_text(host: bytes) -> tuple[str, int]:
    """Return address and port of an encoded host; IPv6 in its usual shortened form."""
    (port,) = _PORT.unpack_from(host, len(host) - 4)
    address = host[:-4]
    if len(address) == 4:
        return ".".join(map(str, address)), port
    return str(IPv6Address(address)), port
