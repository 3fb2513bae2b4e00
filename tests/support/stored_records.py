"""Records for tests of readers, built field by field: independent of the product's encoder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

from triomq.remoting.core.errors import RemoteProtocolError
from triomq.remoting.protocol.record import StoredMessage, encode_record
from triomq.remoting.protocol.record_reader import read_record

V4_HOST = (b"\x7f\x00\x00\x01", 50_000)
V6_HOST = (bytes(15) + b"\x01", 50_001)


def properties_text(properties: Mapping[str, str], *, ended: bool = True) -> bytes:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    return text if ended else text.removesuffix(b"\x02")


def stored_record(
    body: bytes,
    *,
    topic: str = "orders",
    queue_id: int = 0,
    offset: int = 0,
    log_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    properties: bytes | Mapping[str, str] = b"",
    born: tuple[bytes, int] = V4_HOST,
    stored: tuple[bytes, int] = V4_HOST,
    born_ms: int = 1_700_000_000_000,
    store_ms: int = 1_700_000_000_001,
    reconsume_times: int = 0,
    v2: bool = False,
) -> bytes:
    """Return one record as in the commit log and in pull answers."""
    sys_flag |= (0x10 if len(born[0]) == 16 else 0) | (0x20 if len(stored[0]) == 16 else 0)
    text = properties if isinstance(properties, bytes) else properties_text(properties)
    name = topic.encode()
    rest = b"".join(
        [
            struct.pack(
                ">iiiqqiq",
                zlib.crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                offset,
                log_offset,
                sys_flag,
                born_ms,
            ),
            born[0],
            struct.pack(">iq", born[1], store_ms),
            stored[0],
            struct.pack(">iiqi", stored[1], reconsume_times, 0, len(body)),
            body,
            struct.pack(">H", len(name)) if v2 else bytes([len(name)]),
            name,
            struct.pack(">h", len(text)),
            text,
        ]
    )
    return struct.pack(">iI", len(rest) + 8, 0xDAA320AB if v2 else 0xDAA320A7) + rest


def encoded_record(*, properties: bytes, append_crc: bool = False, **fields: Any) -> bytes:
    """Return what ``encode_record`` does.

    `append_crc`: whether to add the property ``__CRC32#``, as Java can: the CRC of all bytes before
    it, the least significant digit first.
    """
    if not append_crc:
        return encode_record(properties=properties, **fields)
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    begun = encode_record(properties=properties + bytes(20), **fields)[:-20]
    digits = f"{zlib.crc32(begun) & 0x7FFFFFFF:010d}"[::-1]
    return begun + f"__CRC32#\x01{digits}\x02".encode()


def decode_record(data: bytes, position: int = 0, *, check_crc: bool = False) -> StoredMessage:
    """Return the one message at a position."""
    found = read_record(data, position, len(data), check_crc)
    if isinstance(found, str):
        raise RemoteProtocolError(found)
    return found
