"""Bodies compressed by the sending client: sysFlag bit 0, and bits 8 to 10 for how.

zlib (RFC 1950) is always there; LZ4 (frame format) and Zstandard need the packages of the extras ``lz4`` and ``zstd``.
Source: common/…/compression/CompressionType.java, ZlibCompressor.java, Lz4Compressor.java, ZstdCompressor.java.
"""

import enum
import zlib
from collections.abc import Callable
from typing import Any

from triomq.remoting.errors import LocalProtocolError, RemoteProtocolError
from triomq.remoting.protocol.message import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

COMPRESS_FROM_BYTES = 4096
LEVEL = 5
BODY_BYTES_MAX = 64 * 1024 * 1024


class Compression(enum.Enum):
    """How bodies are compressed; the value is the name that RocketMQ's ``rocketmq.message.compressType`` takes."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"

    @classmethod
    def of(cls, name: "str | Compression") -> "Compression":
        """The member of a name in any case. LocalProtocolError for another name, and if its package is not installed."""
        if not isinstance(name, Compression):
            try:
                name = cls[str(name).upper()]
            except KeyError:
                raise LocalProtocolError(f"compression {name!r} is not known: use zlib, lz4 or zstd") from None
        try:
            _MODULES[name]()
        except ImportError as error:
            raise LocalProtocolError(_missing(name, error)) from None
        return name


def compress_body(
    body: bytes,
    *,
    threshold_bytes: int = COMPRESS_FROM_BYTES,
    level: int = LEVEL,
    compression: Compression = Compression.ZLIB,
) -> tuple[bytes, int]:
    """The body to send and the sysFlag bits that describe it; short bodies stay as they are.

    As in Java the result is taken even where it is longer. *level*: zlib 0 to 9, Zstandard up to 22; LZ4 knows none in RocketMQ.
    """
    if len(body) < threshold_bytes:
        return body, 0
    pack, bits = _PACKERS[compression]
    return pack(body, level), COMPRESSED | bits


def plain_body(body: bytes, sys_flag: int, *, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body as its producer had it, however it was compressed.

    RemoteProtocolError if it cannot be read, is longer than *bytes_max*, or needs a package that is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body
    compression = _OF_BITS.get(sys_flag & COMPRESSION_MASK)
    if compression is None:
        kind = (sys_flag & COMPRESSION_MASK) >> 8
        raise RemoteProtocolError(f"a body is compressed with type {kind}", "let producers use zlib, lz4 or zstd")
    try:
        plain, complete = _UNPACKERS[compression](body, bytes_max)
    except ImportError as error:
        raise RemoteProtocolError("a body cannot be read", _missing(compression, error)) from None
    except _Broken as error:
        raise RemoteProtocolError(f"a compressed body cannot be inflated: {error}", "send it again") from None
    if len(plain) > bytes_max:
        raise RemoteProtocolError(f"a body inflates to more than {bytes_max} bytes", "send smaller messages")
    if not complete:
        raise RemoteProtocolError("a compressed body ends too early", "send it again")
    return plain


class _Broken(Exception):
    """A library's own complaint."""


def _missing(compression: Compression, error: ImportError) -> str:
    extra = compression.value.lower()
    return f"install {compression.value} with: pip install 'triomq[{extra}]' ({error})"


# Each reader returns at most one byte more than asked for, and whether the compressed data ended where it should.


def _inflate(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _Broken(str(error)) from None
    return plain, inflater.eof


def _read_lz4(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    reader = _lz4().LZ4FrameDecompressor()
    try:
        plain: bytes = reader.decompress(body, bytes_max + 1)
    except RuntimeError as error:
        raise _Broken(str(error)) from None
    return plain, reader.eof


def _read_zstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """Piece by piece, since the library has no limit for its output: 4 bytes can become 128 KiB, so one piece at most 16 MiB."""
    zstandard = _zstd()
    reader = zstandard.ZstdDecompressor().decompressobj()
    plain: list[bytes] = []
    size = position = 0
    try:
        while position < len(body) and size <= bytes_max and not reader.eof:
            piece = reader.decompress(body[position : position + _PIECE_BYTES])
            plain.append(piece)
            size += len(piece)
            position += _PIECE_BYTES
    except zstandard.ZstdError as error:
        raise _Broken(str(error)) from None
    return b"".join(plain), reader.eof


def _pack_lz4(body: bytes, level: int) -> bytes:
    packed: bytes = _lz4().compress(body)
    return packed


def _pack_zstd(body: bytes, level: int) -> bytes:
    packed: bytes = _zstd().ZstdCompressor(level=level).compress(body)
    return packed


def _lz4() -> Any:
    import lz4.frame  # an optional extra

    return lz4.frame


def _zstd() -> Any:
    import zstandard  # an optional extra

    return zstandard


_PIECE_BYTES = 512
_PACKERS: dict[Compression, tuple[Callable[[bytes, int], bytes], int]] = {
    Compression.ZLIB: (zlib.compress, COMPRESSION_ZLIB),
    Compression.LZ4: (_pack_lz4, COMPRESSION_LZ4),
    Compression.ZSTD: (_pack_zstd, COMPRESSION_ZSTD),
}
_UNPACKERS: dict[Compression, Callable[[bytes, int], tuple[bytes, bool]]] = {
    Compression.ZLIB: _inflate,
    Compression.LZ4: _read_lz4,
    Compression.ZSTD: _read_zstd,
}
_OF_BITS = {
    0: Compression.ZLIB,
    COMPRESSION_ZLIB: Compression.ZLIB,
    COMPRESSION_LZ4: Compression.LZ4,
    COMPRESSION_ZSTD: Compression.ZSTD,
}
_MODULES: dict[Compression, Callable[[], Any]] = {
    Compression.ZLIB: lambda: zlib,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
