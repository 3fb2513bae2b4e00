"""Bodies compressed by the sending client: sysFlag bit 0, and bits 8 to 10 for how.

Only zlib (RFC 1950) is read and written; LZ4 and ZSTD bodies are named as such in the error.
Source: common/…/compression/CompressionType.java, ZlibCompressor.java.
"""

import zlib

from triomq.remoting.errors import RemoteProtocolError
from triomq.remoting.protocol.message import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

COMPRESS_FROM_BYTES = 4096
LEVEL = 5
_NAMES = {COMPRESSION_LZ4: "LZ4", COMPRESSION_ZSTD: "ZSTD"}


def compress_body(body: bytes, *, threshold_bytes: int = COMPRESS_FROM_BYTES, level: int = LEVEL) -> tuple[bytes, int]:
    """The body to send and the sysFlag bits that describe it; short bodies stay as they are."""
    if len(body) < threshold_bytes:
        return body, 0
    return zlib.compress(body, level), COMPRESSED | COMPRESSION_ZLIB


def plain_body(body: bytes, sys_flag: int, *, bytes_max: int = 64 * 1024 * 1024) -> bytes:
    """The body as its producer had it; RemoteProtocolError if it cannot be inflated, or to more than *bytes_max*."""
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind not in (0, COMPRESSION_ZLIB):
        name = _NAMES.get(kind, f"type {kind >> 8}")
        raise RemoteProtocolError(f"a body is compressed with {name}", "let producers use zlib, the default")
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise RemoteProtocolError(f"a compressed body cannot be inflated: {error}", "send it again") from None
    if inflater.unconsumed_tail:
        raise RemoteProtocolError(f"a body inflates to more than {bytes_max} bytes", "send smaller messages")
    if not inflater.eof:
        raise RemoteProtocolError("a compressed body ends too early", "send it again")
    return plain
