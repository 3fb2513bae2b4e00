"""Stored messages for tests of readers: built field by field here, independently of the product's own encoder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

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
    """One record as the commit log and the pull answer hold it."""
    sys_flag |= (0x10 if len(born[0]) == 16 else 0) | (0x20 if len(stored[0]) == 16 else 0)
    text = properties if isinstance(properties, bytes) else properties_text(properties)
    name = topic.encode()
    rest = b"".join(
        [
            struct.pack(
                ">iiiqqiq", zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag, offset, log_offset, sys_flag, born_ms
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
